"""Reads one segment: its batches from a given position, its records as Arrow, and lookups by offset and timestamp.

The partition's state gives the file and the committed size of the file. No byte after the committed size is read.
Index files make lookups faster, but they can be missing or damaged. So an entry of the offset index is used only if
the batch at the entry's position ends at the entry's offset. An entry of the time index is used only if the batch at
the entry's offset has the entry's timestamp. If a file is shorter than its committed size, the file is opened again,
because an NFS cache can be stale. If the reopened file is also too short, it counts as damaged.

The Spark driver uses this module to plan a read. Executors use the module to read the slices of this plan. Executors
never read the state. The functions keep no state between calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.errors import CorruptionError, NotFoundError
from storage_engine.log.filenames import INDEX, LOG, TIME_INDEX
from storage_engine.log.indexes.offset_index import decode_offset_index, position_before
from storage_engine.log.indexes.time_index import decode_time_index, hint_before
from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.record.batch import UNKNOWN_COUNT, BatchTable, ByteArray, scan_batches, scan_header
from storage_engine.record.batch_limit import most_batch_bytes
from storage_engine.record.crc import check_crcs
from storage_engine.record.decoding import NO_END, decode_batches, decode_parts, unfolding_bounds
from storage_engine.record.header import HEADER_BYTES, LENGTH_POSITION, LOG_OVERHEAD, NO_TIMESTAMP, TRANSACTIONAL
from storage_engine.storage import Readable

READ_BYTES = 8 * 1024**2
_PART_BYTES = 32 * 1024**2


@dataclass(frozen=True)
class SegmentFile:
    """The facts that are needed to read a segment.

    stem: the storage key of its files, without a suffix.
    base_offset, size, end_offset: as in log.partition_state.Segment.
    """

    stem: str
    base_offset: int
    size: int
    end_offset: int

    @property
    def key(self) -> str:
        return self.stem + LOG


@dataclass(frozen=True)
class Chunk:
    """Complete batches of a segment: their bytes, the position of the first batch in the file, and their headers."""

    data: ByteArray
    position: int
    table: BatchTable


def read_chunks(
    storage: Readable, segment: SegmentFile, position: int = 0, chunk_bytes: int = READ_BYTES, stop: int | None = None
) -> Iterator[Chunk]:
    """Yield the batches of a segment, from a batch's position to the committed end.

    Args:
        stop: a position at which the caller probably stops. A chunk ends there, so that no more bytes are read. If the
            caller continues, the next chunk begins there.

    Raises:
        CorruptionError: a header is impossible, a committed batch is incomplete, or offsets (which are outside the CRC)
            do not increase or are outside the segment.
        NotFoundError: the file was deleted. A newer state names the replacement of the file.
    """
    wanted = chunk_bytes
    lowest = segment.base_offset
    while position < segment.size:
        end = segment.size if stop is None or stop <= position else min(stop, segment.size)
        length = min(wanted, end - position)
        data = _read_committed(storage, segment, position, length)
        table = scan_batches(data, segment.key, position)
        if len(table):
            _check_offsets(table, lowest, segment, position)
            lowest = int(table.last_offsets[-1]) + 1
            yield Chunk(data[: table.end], position, table)
            position += table.end
            wanted = chunk_bytes
            continue
        if length == segment.size - position:
            raise CorruptionError(
                segment.key, position, f"a complete batch in the last {length} committed bytes", "an incomplete batch"
            )
        # One batch is larger than a chunk, or passes the position at which the caller stops: read it whole.
        stop = None
        claimed = int.from_bytes(data[LENGTH_POSITION:LOG_OVERHEAD].tobytes(), "big", signed=True)
        wanted = max(wanted, LOG_OVERHEAD + claimed)


def unfoldable_parts(chunk: Chunk) -> Iterator[Chunk]:
    """Divide a chunk into parts. All batches of a part together decompress to at most as many bytes as one batch may
    have.
    """
    most = most_batch_bytes()
    if not chunk.table.codecs.any():
        yield chunk
        return
    reach = np.cumsum(unfolding_bounds(chunk.data, chunk.table))
    first = 0
    while first < len(reach):
        before = int(reach[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(reach, before + most, side="right")))
        yield replace(chunk, table=chunk.table.select(slice(first, stop))) if stop - first < len(reach) else chunk
        first = stop


def _check_offsets(table: BatchTable, lowest: int, segment: SegmentFile, position: int) -> None:
    """Check that offsets increase, and are in the segment. Gaps between batches, left by compaction, are allowed."""
    lows = np.concatenate(([lowest], table.last_offsets[:-1] + 1))
    # The first offset of a wrapper of magic 0 or 1 is checked when it is decoded.
    firsts = np.where(table.records_counts == UNKNOWN_COUNT, table.last_offsets, table.base_offsets)
    wrong = np.flatnonzero((firsts < lows) | (table.last_offsets >= segment.end_offset))
    if len(wrong):
        row = int(wrong[0])
        raise CorruptionError(
            segment.key, position + int(table.positions[row]), f"offsets from {lows[row]} to {segment.end_offset - 1}",
            f"a batch with offsets {table.base_offsets[row]} to {table.last_offsets[row]}",
        )  # fmt: skip


def _read_committed(storage: Readable, segment: SegmentFile, position: int, length: int) -> ByteArray:
    data = storage.read(segment.key, position, length)
    if len(data) < length:
        data = storage.read(segment.key, position, length)
    if len(data) < length:
        raise CorruptionError(
            segment.key, position, f"{length} committed bytes", f"{len(data)}", "Restore the file from a backup."
        )
    return np.frombuffer(data, np.uint8)


def read_records(
    storage: Readable,
    segment: SegmentFile,
    first_offset: int = 0,
    end_offset: int = NO_END,
    aborted: Sequence[AbortedTransaction] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield the segment's records with first_offset <= offset < end_offset, in columns.RECORDS.

    Args:
        aborted: transactions whose records are skipped, including transactions that end in later segments.

    Raises:
        CorruptionError: a batch is damaged.
    """
    ranges = TransactionRanges(aborted)
    position, stop = positions_of(storage, segment, first_offset, end_offset)
    for chunk in read_chunks(storage, segment, position, stop=stop):
        # The header decides whether a batch is skipped, so the CRCs of skipped batches must be checked, too.
        table = chunk.table.select(chunk.table.base_offsets < end_offset)
        passed_over = table.is_control | (table.records_counts == 0) | (table.last_offsets < first_offset)
        passed_over |= ranges.holding(table)
        check_crcs(chunk.data, table.select(passed_over), segment.key, chunk.position)
        table = table.select(~passed_over)
        for records in decode_parts(
            chunk.data, table, segment.key, chunk.position, first_offset, end_offset, part_bytes=_PART_BYTES
        ):
            if records.num_rows:
                yield records
        if int(chunk.table.last_offsets[-1]) + 1 >= end_offset:
            return


