"""Makes roots for the tests of the report. The states are committed with the real code. The files have the sizes that
the state gives, but no real content.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.log.filenames import data_key, offset_name
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.chain.topic_state import CommittedBatch, TopicState, Writer
from storage_engine.topic.topics import Topics

NOW = 1_700_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR


def segments(*ends: int, size: int = 1000, newest: Sequence[int] | None = None) -> tuple[Segment, ...]:
    """Segments that end at these offsets; the first begins at offset 0. They are one hour apart and the last is from
    NOW, unless `newest` gives the times."""
    bases = (0, *ends[:-1])
    times = [NOW - (len(ends) - number - 1) * HOUR for number in range(len(ends))] if newest is None else newest
    return tuple(
        Segment(
            base, f"{offset_name(base)}.1.0000000{number % 10}", size, end, time, end - 1 if time >= 0 else base, NOW
        )
        for number, (base, end, time) in enumerate(zip(bases, ends, times, strict=True))
    )


def partition(*of: Segment, log_start_offset: int = 0, first_dirty_offset: int | None = None) -> PartitionState:
    """A partition with these segments, up to the end of the last."""
    return PartitionState(
        log_start_offset=log_start_offset,
        high_watermark=of[-1].end_offset if of else log_start_offset,
        first_dirty_offset=first_dirty_offset,
        segments=of,
    )


class Root:
    """A root and the topics under it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(NOW)
        self.topics = Topics(PosixStorage(folder), BrokerConfig(), self.clock)

    def topic(self, name: str, *partitions: PartitionState, **configs: str) -> TopicState:
        """A topic with these partitions, one append after its creation."""
        self.topics.create(name, len(partitions), {key.replace("_", "."): value for key, value in configs.items()})
        return self.commit(name, *partitions)

    def commit(self, name: str, *partitions: PartitionState, query: str | None = None, batch: int = 0) -> TopicState:
        """Put a version, and beside it the files that it names; with a query, as one of its micro-batches."""

        def change(state: TopicState) -> TopicState:
            changed = state.with_partitions(dict(enumerate(partitions)))
            if query is None:
                return changed
            queries = {query: CommittedBatch(batch_id=batch, offsets_hash="0" * 8)}
            writer = Writer(epoch=1, query=query, host="worker-1", pid=41, since_ms=NOW)
            return changed.model_copy(update={"queries": queries, "writer": writer})

        state = self.topics.chain(name).commit(change, f"batch {batch} of query {query}" if query else "append")
        for number, part in enumerate(state.partitions):
            for segment in part.segments:
                self.write_file(state, number, segment, segment.size)
        return state

    def file(self, state: TopicState, number: int, segment: Segment) -> Path:
        return self.folder / data_key(state.topic_id, number, segment.name)

    def write_file(self, state: TopicState, number: int, segment: Segment, size: int) -> None:
        path = self.file(state, number, segment)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.truncate(size)
