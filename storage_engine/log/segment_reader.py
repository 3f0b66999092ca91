"""Reading one segment: batches from a position on, records as Arrow, look-up by offset and timestamp.

A reader knows from the state which file, how many bytes of it are committed, and reads nothing beyond. Index files save
reading; they are checked and can be missing: an entry is believed only if the batch at its position ends at its offset,
an entry with a time only if the batch at its offset has it.
A file that is shorter than its committed size (a stale NFS cache) is opened once more before it counts as damaged.

Used by the driver and, with slices from the driver's plan, by Spark's executors, which never read the state.
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
from storage_engine.storage import Storage

READ_BYTES = 8 * 1024**2
_PART_BYTES = 32 * 1024**2


@dataclass(frozen=True)
class SegmentFile:
    """A segment's committed bytes, as far as reading them needs.

    stem: storage key without a suffix. base_offset, size, end_offset: as in topic.chain.state.Segment.
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
    """Whole batches of a segment: their bytes, the position of the first in the file, and their headers."""

    data: ByteArray
    position: int
    table: BatchTable


def read_chunks(
    storage: Storage, segment: SegmentFile, position: int = 0, chunk_bytes: int = READ_BYTES
) -> Iterator[Chunk]:
    """The segment's batches from a batch's position to its committed end.

    Raises:
        CorruptionError: a header no writer leaves, a committed batch that is cut off, or offsets (which no CRC covers)
            that do not increase or leave the segment.
        NotFoundError: the file is gone; the state says what came in its place.
    """
    wanted = chunk_bytes
    lowest = segment.base_offset
    while position < segment.size:
        length = min(wanted, segment.size - position)
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
                segment.key, position, f"a whole batch in the last {length} committed bytes", "one that is cut off"
            )
        # One batch is larger than a chunk: read it whole.
        claimed = int.from_bytes(data[LENGTH_POSITION:LOG_OVERHEAD].tobytes(), "big", signed=True)
        wanted = max(wanted, LOG_OVERHEAD + claimed)


def unfoldable_parts(chunk: Chunk) -> Iterator[Chunk]:
    """The chunk, or parts of it whose batches unfold to no more together than one of them may."""
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
    """Offsets between batches may be missing after a compaction, but they only increase, up to the segment's end."""
    lows = np.concatenate(([lowest], table.last_offsets[:-1] + 1))
    # Of a compressed entry of magic 0 or 1 only decoding can tell the first offset, and does.
    firsts = np.where(table.records_counts == UNKNOWN_COUNT, table.last_offsets, table.base_offsets)
    wrong = np.flatnonzero((firsts < lows) | (table.last_offsets >= segment.end_offset))
    if len(wrong):
        row = int(wrong[0])
        raise CorruptionError(
            segment.key, position + int(table.positions[row]), f"offsets from {lows[row]} to {segment.end_offset - 1}",
            f"a batch with offsets {table.base_offsets[row]} to {table.last_offsets[row]}",
        )  # fmt: skip


def _read_committed(storage: Storage, segment: SegmentFile, position: int, length: int) -> ByteArray:
    data = storage.read(segment.key, position, length)
    if len(data) < length:
        data = storage.read(segment.key, position, length)
    if len(data) < length:
        raise CorruptionError(
            segment.key, position, f"{length} committed bytes", f"{len(data)}", "Restore the file from a backup."
        )
    return np.frombuffer(data, np.uint8)


def read_records(
    storage: Storage,
    segment: SegmentFile,
    first_offset: int = 0,
    end_offset: int = NO_END,
    aborted: Sequence[AbortedTransaction] = (),
) -> Iterator[pa.RecordBatch]:
    """The segment's records with first_offset <= offset < end_offset, in columns.RECORDS.

    Args:
        aborted: transactions whose records are passed over, those that end in later segments too.

    Raises:
        CorruptionError: a batch does not hold what its header says.
    """
    ranges = TransactionRanges(aborted)
    for chunk in read_chunks(storage, segment, position_of(storage, segment, first_offset)):
        # Decoding passes batches over by what their headers say, so these are to be believed only behind a good CRC.
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
    """Where some transactions lie, for many batches to be looked up.

    A producer has one transaction at a time on a partition: its transactional batches between the first offset and the
    marker are the transaction's.
    """

    def __init__(self, transactions: Sequence[AbortedTransaction]) -> None:
        known = np.array([each[:3] for each in transactions], np.int64).reshape(-1, 3)
        known = known[np.lexsort((known[:, 1], known[:, 0]))]
        self._producers, self._firsts, self._lasts = (np.ascontiguousarray(column) for column in known.T)

    def holding(self, table: BatchTable) -> npt.NDArray[np.bool_]:
        """Which batches belong to one of them, bool of shape (batches,)."""
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


def position_of(storage: Storage, segment: SegmentFile, offset: int) -> int:
    """A batch's position from which a scan for this offset may start; 0 where the index is missing or wrong."""
    if offset <= segment.base_offset:
        return 0
    try:
        entries = decode_offset_index(storage.read(segment.stem + INDEX))
    except NotFoundError:
        return 0
    entries = entries[entries["position"].astype(np.int64) < segment.size]
    position = position_before(entries, min(offset - segment.base_offset, 2**31 - 1))
    if position == 0:
        return 0
    row = int(np.searchsorted(entries["position"].astype(np.int64), position))
    indexed = segment.base_offset + int(entries["relative_offset"][row])
    return position if _batch_ends_at(storage, segment, position, indexed) else 0


def _batch_ends_at(storage: Storage, segment: SegmentFile, position: int, offset: int) -> bool:
    data = storage.read(segment.key, position, min(HEADER_BYTES, segment.size - position))
    header = scan_header(np.frombuffer(data, np.uint8))
    return bool((header.last_offsets == offset).any())


def first_record_at(
    storage: Storage, segment: SegmentFile, timestamp: int, first_offset: int = 0
) -> tuple[int, int, int] | None:
    """The first record from an offset on whose timestamp is at least this one (LogSegment.findOffsetByTimestamp).

    Control records count, as in Kafka. Returns (offset, timestamp, leader epoch), None where the segment has none.
    """
    try:
        hint = hint_before(decode_time_index(storage.read(segment.stem + TIME_INDEX)), timestamp)
    except NotFoundError:
        hint = None
    if hint is not None and first_offset < (offset := segment.base_offset + hint[1]) < segment.end_offset:
        chunks = read_chunks(storage, segment, position_of(storage, segment, offset))
        first = next(chunks, None)
        if first is not None and _brings(first.table, hint[0], offset):
            return _first_reaching(itertools.chain((first,), chunks), segment, timestamp, first_offset)
    return _first_reaching(
        read_chunks(storage, segment, position_of(storage, segment, first_offset)), segment, timestamp, first_offset
    )


def _brings(table: BatchTable, timestamp: int, offset: int) -> bool:
    """Whether the batch with this offset is among these, and has this largest timestamp."""
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


def first_batch_timestamp(storage: Storage, segment: SegmentFile) -> int | None:
    """The largest timestamp of the segment's first batch; None for an empty segment or a batch without one."""
    if not segment.size:
        return None
    header = _read_committed(storage, segment, 0, min(HEADER_BYTES, segment.size))
    (timestamp,) = scan_header(header).max_timestamps.tolist() or (NO_TIMESTAMP,)
    return timestamp if timestamp >= 0 else None
