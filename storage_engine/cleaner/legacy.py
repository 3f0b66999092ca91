"""Entries of magic 0 and 1 on their way through a compaction, which leaves batches of magic 2 (MemoryRecords.filterTo).

Each entry, a message or a wrapper of several, is turned into one batch of magic 2 before anything looks at it, so that
keys, offsets and values are judged in one way. What stays of it is written with the entry's codec and has

    base offset, last offset    of the records that stay, where other batches keep their own
    producer, leader epoch      none
    timestamps                  as they were; none and CreateTime where the magic was 0
    delete horizon              as any batch that keeps a tombstone for the first time

and so nothing of magic 0 and 1 is left behind a compaction. Tombstones that come as magic 0 and 1 have no horizon yet.
Kafka goes by the files: they may go when their segment was last changed delete.retention.ms before the newest clean one.
That is a horizon by another clock, and the batches made here carry it: it is the segment's last change +
delete.retention.ms, and the clock is the last change of the newest clean segment.

An entry with nothing left goes, even where the cleaned range ends: magic 0 and 1 have no empty batches. Kafka's cleaner
stops with an error there, for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from storage_engine.errors import CorruptionError
from storage_engine.log.partition_state import Segment
from storage_engine.log.segment_reader import READ_BYTES, Chunk
from storage_engine.record.batch import BatchTable, Int64Array, scan_batches
from storage_engine.record.crc import check_crcs
from storage_engine.record.encoding import seal_batches
from storage_engine.record.header import HEADER_BYTES
from storage_engine.record.kernels.legacy import RECORD_GROWTH, write_as_batches
from storage_engine.record.legacy import read_messages
from storage_engine.record.sections import Room

_NO_CLOCK = -1
_LATEST_HORIZON_MS = 2**62
"""Differences from it still fit into 64 bits."""


@dataclass(frozen=True)
class LegacyChunk(Chunk):
    """Entries of magic 0 and 1 as batches of magic 2, uncompressed and with a delete horizon for legacy_clock_ms.

    position: of the first entry in the file; the table's positions are those in data. codecs: the entries', int64 of
    shape (batches,).
    """

    codecs: Int64Array


def legacy_horizon_ms(segment: Segment, delete_retention_ms: int) -> int:
    """When tombstones in a segment's entries of magic 0 and 1 may go, by legacy_clock_ms."""
    return min(segment.modified_ms + delete_retention_ms, _LATEST_HORIZON_MS)


def legacy_clock_ms(segments: Sequence[Segment], first_dirty_offset: int) -> int:
    """When the newest clean segment was last changed; before any horizon where there is none."""
    clean = [segment.modified_ms for segment in segments if segment.base_offset < first_dirty_offset]
    return clean[-1] if clean else _NO_CLOCK


def as_modern(chunk: Chunk, horizon_ms: int, file: str) -> Iterator[Chunk]:
    """The chunk in one or more parts, in order: its batches of magic 2 as they are, the others as LegacyChunk.

    Args:
        horizon_ms: legacy_horizon_ms of the segment. file: what to name in an error.

    Raises:
        CorruptionError: an entry of magic 0 or 1 is damaged.
    """
    legacy = chunk.table.is_legacy
    if not legacy.any():
        yield chunk
        return
    bounds = np.flatnonzero(np.diff(legacy)) + 1
    for first, stop in pairwise([0, *bounds.tolist(), len(legacy)]):
        table = chunk.table.select(slice(first, stop))
        if legacy[first]:
            check_crcs(chunk.data, table, file, chunk.position)
            yield from _written_as_batches(replace(chunk, table=table), horizon_ms, file)
        else:
            yield replace(chunk, table=table)


def _written_as_batches(chunk: Chunk, horizon_ms: int, file: str) -> Iterator[LegacyChunk]:
    """As much at a time as was read at a time, however well it was compressed."""
    table = chunk.table
    while len(table):
        messages = read_messages(chunk.data, table, file, chunk.position, Room(), READ_BYTES)
        entries = table.select(slice(0, len(messages.counts)))
        table = table.select(slice(len(entries), None))
        size = messages.sections.size + HEADER_BYTES * len(entries) + RECORD_GROWTH * int(messages.counts.sum())
        out, sizes = np.empty(size, np.uint8), np.empty(len(entries), np.int64)
        written = write_as_batches(messages, horizon_ms, out, sizes)
        data = out[:written]
        seal_batches(data, sizes)
        position = chunk.position + int(entries.positions[0])
        batches = scan_batches(data, file, position)
        _check_offsets(batches, entries, file, chunk.position)
        yield LegacyChunk(data, position, batches, entries.codecs)


def _check_offsets(batches: BatchTable, entries: BatchTable, file: str, file_position: int) -> None:
    """A wrapper of offset 0 may hold any offsets, and readers take them; in a log's place for offset 0 is only that one."""
    wrong = np.flatnonzero(batches.last_offsets > entries.last_offsets)
    if len(wrong):
        entry = int(wrong[0])
        raise CorruptionError(
            file, file_position + int(entries.positions[entry]),
            f"messages up to the entry's offset {entries.last_offsets[entry]}", f"offset {batches.last_offsets[entry]}",
        )  # fmt: skip
