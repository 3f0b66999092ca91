"""Converts entries of magic 0 and 1 into batches of magic 2 during a compaction (MemoryRecords.filterTo).

An entry is a message, or a wrapper that contains several messages. Each entry is converted into one batch of magic 2
before the cleaner examines it. So the same code examines the keys, offsets and values of all formats. The records
that remain are written with the entry's codec. The written batch has

    base offset, last offset    those of the records that remain; only a batch that was of magic 2 keeps its offsets
    producer, leader epoch      none
    timestamps                  unchanged; for magic 0 no timestamp, with the type CreateTime
    delete horizon              set as for any batch that keeps a tombstone for the first time

A compacted segment therefore contains no entry of magic 0 or 1. A tombstone in an entry of magic 0 or 1 has no delete
horizon yet. For such tombstones, Kafka compares the modification times of two segments: the segment of the tombstone,
and the newest clean segment. If the newest clean segment was modified more than delete.retention.ms later, the
tombstone may be removed. Lakelog applies the same rule. It gives the entry a delete horizon: the modification time of
the entry's segment + delete.retention.ms. Lakelog compares this delete horizon with the modification time of the
newest clean segment, and not with the current time.

An entry without remaining records is removed, even at the end of the cleaned range, because magic 0 and 1 have no
empty batches. Kafka's cleaner stops with an error at an entry without remaining records, and fails again at every
later attempt.
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
from storage_engine.record.kernels.legacy_kernels import RECORD_GROWTH, write_as_batches
from storage_engine.record.legacy_records import read_messages
from storage_engine.record.sections import Room

_NO_CLOCK = -1
_LATEST_HORIZON_MS = 2**62
"""A difference from this value still fits into 64 bits."""


@dataclass(frozen=True)
class LegacyChunk(Chunk):
    """Entries of magic 0 and 1 as uncompressed batches of magic 2, with a delete horizon to compare with
    legacy_clock_ms.

    position: the position of the first entry in the file. The table's positions refer to data.
    codecs: the codecs of the entries, int64 of shape (batches,).
    """

    codecs: Int64Array


def legacy_horizon_ms(segment: Segment, delete_retention_ms: int) -> int:
    """The delete horizon of tombstones in a segment's entries of magic 0 and 1, on the clock of legacy_clock_ms."""
    return min(segment.modified_ms + delete_retention_ms, _LATEST_HORIZON_MS)


def legacy_clock_ms(segments: Sequence[Segment], first_dirty_offset: int) -> int:
    """The last modification of the newest clean segment. Without a clean segment: a time before any horizon."""
    clean = [segment.modified_ms for segment in segments if segment.base_offset < first_dirty_offset]
    return clean[-1] if clean else _NO_CLOCK


def as_modern(chunk: Chunk, horizon_ms: int, file: str) -> Iterator[Chunk]:
    """Convert a chunk. The result contains the batches of magic 2 unchanged, and the other entries as LegacyChunk, in
    order.

    Args:
        horizon_ms: the result of legacy_horizon_ms for the segment.
        file: the name for error messages.

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
    """Convert entries in chunks. Each chunk has about the size that is read at a time, even if its entries become much
    larger when they are decompressed.
    """
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
    """Refuse a wrapper of offset 0 whose messages have larger offsets. Readers accept any offsets in such a wrapper.
    But the next entry of the log begins after offset 0, so a wrapper with larger offsets could overlap that entry.
    """
    wrong = np.flatnonzero(batches.last_offsets > entries.last_offsets)
    if len(wrong):
        entry = int(wrong[0])
        raise CorruptionError(
            file, file_position + int(entries.positions[entry]),
            f"only offsets up to {entries.last_offsets[entry]}, the offset of the compressed message",
            f"offset {batches.last_offsets[entry]}",
        )  # fmt: skip
