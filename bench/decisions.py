"""Measures how long retention, compaction and merging need to decide what to do with a partition of many segments.

The decisions use only the topic's state. The topic has no data files, so a decision would fail if it opened a segment.
The state has the first timestamp of each segment, like every state that this release of Lakelog writes. All rules are
on: retention by time and by size, and both compaction lags. The time is processor time, and includes reading the newest
state.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from statistics import median

from bench.results import Ratio, write_results
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.segment_retention import decide_retention
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.clean.topic_compaction import cleaning_tasks
from storage_engine.topic.clean.topic_merging import merge_tasks
from storage_engine.topic.topics import Topics

TOPIC = "values"
SEGMENTS = (100, 1_000, 10_000)
ROUNDS = 5
NOW_MS = 1_760_000_000_000
SECOND_MS = 1_000
SEGMENT_BYTES = 1024**2
CONFIG = {
    "retention.ms": str(90 * SECOND_MS), "retention.bytes": str(9_000 * SEGMENT_BYTES),
    "segment.bytes": str(64 * SEGMENT_BYTES),
}  # fmt: skip
COMPACTED = {"min.compaction.lag.ms": "1", "max.compaction.lag.ms": str(10**12)}


class CountingStorage(PosixStorage):
    """Counts how often data is opened."""

    opened = 0

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.opened += key.startswith("data/")
        return super().read(key, start, length)


def main() -> None:
    rows = []
    opened = 0
    slowest = 0.0
    for segments in SEGMENTS:
        with tempfile.TemporaryDirectory(prefix="lakelog-bench-") as folder:
            storage = CountingStorage(folder)
            seconds = decide(storage, segments)
            opened += storage.opened
        slowest = sum(seconds.values())
        rows.append([f"{segments:,} segments", *(f"{taken * 1e3:.1f}" for taken in (*seconds.values(), slowest))])
        print(f"{rows[-1][0]:20}" + "".join(f"{cell:>10}" for cell in rows[-1][1:]), flush=True)
    write_results(
        "decisions",
        "Decisions",
        f"The figures are milliseconds of processor time: the median of {ROUNDS} rounds. In each round, retention,"
        " compaction and merging each decide what to do with one partition. The time includes reading the topic's"
        " newest state from storage.",
        ["", "retention", "compaction", "merging", "all"],
        rows,
        [
            Ratio(f"decide over {SEGMENTS[-1]:,} segments: seconds", slowest, at_most=1),
            Ratio("segments opened to decide", opened, at_most=0),
        ],
    )


def decide(storage: CountingStorage, segments: int) -> dict[str, float]:
    """The seconds that each decision takes."""
    deleting, compacting = (
        topics_with(storage, f"{TOPIC}-{policy}", segments, {**CONFIG, "cleanup.policy": policy, **more})
        for policy, more in (("delete", {}), ("compact", COMPACTED))
    )

    def retention() -> int:
        state = deleting.state(f"{TOPIC}-delete")
        return len(decide_retention(state.partitions[0], deleting.config(state), NOW_MS).deletions)

    def compaction() -> int:
        state = compacting.state(f"{TOPIC}-compact")
        return len(cleaning_tasks(storage, state, compacting.config(state), compacting.broker, NOW_MS))

    def merging() -> int:
        state = deleting.state(f"{TOPIC}-delete")
        return len(merge_tasks(state, deleting.config(state)))

    return {each.__name__: seconds_of(each) for each in (retention, compaction, merging)}


def seconds_of(decision: Callable[[], int]) -> float:
    taken = []
    for _ in range(1 + ROUNDS):
        started = time.process_time()
        assert decision(), "there is something to do"
        taken.append(time.process_time() - started)
    return median(taken[1:])


def topics_with(storage: CountingStorage, name: str, segments: int, config: dict[str, str]) -> Topics:
    """A topic with one partition. The partition has this number of segments, one for each second. None of the segments
    has a file."""
    topics = Topics(storage, BrokerConfig(), ManualClock(NOW_MS))
    topics.create(name, 1, config)
    ends = [NOW_MS - SECOND_MS * (segments - number) for number in range(segments)]
    part = PartitionState(
        high_watermark=10 * segments,
        segments=tuple(
            Segment(10 * number, f"{10 * number:020d}.0.{number:08x}", SEGMENT_BYTES, 10 * number + 10, end,
                    10 * number + 9, end, (), end - SECOND_MS)
            for number, end in enumerate(ends)
        ),
    )  # fmt: skip
    topics.chain(name).commit(lambda state: state.with_partitions({0: part}), "many segments")
    return topics


if __name__ == "__main__":
    main()
