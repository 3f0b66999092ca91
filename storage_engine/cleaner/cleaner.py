"""Compacts one partition, like Kafka's Cleaner: reads committed segments and writes new segments in their place.

    1. passes.py finds the outdated records. A record is outdated if the dirty part has a newer record with the same
       key. The memory of this step is limited.
    2. Neighbouring segments that together stay below segment.bytes form a group. Each group becomes one segment.
    3. In each group, batch by batch, records that are not outdated are kept. A tombstone is kept only until the
       delete horizon of its batch. The first compaction that keeps a tombstone of the batch sets this horizon.
    4. cleaned_transactions.py decides which parts of a transaction are deleted: aborted data, and later the marker.

A batch that loses no record is copied byte for byte. A batch that loses records is written again with the same
offsets, epochs, sequence and codec. So no offset changes. The last batch of the cleaned range is kept even if it is
empty. The last batch of each active producer is also kept, because it contains the producer's sequence. Messages of
magic 0 and 1 become batches of magic 2 (legacy_conversion.py).

A CleaningTask contains every value that a decision needs, so any process can run the task: the driver, a Spark task,
the command line. New files are durable when `clean_partition` returns. Readers use the new files only after a new
version of the topic's state names them (topic.clean.state_swap). If the process dies before that version is
committed, the new files are never read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from storage_engine.cleaner.cleaned_transactions import CleanedTransactions
from storage_engine.cleaner.filter_kernels import (
    ALL_OUTDATED,
    CAUSES,
    DISCARD,
    DROPPED,
    EMPTIED,
    EXPIRED_TOMBSTONE,
    KEEP_ALL,
    LEGACY,
    LONGEST_RECORD_GROWTH,
    REBUILT,
    STAYS_EMPTY,
    WANTS_HORIZON,
    FilteredBatches,
    FilterLimits,
    FilterResult,
    RecordsKept,
    filter_batches,
)
from storage_engine.cleaner.legacy_conversion import LegacyChunk, as_modern, legacy_clock_ms, legacy_horizon_ms
from storage_engine.cleaner.passes import KeyedChunk, OutdatedRecords, outdated_records
from storage_engine.cleaner.replacement import Replacement, delete_segments, file_of, finish_segment
from storage_engine.cleaner.selection import CompactionPlan, group_segments
from storage_engine.cleaner.throttle import Throttle
from storage_engine.config import LONG_MAX, TopicConfig
from storage_engine.errors import LogError
from storage_engine.log.filenames import INDEX, TIME_INDEX, SegmentFolder
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.producers.producer_snapshot import ProducerEntry
from storage_engine.log.segment_reader import (
    READ_BYTES,
    Chunk,
    TransactionRanges,
    position_of,
    read_chunks,
    unfoldable_parts,
)
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.record.batch import BatchTable, ByteArray, Int64Array
from storage_engine.record.compression import Codec
from storage_engine.record.crc import check_crcs
from storage_engine.record.decoding import damaged_batch, intact_sections
from storage_engine.record.encoding import compress_again, seal_chosen_batches
from storage_engine.record.header import HEADER_BYTES
from storage_engine.record.kernels.columns import Sections
from storage_engine.record.kernels.decode_kernels import INTACT
from storage_engine.record.sections import Room
from storage_engine.storage import NewFile, Storage
from storage_engine.storage.read_ahead import read_ahead


@dataclass(frozen=True)
class CleaningTask:
    """One partition to compact, with every value that the compaction needs. Small and picklable.

    files: the folder of the segments.
    topic_id: empty for a plain Kafka directory.
    memory_bytes: the value of log.cleaner.dedupe.buffer.size.
    producers: (id, epoch, last data offset or -1) of each active producer; at least the header of its last batch is
        kept.
    aborted: aborted transactions that end at or after the log start offset, in order.
    hold_offset: at and after this offset, tombstones and markers are kept for max_hold_ms beyond their delete horizon.
    bytes_per_second: the highest rate of reading and writing together.
    """

    topic: str
    topic_id: str
    partition: int
    files: SegmentFolder
    plan: CompactionPlan
    config: TopicConfig
    memory_bytes: int
    now_ms: int
    producers: tuple[tuple[int, int, int], ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    hold_offset: int = LONG_MAX
    max_hold_ms: int = 0
    bytes_per_second: float = inf

    @property
    def bytes_to_read(self) -> int:
        """Bytes that the task reads in total. The dirty part is read twice: for the key map, and to clean it."""
        return self.plan.clean_bytes + 2 * self.plan.dirty_bytes


def last_batches(producers: Iterable[ProducerEntry]) -> tuple[tuple[int, int, int], ...]:
    """The value of a task's `producers`, from the entries of the active producers."""
    return tuple((each.producer_id, each.producer_epoch, each.last_offset) for each in producers)