class TransactionRanges:
    """Finds the batches that belong to some transactions.

    A producer has one open transaction at a time on a partition. So all of its transactional batches from the first
    offset of a transaction to the marker belong to that transaction.
    """

    def __init__(self, transactions: Sequence[AbortedTransaction]) -> None:
        known = np.array([each[:3] for each in transactions], np.int64).reshape(-1, 3)
        known = known[np.lexsort((known[:, 1], known[:, 0]))]
        self._producers, self._firsts, self._lasts = (np.ascontiguousarray(column) for column in known.T)

    def holding(self, table: BatchTable) -> npt.NDArray[np.bool_]:
        """Return whether each batch belongs to one of the transactions, bool of shape (batches,)."""
        belongs = np.zeros(len(table), np.bool_)
        if not len(self._producers):
            return belongs
        transactional = (table.attributes & TRANSACTIONAL) != 0
        for producer_id in np.unique(table.producer_ids[transactional]).tolist():
            start, end = np.searchsorted(self._producers, [producer_id, producer_id + 1])
            if start < end:
                rows = np.flatnonzero(transactional & (table.producer_ids == producer_id))
                firsts, lasts = self._firsts[start:end], self._lasts[start:end]
                latest = np.searchsorted(firsts, table.base_offsets[rows], side="right") - 1
                belongs[rows] = (latest >= 0) & (table.base_offsets[rows] <= lasts[latest])
        return belongs


def position_of(storage: Readable, segment: SegmentFile, offset: int) -> int:
    """Return the position of a batch at which a scan for this offset can start; 0 if the index is missing or wrong."""
    return positions_of(storage, segment, offset, NO_END)[0]


