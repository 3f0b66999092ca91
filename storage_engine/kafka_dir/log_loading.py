"""Opens the log of one partition in a plain Kafka log directory (Kafka's LogLoader), and recovers its intact batches.

    1. An interrupted swap is undone or finished, and files that were marked as deleted are removed
       (kafka_dir.segment_swap).
    2. Indexes without a .log are removed. If such an index belongs to a gap between two segments, the report has the gap.
       The report also has each empty .log before the newest whose indexes have entries (kafka_dir.recovery_report).
    3. A segment is trusted if two conditions are met. First, its indexes are plausible (kafka_dir.trusted_segments).
       Second, the segment is below the recovery point, or the last stop was orderly. All other segments are read, and
       their indexes are rebuilt.
    4. After a crash, the segment with the recovery point and all later segments are read. Every CRC and offset is
       checked. Indexes, leader epochs, producers and their snapshots are rebuilt.
    5. The producers are derived from the newest valid snapshot, and from the batches after the snapshot
       (kafka_dir.producers_at).

Damaged bytes are cut out, but never lost (kafka_dir.damage). Each cut is saved beside the log in a file
<base>.<position>.corrupt. The report names these files. After a crash, a torn tail is expected: damage after all
intact batches. Damage before intact batches is not expected. Kafka would cut the log off at this damage, and delete
all later segments. Lakelog cuts out only the damaged bytes and keeps everything after them. The cut leaves a gap in
the offsets, as compaction does. With the option `truncates`, Lakelog cuts the log off as Kafka does, and saves only
the rest of the damaged segment.

Every step can be interrupted; the next load repeats the step. Only one thread may load a log, and the log's directory
must be locked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from storage_engine.config import LONG_MAX, TopicConfig
from storage_engine.errors import CorruptionError, NotFoundError
from storage_engine.kafka_dir.damage import DamagedParts
from storage_engine.kafka_dir.log_files import LogFiles
from storage_engine.kafka_dir.producers_at import KnownProducers, Replayed, replay_around_damage
from storage_engine.kafka_dir.recovery_report import (
    CutReason,
    RecoveryReport,
    emptied_segments,
    missing_segments,
    stray_bases,
)
from storage_engine.kafka_dir.segment_swap import settle_swaps
from storage_engine.kafka_dir.trusted_segments import FoundSegment, TrustedSegments
from storage_engine.log.checkpoint import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    decode_leader_epochs,
    decode_partition_metadata,
    encode_leader_epochs,
    encode_partition_metadata,
)
from storage_engine.log.filenames import CLEANED, DELETED, INDEX, LOG, SNAPSHOT, SWAP, TIME_INDEX, offset_name
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.log.intact_batches import Damage, DamagedLog
from storage_engine.log.leader_epochs import Epochs, cut_end, cut_start, with_batches
from storage_engine.log.partition_state import LeaderEpoch, Segment
from storage_engine.log.producers.producer_snapshot import encode_snapshot
from storage_engine.log.producers.producer_state import EndedTransaction, Producers, aborted_among, active_producers
from storage_engine.record.batch import BatchTable
from storage_engine.storage import Directory


class LoadedLog(NamedTuple):
    """The log of a partition after loading.

    closed: all segments but the newest.
    active: the newest segment, with its indexes.
    aborted: the entries of the newest segment's .txnindex.
    active_modified_ms: the time of the last modification of the newest segment's .log.
    log_start_offset: records below it are not read.
    recovery_point: the log is known to be durable below this offset.
    leader_epochs: each epoch with its first offset.
    producers: the producers at the log's end.
    replicated_producers: the producers at the high watermark; None if the log does not end above it.
    report: what loading found and repaired.
    """

    closed: tuple[Segment, ...]
    active: GrowingSegment
    aborted: tuple[AbortedTransaction, ...]
    active_modified_ms: int
    log_start_offset: int
    recovery_point: int
    leader_epochs: Epochs
    producers: Producers
    replicated_producers: Producers | None
    report: RecoveryReport


@dataclass(frozen=True)
class LoadOptions:
    """The options of load_log.

    now_ms: the current time.
    clean: whether the log was closed cleanly.
    recovery_point: from the checkpoint; 0 if the checkpoint does not name the log.
    log_start_offset: from the checkpoint; 0 if the checkpoint does not name the log.
    producer_expiration_ms: producers without a batch for this time are dropped.
    truncates: whether, after a crash, the log ends at the first damaged byte, as in Kafka.
    high_watermark: another leader can replace the records at and above it.
    """

    now_ms: int
    clean: bool = False
    recovery_point: int = 0
    log_start_offset: int = 0
    producer_expiration_ms: int = 86_400_000
    truncates: bool = False
    high_watermark: int = LONG_MAX


def load_log(storage: Directory, folder: str, config: TopicConfig, options: LoadOptions) -> LoadedLog:
    """Load the log in a folder and repair it. A missing folder is created.

    Raises:
        CorruptionError: the name of a .log is not an offset, or a .log is larger than index positions can express.
        StorageError: the storage refused or failed.
    """
    storage.make_folder(folder)
    entries = storage.entries(folder)
    stray = stray_bases({entry.name for entry in entries})
    settled: list[str] = []
    if any(entry.name.endswith((CLEANED, SWAP, DELETED)) for entry in entries):
        settled = settle_swaps(storage, folder)
        entries = storage.entries(folder)
    files = LogFiles(storage, folder, entries, options.now_ms)
    files.report.removed += settled
    files.remove_stray_indexes()
    return _Loading(files, stray, config, options).load()


def settle_topic_id(storage: Directory, folder: str, topic_id: str | None) -> str | None:
    """The topic id in partition.metadata. If this file is missing and the id is known, the file is written."""
    key = f"{folder}/{PARTITION_METADATA}"
    place = f"{storage.uri}/{key}"
    try:
        found = decode_partition_metadata(storage.read(key), place)
    except NotFoundError:
        if topic_id is not None:
            storage.replace(key, encode_partition_metadata(topic_id))
        return topic_id
    if topic_id is not None and found != topic_id:
        raise CorruptionError(
            place, 0, f"topic id {topic_id}", found,
            "The folder belongs to another topic of the same name: move the folder out of this directory.",
        )  # fmt: skip
    return found


class _Loading:
    """One load of a log."""

    def __init__(self, files: LogFiles, stray: Sequence[int], config: TopicConfig, options: LoadOptions) -> None:
        self._files = files
        self._stray = stray
        self._config = config
        self._options = options
        self._known = KnownProducers(files, options.now_ms, options.producer_expiration_ms)
        self._trusted = TrustedSegments(files, self._known, config.index_interval_bytes, options.log_start_offset)
        self._damaged = DamagedParts(files)
        self._segments: dict[int, Segment] = {}
        self._newest: FoundSegment | None = None
        self._epochs: Epochs = ()
        self._truncated = False

    def load(self) -> LoadedLog:
        files, options = self._files, self._options
        epochs = self._checkpointed_epochs()
        self._epochs = epochs or ()
        emptied = list(emptied_segments(files.storage, files.folder, files.entries))
        producers = self._load_segments(read_all=epochs is None)
        end = self._newest.growing.end_offset if self._newest else options.log_start_offset
        start = max(options.log_start_offset, files.bases[0] if files.bases else 0)
        if end < start:
            # Records below the log start were deleted on purpose. Records above it were lost before they were durable.
            for base in files.bases:
                files.remove_segment(base)
            files.bases, self._newest = [], None
            producers, end = Producers(), start
        if self._newest is None:
            files.bases = [start]
            self._newest = FoundSegment(GrowingSegment(start, 0, self._config.index_interval_bytes), ())
        if not options.clean:
            # As in Kafka, a producer that has expired does not return by the recovery of its batches.
            entries = active_producers(producers.entries(), options.now_ms, options.producer_expiration_ms)
            producers = Producers(entries)
        missing = missing_segments(files.storage, files.folder, files.entries, self._stray, start)
        (files.report.doubtful if self._config.compact else files.report.lost).extend(missing)
        files.report.lost += [each for each in emptied if each.end_offset > start]
        self._known.remove_stray_snapshots(end)
        kept_epochs = cut_start(cut_end(self._epochs, end), start)
        if kept_epochs != epochs:
            files.storage.replace(f"{files.folder}/{LEADER_EPOCHS}", encode_leader_epochs(kept_epochs))
        entry = files.entries.get(offset_name(files.bases[-1]) + LOG)
        return LoadedLog(
            closed=tuple(self._segments[base] for base in files.bases[:-1]),
            active=self._newest.growing.resumed(options.now_ms, 0),
            aborted=self._newest.aborted,
            active_modified_ms=entry.modified_ms if entry else options.now_ms,
            log_start_offset=start,
            recovery_point=end if options.clean else min(options.recovery_point, end),
            leader_epochs=kept_epochs,
            producers=producers,
            replicated_producers=self._known.at(options.high_watermark) if options.high_watermark < end else None,
            report=files.report,
        )

    def _load_segments(self, *, read_all: bool) -> Producers:
        """Trust or recover each segment. Returns the producers at the log's end."""
        files, options = self._files, self._options
        first = len(files.bases)
        if read_all or not files.bases:
            first = 0
        elif not options.clean:
            first = max(0, bisect_right(files.bases, options.recovery_point) - 1)
        number = 0
        while number < min(first, len(files.bases) - 1):
            base = files.bases[number]
            segment = self._trusted.closed(number)
            if segment is not None:
                self._segments[base] = segment
            else:
                self._recover(number, self._known.at(base))
            number += 1
        if number == len(files.bases) - 1 and first > number:
            self._newest = self._trusted.newest()
            if self._newest is not None:
                return self._known.at(self._newest.growing.end_offset)
        if not files.bases:
            return Producers()
        return self._recover_from(number)

    def _recover_from(self, number: int) -> Producers:
        """Read this segment and all later segments. Returns the producers at the log's end."""
        files, options = self._files, self._options
        producers = self._known.at(files.bases[number])
        for snapshot in files.snapshot_offsets():
            if snapshot > files.bases[number]:
                files.remove(offset_name(snapshot) + SNAPSHOT)
        intact_number = number
        intact: FoundSegment | None = None
        while number < len(files.bases):
            producers, found = self._recover(number, producers, truncates=options.truncates and not options.clean)
            if found.growing.size or intact is None:
                intact_number, intact = number, found
            self._newest = found
            number += 1
            if self._truncated:
                for base in files.bases[number:]:
                    files.remove_segment(base)
                del files.bases[number:]
        if intact is not None:
            is_whole = intact.growing.end_offset >= options.recovery_point
            zeros_torn = is_whole and (options.recovery_point > 0 or not options.clean)
            if self._damaged.settle_tail(intact_number, torn=is_whole and not options.clean, zeros_torn=zeros_torn):
                self._newest = intact
        return producers

    def _recover(self, number: int, producers: Producers, *, truncates: bool = False) -> tuple[Producers, FoundSegment]:
        """Read a segment, cut out its damaged bytes, and derive its other files.

        Args:
            truncates: whether everything from the first damaged byte on is cut out.

        Returns:
            The producers at the segment's end, and the contents of the segment.
        """
        files = self._files
        base = files.bases[number]
        if number:
            files.write(offset_name(base) + SNAPSHOT, encode_snapshot(producers.entries()))
        log = DamagedLog(files.storage, files.key(base), base, files.size(base), files.following(number))
        growing = GrowingSegment(base, 0, self._config.index_interval_bytes)
        ended: list[EndedTransaction] = []
        markers: set[tuple[int, int]] = set()
        kept: list[tuple[int, int]] = []
        damages: list[Damage] = []
        for position, part in self._parts(log, number, producers, truncates=truncates):
            producers = part.producers
            ended += part.ended
            if len(part.table):
                growing.append_all(part.table)
                kept.append((position + int(part.table.positions[0]), position + part.table.end))
                markers |= _markers(part.table)
                self._epochs = with_batches(self._epochs, part.table)
            damages += part.damages
        growing.seal()
        damages = sorted(damages + log.damages)
        if self._truncated:
            damages = [Damage(damages[0].position, files.size(base) - damages[0].position, damages[0].problem)]
            self._damaged.cut_out(
                number, damages, kept, CutReason.TRUNCATED, self._truncated_rest(number, growing.end_offset)
            )
        elif damages:
            self._damaged.cut_out(number, damages, kept)
        aborted = self._with_indexed(base, aborted_among(ended), markers)
        files.note_size(offset_name(base) + LOG, growing.size)
        files.write(offset_name(base) + INDEX, growing.offset_index_bytes())
        files.write(offset_name(base) + TIME_INDEX, growing.time_index_bytes())
        self._trusted.write_aborted(base, aborted)
        self._segments[base] = growing.segment(offset_name(base), files.modified_ms(base), aborted)
        files.report.recovered.append(base)
        return producers, FoundSegment(growing, aborted)

    def _truncated_rest(self, number: int, end_offset: int) -> str:
        """What a truncation of a segment at this offset also deletes: the later segments, and the offsets of all intact
        batches after the damage."""
        files = self._files
        last = end_offset - 1
        for later, base in enumerate(files.bases[number:], number):
            log = DamagedLog(files.storage, files.key(base), base, files.size(base), files.following(later))
            for chunk in log.chunks():
                last = max([last, *chunk.table.last_offsets.tolist()])
        gone = f": the offsets {end_offset} to {last} are gone" if last >= end_offset else ""
        deleted = ", ".join(f"{offset_name(base)}{LOG}" for base in files.bases[number + 1 :])
        segments = f" These later segments were deleted: {deleted}." if deleted else ""
        return f"The log now ends at offset {end_offset}{gone}.{segments}"

    def _parts(
        self, log: DamagedLog, number: int, producers: Producers, *, truncates: bool
    ) -> Iterator[tuple[int, Replayed]]:
        """The intact parts of a segment, each with the position of its chunk. If the log is truncated, the parts end at
        the first damage that intact batches follow.
        """
        files = self._files
        for chunk in log.chunks():
            if truncates and log.damages:
                self._truncated = True
                return
            for part in replay_around_damage(producers, chunk, log.key):
                producers = part.producers
                yield chunk.position, part
                if truncates and part.damages:
                    self._truncated = True
                    return
        self._truncated = (
            truncates and bool(log.damages) and any(files.size(base) for base in files.bases[number + 1 :])
        )

    def _with_indexed(
        self, base: int, derived: Sequence[AbortedTransaction], markers: set[tuple[int, int]]
    ) -> tuple[AbortedTransaction, ...]:
        """The derived transactions, and those that only the .txnindex has, because compaction left only their markers."""
        indexed = self._trusted.indexed_aborted(base) or ()
        known = {each.last_offset: each for each in indexed if (each.producer_id, each.last_offset) in markers}
        known |= {each.last_offset: each for each in derived}
        return tuple(known[offset] for offset in sorted(known))

    def _checkpointed_epochs(self) -> Epochs | None:
        """The contents of the leader-epoch-checkpoint; None if it is missing or damaged."""
        key = f"{self._files.folder}/{LEADER_EPOCHS}"
        try:
            return tuple(LeaderEpoch(*entry) for entry in decode_leader_epochs(self._files.storage.read(key), key))
        except (NotFoundError, CorruptionError):
            return None


def _markers(table: BatchTable) -> set[tuple[int, int]]:
    """(producer id, offset) of each control batch."""
    control = table.select(table.is_control)
    return set(zip(control.producer_ids.tolist(), control.last_offsets.tolist(), strict=True))