def aborted_in_reach(part: PartitionState) -> tuple[AbortedTransaction, ...]:
    """The value of a task's `aborted`."""
    return tuple(each for each in part.aborted_transactions() if each.last_offset >= part.log_start_offset)


@dataclass(frozen=True)
class CleanedPartition(Replacement):
    """The result of a compaction.

    first_dirty_offset: the partition is clean below this offset.
    keys: number of distinct keys in the dirty part.
    outdated, tombstones, aborted, keyless, markers: deleted records by cause; their sum is records_before -
        records_after.
    held_batches: batches past their delete horizon that keep a tombstone or marker for the registered consumers.
    held_until_ms: when the first of these batches may lose its tombstone or marker.
    took_unread_tombstones: whether a deleted tombstone may be at or after hold_offset.
    hold_offset: the value of the task.
    """

    first_dirty_offset: int
    keys: int
    records_before: int
    records_after: int
    outdated: int
    tombstones: int
    aborted: int
    keyless: int
    markers: int
    held_batches: int = 0
    held_until_ms: int = LONG_MAX
    took_unread_tombstones: bool = False
    hold_offset: int = LONG_MAX

    @property
    def tombstones_end(self) -> int:
        """All deleted tombstones are below this offset; 0 if none was deleted."""
        if not self.tombstones:
            return 0
        return (
            self.first_dirty_offset if self.took_unread_tombstones else min(self.first_dirty_offset, self.hold_offset)
        )


def clean_partition(storage: Storage, task: CleaningTask, progress: Progress = NO_PROGRESS) -> CleanedPartition:
    """Compact a partition into new files.

    Args:
        progress: receives the number of bytes that were read (bytes_to_read in total), and the number of records that
            were examined.

    Raises:
        CorruptionError: the contents of a batch do not match its header.
        StorageError: the storage refused a call, or failed. After either error, no new file remains.
    """
    throttle = Throttle(task.bytes_per_second)
    first = ChunkReader(storage, task, throttle, _UpTo(progress, task.plan.dirty_bytes))
    with outdated_records(task.memory_bytes, task.plan.first_dirty_offset, first.keyed) as outdated:
        reading = ChunkReader(storage, task, throttle, progress)
        return rewrite_groups(reading, groups_of(storage, task), outdated, CleanedTransactions(task.aborted))


class _UpTo:
    """Reports at most `size` bytes. If the keys do not fit into one map, the keys of the whole range are read, not only
    those of the dirty part. The additional bytes are not reported.
    """

    def __init__(self, progress: Progress, size: int) -> None:
        self._progress = progress
        self._left = size

    def expect(self, records: int | None = None, size: int | None = None) -> None:
        self._progress.expect(records, size)

    def advance(self, records: int = 0, size: int = 0) -> None:
        step = min(size, self._left)
        self._left -= step
        self._progress.advance(records, step)


def groups_of(storage: Storage, task: CleaningTask) -> list[tuple[Segment, ...]]:
    """The segments of a task, in groups of neighbours that become one segment each."""
    files = task.files
    sizes = {file.key: file.size for file in storage.list(files.folder)}

    def index_sizes(segment: Segment) -> tuple[int, int]:
        keys = (files.key(segment.name, suffix) for suffix in (INDEX, TIME_INDEX))
        offset_index, time_index = (sizes.get(key, 0) for key in keys)
        return offset_index, time_index

    return group_segments(task.plan.segments, task.config, task.plan.first_uncleanable_offset, index_sizes)