def positions_of(storage: Readable, segment: SegmentFile, first_offset: int, end_offset: int) -> tuple[int, int | None]:
    """Return the position of a batch at which a scan for first_offset can start, and a position at which the scan has
    probably reached end_offset.

    The first position is 0 if the index is missing or wrong. The second position is None if the index has no entry for
    it. If the index is wrong, the second position may be wrong.
    """
    from_start = first_offset <= segment.base_offset
    if from_start and end_offset >= segment.end_offset:
        return 0, None
    try:
        entries = decode_offset_index(storage.read(segment.stem + INDEX))
    except NotFoundError:
        return 0, None
    entries = entries[entries["position"].astype(np.int64) < segment.size]
    positions, last_offsets = (entries[field].astype(np.int64) for field in ("position", "relative_offset"))
    # The batch of the first entry at or after the last wanted offset may have that offset. The next entry's batch does
    # not have it.
    after = int(np.searchsorted(last_offsets, end_offset - 1 - segment.base_offset)) + 1
    stop = int(positions[after]) if after < len(positions) else None
    position = 0 if from_start else position_before(entries, min(first_offset - segment.base_offset, 2**31 - 1))
    if position > 0:
        indexed = segment.base_offset + int(last_offsets[np.searchsorted(positions, position)])
        position = position if _batch_ends_at(storage, segment, position, indexed) else 0
    return position, stop


def _batch_ends_at(storage: Readable, segment: SegmentFile, position: int, offset: int) -> bool:
    return bool((header_at(storage, segment, position).last_offsets == offset).any())


def header_at(storage: Readable, segment: SegmentFile, position: int) -> BatchTable:
    """Read one header: a table with one row, or with no row if no batch begins at this position."""
    data = storage.read(segment.key, position, min(HEADER_BYTES, segment.size - position))
    return scan_header(np.frombuffer(data, np.uint8))


def first_record_at(
    storage: Readable, segment: SegmentFile, timestamp: int, first_offset: int = 0
) -> tuple[int, int, int] | None:
    """Find the first record at or after an offset that has at least this timestamp (LogSegment.findOffsetByTimestamp).

    Control records count, as in Kafka. Returns (offset, timestamp, leader epoch); None if the segment has no such
    record.
    """
    try:
        hint = hint_before(decode_time_index(storage.read(segment.stem + TIME_INDEX)), timestamp)
    except NotFoundError:
        hint = None
    if hint is not None and first_offset < (offset := segment.base_offset + hint[1]) < segment.end_offset:
        chunks = read_chunks(storage, segment, position_of(storage, segment, offset))
        first = next(chunks, None)
        if first is not None and _has_batch(first.table, hint[0], offset):
            return _first_reaching(itertools.chain((first,), chunks), segment, timestamp, first_offset)
    return _first_reaching(
        read_chunks(storage, segment, position_of(storage, segment, first_offset)), segment, timestamp, first_offset
    )


def _has_batch(table: BatchTable, timestamp: int, offset: int) -> bool:
    """Whether a batch in the table has this offset and this largest timestamp."""
    at = (table.base_offsets <= offset) & (table.last_offsets >= offset)
    return bool((table.max_timestamps[at] == timestamp).any())


def _first_reaching(
    chunks: Iterable[Chunk], segment: SegmentFile, timestamp: int, first_offset: int
) -> tuple[int, int, int] | None:
    for chunk in chunks:
        reaching = (chunk.table.max_timestamps >= timestamp) & (chunk.table.last_offsets >= first_offset)
        candidates = chunk.table.select(reaching)
        for row in range(len(candidates)):
            one = candidates.select(slice(row, row + 1))
            records = decode_batches(chunk.data, one, segment.key, chunk.position, first_offset, control=True)
            times = records["timestamp"].to_numpy()
            found = np.flatnonzero(times >= timestamp)
            if len(found):
                at = int(found[0])
                return (records["offset"][at].as_py(), int(times[at]), records["leader_epoch"][at].as_py())
    return None


def first_batch_timestamp(storage: Readable, segment: SegmentFile) -> int | None:
    """Return the largest timestamp of the first batch; None if the segment is empty or the batch has no timestamp."""
    if not segment.size:
        return None
    header = _read_committed(storage, segment, 0, min(HEADER_BYTES, segment.size))
    (timestamp,) = scan_header(header).max_timestamps.tolist() or (NO_TIMESTAMP,)
    return timestamp if timestamp >= 0 else None
