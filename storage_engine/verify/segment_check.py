"""Checks one segment in one pass over its .log. The pass covers batches, offsets, leader epochs, both indexes, and
the transactions of producers.

Damage can be anywhere in a .log (log.intact_batches), and the check continues after a bad batch. By default, the check
covers every header and every byte that a CRC protects. With `deep`, each record is also decompressed and decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from storage_engine.errors import BatchTooLargeError, CorruptionError
from storage_engine.log.filenames import INDEX, LOG
from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.log.intact_batches import Damage, DamagedLog
from storage_engine.log.producers.producer_snapshot import ProducerEntry
from storage_engine.log.producers.producer_state import Producers, aborted_among
from storage_engine.log.segment_reader import Chunk
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.record.batch import NO_SMALLEST, BatchTable
from storage_engine.record.compression import Codec
from storage_engine.record.decoding import decode_parts
from storage_engine.record.header import MAGIC, MAGIC_POSITION
from storage_engine.storage import Storage
from storage_engine.verify.findings import Finding, Kind, of_error
from storage_engine.verify.index_check import IndexChecks, IndexInterval

_PART_BYTES = 32 * 1024**2
_LOST = "the batch is lost, but the batches after it are not"


@dataclass(frozen=True)
class Options:
    """Options of a check.

    deep: decode every record.
    progress: gets the number of bytes of each .log that is read.
    """

    deep: bool = False
    progress: Progress = NO_PROGRESS


class SegmentFiles(NamedTuple):
    """The place and the bounds of a segment.

    stem: storage key without a suffix.
    shown: the stem as findings name it.
    size: the number of bytes at the start of the .log that belong to the segment.
    following: the base offset of the next segment, or a bound above every offset.
    """

    stem: str
    shown: str
    base_offset: int
    size: int
    following: int


class EpochRun(NamedTuple):
    """Neighbouring batches of one leader epoch.

    start_offset, last_offset: base offsets of the first and the last batch.
    file, position: the place of the first batch.
    """

    epoch: int
    start_offset: int
    last_offset: int
    batches: int
    file: str
    position: int

    def with_more(self, later: EpochRun) -> EpochRun:
        """This run joined with the next run of the same epoch."""
        return self._replace(last_offset=later.last_offset, batches=self.batches + later.batches)


@dataclass
class CheckedSegment:
    """The result of checking a segment.

    smallest_timestamp: the smallest timestamp of the decoded records; NO_SMALLEST if no record was decoded.
    largest_lateness_ms: the largest lateness of the decoded records, as defined in Segment.
    damages: bytes of the .log that are not an intact batch; the caller reports them.
    has_gaps: offsets or records are missing, perhaps because of compaction.
    aborted: the correct entries of its .txnindex.
    recordless: the aborted transactions that the .txnindex need not have: those without a remaining record; in a Kafka
        directory, also those below the log start.
    producers: the producers at the segment's base offset.
    interval: the values that explain its .index; None if it has none.
    """

    files: SegmentFiles
    end_offset: int
    batches: int = 0
    largest_timestamp: int = -1
    largest_timestamp_offset: int = 0
    smallest_timestamp: int = NO_SMALLEST
    largest_lateness_ms: int = 0
    damages: list[Damage] = field(default_factory=list)
    has_gaps: bool = False
    epochs: list[EpochRun] = field(default_factory=list)
    aborted: tuple[AbortedTransaction, ...] = ()
    recordless: set[AbortedTransaction] = field(default_factory=set)
    producers: tuple[ProducerEntry, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    interval: IndexInterval | None = None


def check_segment(
    storage: Storage,
    files: SegmentFiles,
    indexes: IndexChecks,
    producers: Producers,
    options: Options,
    shown: IndexChecks | None = None,
) -> CheckedSegment:
    """Read a segment and check its indexes against it.

    Args:
        indexes: the indexes of the segment.
        producers: the producers at the base offset. The check updates them to the end of the segment.
        shown: other indexes of the same .log, which are checked in the same pass.

    Raises:
        StorageError: the .log cannot be read.
    """
    found = CheckedSegment(files, files.base_offset, producers=producers.entries())
    log = DamagedLog(storage, files.stem + LOG, files.base_offset, files.size, files.following)
    aborted: list[AbortedTransaction] = []
    seen, damages = 0, 0
    for chunk in log.chunks():
        table = chunk.table
        behind_damage = len(log.damages) > damages
        damages = len(log.damages)
        largest_before, _ = indexes.times.largest
        _check_headers(found, chunk)
        _note_gaps(found, table)
        _add_epochs(found, chunk)
        for checks in (indexes,) if shown is None else (indexes, shown):
            checks.take(table, chunk.position, behind_damage=behind_damage)
        try:
            ended = producers.replay(chunk.data, table, files.shown + LOG, chunk.position)
            aborted += aborted_among(ended)
            found.recordless |= {each.transaction for each in ended if not each.has_records}
        except CorruptionError as error:
            found.findings.append(of_error(error, Kind.CORRUPT, "a broker would not have accepted this batch"))
            found.has_gaps = True  # its effect on the producers is unknown
        if options.deep:
            found.findings += _decoding_problems(found, chunk, largest_before, files.shown + LOG)
        found.batches += len(table)
        found.end_offset = int(table.last_offsets[-1]) + 1
        options.progress.advance(size=chunk.position + table.end - seen)
        seen = chunk.position + table.end
    options.progress.advance(size=files.size - seen)
    found.damages = log.damages
    found.aborted = tuple(aborted)
    found.largest_timestamp, found.largest_timestamp_offset = indexes.times.largest
    wrong = indexes.findings(files.size, found.end_offset, log.damages)
    complete = not any(finding.file == files.shown + INDEX for finding in wrong)
    if INDEX not in indexes.missing:
        found.interval = indexes.offsets.interval(complete=complete and not log.damages)
    found.findings += wrong
    return found


def _check_headers(found: CheckedSegment, chunk: Chunk) -> None:
    """Check header fields for values that no writer uses. The fields match the CRC, except leader epochs, which no CRC
    covers.
    """
    table = chunk.table
    spans = table.last_offsets - table.base_offsets + 1
    of_now = chunk.data[table.positions + MAGIC_POSITION] == MAGIC
    for wrong, expected, column in (
        (table.codecs > max(Codec), f"a codec from 0 to {max(Codec)}", table.codecs),
        (of_now & (table.records_counts > spans), "no more records than offsets", table.records_counts),
        (table.is_control & (table.records_counts > 1), "at most one control record", table.records_counts),
        (table.leader_epochs < -1, "a leader epoch of at least -1", table.leader_epochs),
    ):
        for row in np.flatnonzero(wrong).tolist():
            found.findings.append(
                Finding(
                    Kind.CORRUPT, found.files.shown + LOG, chunk.position + int(table.positions[row]), expected,
                    str(column[row]), "no writer writes such a batch; readers refuse the batch or return wrong records",
                )
            )  # fmt: skip


def _note_gaps(found: CheckedSegment, table: BatchTable) -> None:
    if not found.has_gaps:
        expected = np.concatenate(([found.end_offset], table.last_offsets[:-1] + 1))
        spans = table.last_offsets - table.base_offsets + 1
        missing = (table.base_offsets != expected) | ((table.records_counts >= 0) & (table.records_counts < spans))
        found.has_gaps = bool(missing.any())


def _add_epochs(found: CheckedSegment, chunk: Chunk) -> None:
    table = chunk.table
    epochs = table.leader_epochs
    starts = np.flatnonzero(np.diff(epochs, prepend=epochs[0] - 1))
    ends = np.append(starts[1:], len(epochs))
    for row, end in zip(starts.tolist(), ends.tolist(), strict=True):
        first, last = int(table.base_offsets[row]), int(table.base_offsets[end - 1])
        position = chunk.position + int(table.positions[row])
        run = EpochRun(int(epochs[row]), first, last, end - row, found.files.shown + LOG, position)
        if found.epochs and found.epochs[-1].epoch == run.epoch:
            found.epochs[-1] = found.epochs[-1].with_more(run)
        else:
            found.epochs.append(run)


def _decoding_problems(found: CheckedSegment, chunk: Chunk, largest_before: int, file: str) -> Iterator[Finding]:
    """Decode all records. A batch that cannot be decoded gets a finding, and decoding continues after it.

    Args:
        largest_before: the largest timestamp of the batches before the chunk.
    """
    table = chunk.table.select(chunk.table.records_counts != 0)
    while len(table):
        problem: CorruptionError | None = None
        done = 0
        try:
            for records in decode_parts(chunk.data, table, file, chunk.position, control=True, part_bytes=_PART_BYTES):
                offsets, timestamps = (records[name].to_numpy() for name in ("offset", "timestamp"))
                _note_times(found, chunk.table, largest_before, offsets, timestamps)
                last = int(np.searchsorted(table.last_offsets, offsets[-1])) + 1 if len(offsets) else done
                yield from _misplaced(table.select(slice(done, last)), offsets, timestamps, file, chunk.position)
                done = last
        except CorruptionError as error:
            problem = error
        if problem is None:
            return
        meaning = f"the batch matches its CRC, so it was written with this error; {_LOST}"
        yield of_error(problem, Kind.CORRUPT, problem.remedy if isinstance(problem, BatchTooLargeError) else meaning)
        table = table.select(table.positions > problem.position - chunk.position)


def _note_times(
    found: CheckedSegment,
    table: BatchTable,
    largest_before: int,
    offsets: npt.NDArray[np.int64],
    timestamps: npt.NDArray[np.int64],
) -> None:
    """Note the smallest timestamp of the records, and the largest lateness of a timestamp."""
    if len(offsets):
        largest = np.maximum(np.maximum.accumulate(table.max_timestamps), largest_before)
        rows = np.minimum(np.searchsorted(table.last_offsets, offsets), len(table) - 1)
        found.smallest_timestamp = min(found.smallest_timestamp, int(timestamps.min()))
        found.largest_lateness_ms = max(found.largest_lateness_ms, int((largest[rows] - timestamps).max()))


def _misplaced(
    table: BatchTable,
    offsets: npt.NDArray[np.int64],
    timestamps: npt.NDArray[np.int64],
    file: str,
    file_position: int,
) -> Iterator[Finding]:
    """Find batches whose records are outside the header's offsets, or above the header's largest timestamp."""
    if not len(table):
        return
    ends = np.searchsorted(offsets, table.last_offsets, side="right")
    starts = np.concatenate(([0], ends[:-1]))
    some = ends > starts
    firsts = np.minimum(starts, len(offsets) - 1)
    largest = np.maximum.reduceat(timestamps, firsts)
    # The number of records in a wrapper of magic 0 or 1 is known only after it is decompressed.
    known = table.records_counts >= 0
    wrong = known & ((ends - starts != table.records_counts) | (some & (offsets[firsts] < table.base_offsets)))
    late = known & some & ~wrong & (largest != table.max_timestamps) & ~table.is_log_append_time
    for rows, expected, found in (
        (wrong, "as many records as the header says, at offsets of the batch", "other records"),
        (late, "a header with the largest timestamp of its records", "another timestamp"),
    ):
        for row in np.flatnonzero(rows).tolist():
            position = file_position + int(table.positions[row])
            yield Finding(
                Kind.CORRUPT,
                file,
                position,
                expected,
                found,
                "the batch matches its CRC, so it was written with this error",
            )
