"""Counts the records and bytes after a reader's position, and finds the time of the oldest of these records.

Offsets alone do not show the number of unread records. Compaction leaves gaps. Control batches and aborted
transactions have offsets, but no records for a reader. So the headers of the batches are read. Records are decoded
only in the batch that contains the position, and in the first batch with unread records. Messages of magic 0 and 1
are also decoded, because their headers do not contain the number of records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.log.segment_reader import Chunk, SegmentFile, TransactionRanges, position_of, read_chunks
from storage_engine.record.batch import UNKNOWN_COUNT, BatchTable
from storage_engine.record.crc import check_crcs
from storage_engine.record.decoding import decode_parts
from storage_engine.storage import Storage

_PART_BYTES = 8 * 1024**2
_FIRST_BYTES = 64 * 1024
"""The first record is usually in the first batch after the position, so a small part of the file is enough."""


class Unread(NamedTuple):
    """The part of a partition that a reader has not read.

    records: how many records a reader will get.
    bytes: the size of the batches that the reader must read, including control batches.
    oldest_ms: the timestamp of the first of these records; None if there are no records, or if the first has no timestamp.
    """

    records: int = 0
    bytes: int = 0
    oldest_ms: int | None = None


def count_unread(
    storage: Storage,
    segments: Iterable[SegmentFile],
    first_offset: int,
    end_offset: int,
    aborted: Sequence[AbortedTransaction] = (),
) -> Unread:
    """Count the records with first_offset <= offset < end_offset in a partition's segments.

    Args:
        aborted: transactions whose records a reader does not get.

    Raises:
        CorruptionError: a batch is damaged.
        NotFoundError: a file was deleted.
    """
    ranges = TransactionRanges(aborted)
    records = size = 0
    oldest: int | None = None
    for segment in segments:
        for chunk in read_chunks(storage, segment, position_of(storage, segment, first_offset)):
            table = chunk.table.select(
                (chunk.table.last_offsets >= first_offset) & (chunk.table.base_offsets < end_offset)
            )
            size += int(table.sizes.sum())
            table = _with_records(table, ranges)
            is_whole = (table.base_offsets >= first_offset) & (table.records_counts != UNKNOWN_COUNT)
            counted = table.select(is_whole)
            check_crcs(chunk.data, counted, segment.key, chunk.position)
            decoded, _ = _decoded(chunk, table.select(~is_whole), segment, first_offset, end_offset)
            found = int(counted.records_counts.sum()) + decoded
            if found and not records:
                first_ms = _first_ms(chunk, table, segment, first_offset, end_offset)
                oldest = first_ms if first_ms is not None and first_ms >= 0 else None
            records += found
            if int(chunk.table.last_offsets[-1]) + 1 >= end_offset:
                break
    return Unread(records, size, oldest)


def oldest_unread(
    storage: Storage,
    segments: Iterable[SegmentFile],
    first_offset: int,
    end_offset: int,
    aborted: Sequence[AbortedTransaction] = (),
) -> int | None:
    """The timestamp of the first record that count_unread counts; -1 if this record has no timestamp, and None if there is
    no such record. The log is read only up to this record. Arguments and errors are those of count_unread.
    """
    ranges = TransactionRanges(aborted)
    for segment in segments:
        position = position_of(storage, segment, first_offset)
        for chunk in read_chunks(storage, segment, position, _FIRST_BYTES):
            table = chunk.table.select(
                (chunk.table.last_offsets >= first_offset) & (chunk.table.base_offsets < end_offset)
            )
            table = _with_records(table, ranges)
            first_ms = _first_ms(chunk, table, segment, first_offset, end_offset)
            if first_ms is not None:
                return first_ms
            if int(chunk.table.last_offsets[-1]) + 1 >= end_offset:
                break
    return None


def _with_records(table: BatchTable, ranges: TransactionRanges) -> BatchTable:
    """The batches whose records a reader gets."""
    return table.select(~table.is_control & ~ranges.holding(table) & (table.records_counts != 0))


def _first_ms(chunk: Chunk, table: BatchTable, segment: SegmentFile, first_offset: int, end_offset: int) -> int | None:
    """The timestamp of the first record in these batches; None if there are no records. The first batch may have no record:
    if its last records were compacted, its last offset remains."""
    for number in range(len(table)):
        batch = table.select(np.arange(len(table)) == number)
        records, first_ms = _decoded(chunk, batch, segment, first_offset, end_offset)
        if records:
            return first_ms
    return None


def _decoded(
    chunk: Chunk, table: BatchTable, segment: SegmentFile, first_offset: int, end_offset: int
) -> tuple[int, int]:
    """The number of records in these batches, and the timestamp of the first record; -1 if there are no records."""
    records, first_ms = 0, -1
    for part in decode_parts(
        chunk.data, table, segment.key, chunk.position, first_offset, end_offset, part_bytes=_PART_BYTES
    ):
        if part.num_rows and not records:
            first_ms = int(np.asarray(part["timestamp"])[0])
        records += part.num_rows
    return records, first_ms
