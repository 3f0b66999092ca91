"""Finds facts that the view (log/) proves, and that are missing in a state. Changes nothing.

There are two kinds of facts. A high watermark is proven under two conditions: both checkpoints of the view contain
it, and the view's files have all batches below it. A log start offset is proven if two files of the view confirm it.

A state that is restored from these facts has a higher writer epoch. If records are restored, the state marks the last
batch of each query as unknown. The reason is that no file says which micro-batch appended these records.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from storage_engine.config import LONG_MAX
from storage_engine.errors import CorruptionError, LogError
from storage_engine.log.checkpoint import LOG_STARTS, decode_offsets
from storage_engine.log.filenames import LOG, data_folder, is_offset_name, offset_name
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.intact_batches import DamagedLog
from storage_engine.log.leader_epochs import begin_epoch, cut_start, with_batches
from storage_engine.log.partition_state import PartitionState
from storage_engine.log.producers.producer_state import Producers, aborted_among
from storage_engine.quantities import counted
from storage_engine.storage import FolderEntry, Storage, View
from storage_engine.topic.chain.segment_lists import drop_unproven_list
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.kafka.view_folder import view_folder
from storage_engine.topic.topics import Topics, empty_partition
from storage_engine.topic.view_record import VIEW
from storage_engine.topic.witnesses import shown_offsets, shown_start, shown_topic_id


@dataclass(frozen=True)
class ProvenState:
    """An intact state together with the facts that the view proves beyond it. records: number of restored records."""

    state: TopicState
    records: int
    sources: str

    def goes_beyond(self, last: TopicState) -> bool:
        """Whether the view proves more than this state contains."""
        starts = [part.log_start_offset for part in last.partitions]
        return self.records > 0 or [part.log_start_offset for part in self.state.partitions] != starts


def prove_state(topics: Topics, last: TopicState) -> ProvenState:
    """Add to an intact state the facts that the view proves beyond it.

    Raises:
        CorruptionError: the view shows more than its files contain.
    """
    storage, view = topics.storage, topics.storage.view
    if last.deleted:
        return ProvenState(last, 0, f"version {last.version}")
    parts, records = [drop_unproven_list(part) for part in last.partitions], 0
    if view is not None and shown_topic_id(storage, last.topic) == last.topic_id:
        ends, starts = shown_offsets(storage).ends.get(last.topic, {}), _shown_starts(storage, view, last)
        while shown_topic_id(storage, last.topic, len(parts)) == last.topic_id and len(parts) in ends:
            parts.append(empty_partition(last.writer.epoch))  # a partition that a lost version had added
        for number, part in enumerate(parts):
            end = ends.get(number, 0)
            more = _with_batches(topics, view, last, number, part, end) if end > part.high_watermark else part
            records += more.high_watermark - part.high_watermark
            start = min(starts.get(number, 0), more.high_watermark)
            if start > more.log_start_offset:
                epochs = cut_start(more.leader_epochs, start)
                more = more.model_copy(update={"log_start_offset": start, "leader_epochs": epochs, "listed": None})
            parts[number] = more
    newest_epochs = (part.leader_epochs[-1].epoch for part in parts if part.leader_epochs)
    epoch = max(last.writer.epoch, *newest_epochs) + 1
    update: dict[str, Any] = {
        "partitions": tuple(
            part.model_copy(update={"leader_epochs": begin_epoch(part.leader_epochs, epoch, part.high_watermark)})
            for part in parts
        ),
        "writer": last.writer.model_copy(update={"epoch": epoch}),
    }
    sources = f"version {last.version}"
    if records:
        unknown = {query: batch.model_copy(update={"offsets_hash": ""}) for query, batch in last.queries.items()}
        update |= {"queries": unknown, "positions": {}}
        sources += f", and {counted(records, 'record')} that {VIEW}/ shows as committed"
    return ProvenState(last.model_copy(update=update), records, sources)


def _with_batches(
    topics: Topics, view: View, last: TopicState, number: int, part: PartitionState, end: int
) -> PartitionState:
    """The partition, extended up to an offset with batches from the files that the view shows."""
    folder = data_folder(last.topic_id, number)
    shown = {
        int(entry.name.removesuffix(LOG)): entry
        for entry in view.entries(view_folder(last.topic, number))
        if entry.name.endswith(LOG) and is_offset_name(entry.name.removesuffix(LOG))
    }
    active = part.active_segment
    first = active.base_offset if active is not None else part.high_watermark
    bases = sorted(base for base in shown if first <= base < end)
    segments = list(part.segments[:-1])
    producers = Producers(part.producers)
    epochs = part.leader_epochs
    for base, following in zip(bases, [*bases[1:], end], strict=True):
        known = active if active is not None and active.base_offset == base else None
        name = known.name if known else _name_of(view, folder, base, shown[base])
        size = next((entry.size for entry in view.entries(folder) if entry.name == name + LOG), 0)
        log = DamagedLog(topics.storage, f"{folder}{name}{LOG}", base, size, following)
        growing = GrowingSegment(base, 0, topics.config(last).index_interval_bytes)
        aborted = known.aborted if known else ()
        horizon_ms = LONG_MAX
        for chunk in log.chunks():
            if log.damages:
                break
            table = chunk.table.select(chunk.table.last_offsets < following)
            new = table.select(table.base_offsets >= part.high_watermark)
            growing.append_all(table)
            aborted += aborted_among(producers.replay(chunk.data, new, log.key, chunk.position))
            epochs = with_batches(epochs, new)
            horizons = table.delete_horizons
            horizon_ms = min(horizon_ms, int(horizons[horizons >= 0].min(initial=LONG_MAX)))
        if growing.end_offset != following:
            raise CorruptionError(log.key, growing.size, f"batches with the end offset {following}", "no intact batch")
        horizon_ms = -1 if horizon_ms == LONG_MAX else horizon_ms
        segments.append(growing.segment(name, shown[base].modified_ms, aborted, horizon_ms))
    if not segments or segments[-1].end_offset != end:
        raise CorruptionError(view_folder(last.topic, number), 0, f"files with the end offset {end}", "none")
    update = {
        "segments": tuple(segments), "high_watermark": end, "producers": producers.entries(),
        "leader_epochs": epochs, "listed": None,
    }  # fmt: skip
    return part.model_copy(update=update)


def _name_of(view: View, folder: str, base: int, shown: FolderEntry) -> str:
    """The file under data/ that the view shows as the segment with this base offset.

    Raises:
        CorruptionError: there is no such file.
    """
    for entry in view.entries(folder):
        if (
            entry.name.startswith(f"{offset_name(base)}.")
            and entry.name.endswith(LOG)
            and entry.file_id == shown.file_id
        ):
            return entry.name.removesuffix(LOG)
    raise CorruptionError(f"{folder}{offset_name(base)}", 0, "the file that the view shows", "none")


def _shown_starts(storage: Storage, view: View, state: TopicState) -> dict[int, int]:
    """Log start offsets that two files of the view confirm, by partition."""
    starts: dict[int, int] = {}
    checkpoint: Mapping[tuple[str, int], int] = {}
    with suppress(LogError):
        checkpoint = decode_offsets(storage.read(f"{VIEW}/{LOG_STARTS}"), LOG_STARTS)
    for number in range(len(state.partitions)):
        folder = view_folder(state.topic, number)
        with suppress(LogError):
            names = (entry.name.removesuffix(LOG) for entry in view.entries(folder) if entry.name.endswith(LOG))
            first = min((int(name) for name in names if is_offset_name(name)), default=0)
            where = state.topic, number
            starts[number] = min(checkpoint.get(where, first), shown_start(storage, *where))
    return starts