def rewrite_groups(
    reading: ChunkReader,
    groups: Sequence[Sequence[Segment]],
    outdated: OutdatedRecords,
    transactions: CleanedTransactions,
) -> CleanedPartition:
    """Write each group as one new segment.

    Args:
        groups: neighbouring segments, of the whole task or of a part of it.
        transactions: the state of the transactions at the end of the batches before these groups.

    Raises:
        CorruptionError, StorageError: as in clean_partition. No new file remains.
    """
    task = reading.task
    cleaning = _PartitionCleaning(reading, outdated, transactions)
    segments: list[Segment] = []
    try:
        for group in groups:
            segments.append(cleaning.merge(group))  # noqa: PERF401 (if one fails, the caller needs those already made)
    except LogError:
        delete_segments(reading.storage, task.files, segments)
        raise
    reading.throttle.settle()
    gone, tombstones, aborted, keyless, markers = cleaning.removed.tolist()
    return CleanedPartition(
        task.topic_id, task.partition, task.files, tuple(segment for group in groups for segment in group),
        tuple(segments), max(task.plan.first_dirty_offset, task.plan.first_uncleanable_offset), outdated.keys,
        cleaning.records_before, cleaning.records_after, gone, tombstones, aborted, keyless, markers,
        cleaning.held_batches, cleaning.held_until_ms, cleaning.took_unread_tombstones, task.hold_offset,
    )  # fmt: skip


class ChunkReader:
    """Reads the segments of one partition as batches of magic 2, and reports the bytes that were read."""

    def __init__(self, storage: Storage, task: CleaningTask, throttle: Throttle, progress: Progress) -> None:
        self.storage = storage
        self.task = task
        files = (file_of(task.files, segment) for segment in task.plan.segments)
        self._reads = read_ahead(storage, ((file.key, file.size) for file in files))
        self.throttle = throttle
        self.progress = progress
        self.room = Room()

    def chunks(self, segment: Segment, first_offset: int = 0) -> Iterator[Chunk]:
        """The batches of a segment. They begin with the batch that has this offset, or a little earlier."""
        file = file_of(self.task.files, segment)
        horizon_ms = legacy_horizon_ms(segment, self.task.config.delete_retention_ms)
        for chunk in read_chunks(self._reads, file, position_of(self._reads, file, first_offset)):
            self.throttle.observe(len(chunk.data))
            for part in unfoldable_parts(chunk):
                yield from as_modern(part, horizon_ms, file.key)
            self.progress.advance(size=len(chunk.data))

    def keyed(self, first_offset: int, segments: Sequence[Segment] | None = None) -> Iterator[KeyedChunk]:
        """The batches of some or all segments. They begin with the batch that has this offset, or a little earlier.

        The keys of markers and of aborted data are not used.
        """
        ranges = TransactionRanges(self.task.aborted)
        for segment in self.task.plan.segments if segments is None else segments:
            if segment.end_offset <= first_offset:
                continue
            file = file_of(self.task.files, segment).key
            for chunk in self.chunks(segment, first_offset):
                has_keys = ~(chunk.table.is_control | ranges.holding(chunk.table))
                check_crcs(chunk.data, chunk.table.select(~has_keys), file, chunk.position)
                yield KeyedChunk(chunk, has_keys, file, self.room)


class _PartitionCleaning:
    """Writes the new segments of one partition."""

    def __init__(self, reading: ChunkReader, outdated: OutdatedRecords, transactions: CleanedTransactions) -> None:
        self._storage, self._task = reading.storage, reading.task
        self._throttle, self._progress = reading.throttle, reading.progress
        self._reading = reading
        self._outdated = outdated
        self._legacy_clock_ms = legacy_clock_ms(self._task.plan.segments, self._task.plan.first_dirty_offset)
        self._buffer: ByteArray = np.empty(READ_BYTES, np.uint8)
        self._transactions = transactions
        self._producers = np.array(sorted(self._task.producers), np.int64).reshape(-1, 3)
        self._first_horizon_ms = LONG_MAX
        self.records_before = 0
        self.records_after = 0
        self.removed: Int64Array = np.zeros(CAUSES, np.int64)
        self.held_batches = 0
        self.held_until_ms = LONG_MAX
        self.took_unread_tombstones = False

    def merge(self, group: Sequence[Segment]) -> Segment:
        """Write a group of neighbouring segments as one new segment."""
        task, files = self._task, self._task.files
        base_offset = group[0].base_offset
        name = files.new_name(base_offset)
        growing = GrowingSegment(base_offset, task.now_ms, task.config.index_interval_bytes)
        self._first_horizon_ms = LONG_MAX
        with self._storage.new_file(files.new_key(name)) as log:
            for segment in group:
                file = file_of(task.files, segment).key
                for chunk in self._reading.chunks(segment):
                    self._clean_chunk(chunk, file, log, growing)
        horizon_ms = -1 if self._first_horizon_ms == LONG_MAX else self._first_horizon_ms
        return finish_segment(
            self._storage, files, name, growing, group, self._transactions.take_retained(), horizon_ms
        )

    def _clean_chunk(self, chunk: Chunk, file: str, log: NewFile, growing: GrowingSegment) -> None:
        table, task = chunk.table, self._task
        legacy = isinstance(chunk, LegacyChunk)
        codecs = chunk.codecs if isinstance(chunk, LegacyChunk) else table.codecs
        now_ms = self._legacy_clock_ms if legacy else task.now_ms  # the delete horizons are compared with this time
        treatment = self._treatment(chunk, file)
        if not legacy:
            outdated_whole = self._outdated.whole(chunk) & (table.delete_horizons < 0) & (treatment & DISCARD == 0)
            treatment[outdated_whole] |= DISCARD | ALL_OUTDATED
        judged = treatment & DISCARD == 0
        sections = _sections(chunk, judged, file, self._reading.room)
        outdated = self._outdated.of(chunk, judged, sections, file)
        most_records = int(table.records_counts.max())
        room = RecordsKept(*(np.empty(most_records, np.int64) for _ in range(3)))
        lengths = HEADER_BYTES + sections.ends - sections.starts + LONGEST_RECORD_GROWTH * table.records_counts
        out = self._room_for(int(np.maximum(lengths, table.sizes).sum()))
        done, sizes, max_timestamps, min_timestamps, horizons = (np.empty(len(table), np.int64) for _ in range(5))
        last_offsets = table.last_offsets.copy()
        removed: Int64Array = np.empty(CAUSES, np.int64)
        batches = FilteredBatches(
            table.positions, table.sizes, table.records_counts, table.base_offsets, table.base_timestamps,
            table.max_timestamps, table.attributes | codecs, treatment,
        )  # fmt: skip
        new_horizon_ms = min(task.now_ms + task.config.delete_retention_ms, LONG_MAX)
        held_now_ms = now_ms - task.max_hold_ms
        limits = FilterLimits(now_ms, new_horizon_ms, task.hold_offset, held_now_ms, task.plan.first_uncleanable_offset)
        found = FilterResult(done, sizes, max_timestamps, min_timestamps, last_offsets, horizons, removed)
        problem, batch, place, kept = filter_batches(chunk.data, batches, sections, limits, outdated, room, out, found)
        if problem != INTACT:
            position = chunk.position + int(table.positions[batch])
            raise damaged_batch(problem, place - int(sections.starts[batch]), file, position)
        records = int(table.records_counts.sum())
        self.records_before += records
        self.records_after += kept
        self.removed += removed
        self._note_holds(table, horizons, took_tombstones=removed[EXPIRED_TOMBSTONE] > 0, legacy=legacy)
        self._first_horizon_ms = min(self._first_horizon_ms, int(np.where(horizons < 0, LONG_MAX, horizons).min()))
        self._progress.advance(records)
        finished, sizes = _finish_batches(out[:place], codecs, done, sizes)
        log.write(finished.data)
        self._throttle.observe(len(finished))
        stays = done != DROPPED
        growing.append_columns(sizes[stays], last_offsets[stays], max_timestamps[stays], min_timestamps[stays])

    def _note_holds(self, table: BatchTable, pending: Int64Array, *, took_tombstones: bool, legacy: bool) -> None:
        """Count the batches whose tombstones or markers are kept after their delete horizon. Also note whether a
        deleted tombstone may be unread by a registered consumer.

        Batches made from messages of magic 0 and 1 have no delete horizon yet, so they are never counted.
        """
        task = self._task
        horizons = table.delete_horizons
        unread = table.last_offsets >= task.hold_offset
        passed = unread & (horizons >= 0) & (horizons <= task.now_ms)
        held = passed & (pending == horizons)
        if held.any():
            self.held_batches += int(held.sum())
            self.held_until_ms = min(self.held_until_ms, int(horizons[held].min()) + task.max_hold_ms)
        self.took_unread_tombstones |= bool(took_tombstones) and bool((unread if legacy else passed & ~held).any())

    def _treatment(self, chunk: Chunk, file: str) -> ByteArray:
        """How filter_batches must treat each batch: the bits of filter_kernels.py (Kafka's Cleaner.cleanInto)."""
        task, table = self._task, chunk.table
        control = table.is_control
        check_crcs(chunk.data, table.select(control), file, chunk.position)
        aborted, may_go = self._transactions.judge(chunk.data, table, file, chunk.position)
        hold_ms = np.where(table.base_offsets < task.hold_offset, 0, task.max_hold_ms)
        horizons = table.delete_horizons
        expired = may_go & (horizons >= 0) & (horizons <= task.now_ms - hold_ms)
        stays = table.last_offsets + 1 == task.plan.first_uncleanable_offset
        stays |= self._is_last_of_active_producer(table)
        bits = ((aborted | expired, DISCARD), (control, KEEP_ALL), (stays, STAYS_EMPTY), (may_go, WANTS_HORIZON))
        treatment: ByteArray = np.full(len(table), LEGACY if isinstance(chunk, LegacyChunk) else 0, np.uint8)
        for chosen, bit in bits:
            treatment[chosen] |= bit
        return treatment

    def _is_last_of_active_producer(self, table: BatchTable) -> npt.NDArray[np.bool_]:
        """Which batches contain the last sequence of an active producer, or the producer's epoch if the producer has no
        data in this epoch.
        """
        if not len(self._producers):
            return np.zeros(len(table), np.bool_)
        ids, epochs, last_offsets = self._producers.T
        places = np.minimum(np.searchsorted(ids, table.producer_ids), len(ids) - 1)
        has_last = np.where(
            last_offsets[places] >= 0,
            table.last_offsets == last_offsets[places],
            table.is_control & (table.producer_epochs == epochs[places]),
        )
        last: npt.NDArray[np.bool_] = (ids[places] == table.producer_ids) & has_last
        return last

    def _room_for(self, size: int) -> ByteArray:
        if len(self._buffer) < size:
            self._buffer = np.empty(size, np.uint8)
        return self._buffer


def _sections(chunk: Chunk, wanted: npt.NDArray[np.bool_], file: str, room: Room) -> Sections:
    """The records of the wanted batches, as intact_sections returns them. For the other batches, only the CRC is
    checked.
    """
    if wanted.all():
        return intact_sections(chunk.data, chunk.table, file, chunk.position, room)
    check_crcs(chunk.data, chunk.table.select(~wanted), file, chunk.position)
    starts, ends = np.zeros((2, len(wanted)), np.int64)
    found = intact_sections(chunk.data, chunk.table.select(wanted), file, chunk.position, room)
    starts[wanted], ends[wanted] = found.starts, found.ends
    return Sections(found.data, starts, ends)


def _finish_batches(
    out: ByteArray, codecs: Int64Array, done: Int64Array, sizes: Int64Array
) -> tuple[ByteArray, Int64Array]:
    """Compress the records that filter_batches wrote and set the CRCs. Returns the bytes and the size of each batch."""
    rebuilt = done == REBUILT
    if (codecs := np.where(rebuilt, codecs, Codec.NONE)).any():
        out, sizes = compress_again(out, sizes, codecs)
    seal_chosen_batches(out, sizes, rebuilt | (done == EMPTIED))
    return out, sizes
