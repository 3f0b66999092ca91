"""Checks the folder of one partition in a plain Kafka log directory: compares every file with the batches and with the
other files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from storage_engine.errors import CorruptionError, LogError
from storage_engine.kafka_dir.log_directory import TopicPartition
from storage_engine.log.checkpoint import LEADER_EPOCHS, PARTITION_METADATA, decode_partition_metadata
from storage_engine.log.filenames import (
    CLEANED,
    CORRUPT,
    DELETED,
    INDEX,
    INDEX_SUFFIXES,
    LOG,
    SNAPSHOT,
    SWAP,
    TRANSACTION_INDEX,
    is_offset_name,
    offset_name,
)
from storage_engine.log.intact_batches import Damage
from storage_engine.log.leader_epochs import Epochs
from storage_engine.log.producers.producer_snapshot import ProducerEntry
from storage_engine.log.producers.producer_state import Producers
from storage_engine.record.decoding import NO_END
from storage_engine.record.header import LENGTH_POSITION, LOG_OVERHEAD
from storage_engine.storage import Directory, FolderEntry, Storage
from storage_engine.verify.epoch_check import check_leader_epochs
from storage_engine.verify.findings import Finding, Kind, of_error
from storage_engine.verify.index_check import IndexChecks, IndexInterval
from storage_engine.verify.index_entries import IndexRules
from storage_engine.verify.producer_check import check_snapshot, check_transaction_index, transactions_to_index
from storage_engine.verify.segment_check import CheckedSegment, Options, SegmentFiles, check_segment

_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_BACKUP = (
    "restore the file from a backup, or run --repair, which cuts the damaged bytes out and saves them beside the log"
)
_MEANINGS = {
    CLEANED: "an interrupted cleaning left this file; a broker deletes it at its next start, and --repair deletes it,"
    " too",
    SWAP: "an interrupted cleaning left this file; a broker finishes the swap at its next start, and so does --repair",
    DELETED: "this file is marked as deleted; a broker or --repair deletes it",
}


@dataclass
class CheckedPartition:
    """The result of checking a partition's folder.

    closed: whether the log was closed cleanly.
    log_start_offset: at least the offset of the first batch.
    epochs: the leader epochs that follow from the batches.
    producers: those at the log's end.
    interval: the values of index.interval.bytes that explain the entries of its indexes.
    unread: the storage refused a read, so the rest of the result is not known.
    """

    name: TopicPartition
    closed: bool
    segments: list[CheckedSegment] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    log_start_offset: int = 0
    epochs: Epochs = ()
    producers: tuple[ProducerEntry, ...] = ()
    interval: IndexInterval = field(default_factory=IndexInterval)
    topic_id: str | None = None
    unread: bool = False

    @property
    def end_offset(self) -> int:
        """The offset after the last intact batch."""
        return self.segments[-1].end_offset if self.segments else self.log_start_offset

    @property
    def damaged(self) -> bool:
        """Whether a .log has bytes that are not an intact batch."""
        return any(segment.damages for segment in self.segments)


def check_partition(
    storage: Directory, name: TopicPartition, log_start_offset: int, options: Options, *, closed: bool
) -> CheckedPartition:
    """Check a partition's folder.

    Args:
        log_start_offset: from the checkpoint; 0 if the checkpoint does not name the partition.
        closed: whether the log was closed cleanly.
    """
    found = CheckedPartition(name, closed, log_start_offset=log_start_offset)
    try:
        entries = {entry.name: entry for entry in storage.entries(name.folder)}
        _PartitionCheck(storage, found, entries, options).run()
    except LogError as error:
        found.unread = True
        found.findings.append(of_error(error, Kind.CORRUPT))
    return found


class _PartitionCheck:
    def __init__(
        self, storage: Storage, found: CheckedPartition, entries: dict[str, FolderEntry], options: Options
    ) -> None:
        self._storage = storage
        self._found = found
        self._entries = entries
        self._options = options
        self._folder = found.name.folder

    def run(self) -> None:
        found = self._found
        bases = self._base_offsets()
        self._check_segments(bases)
        if bases and not bases[0] <= found.log_start_offset <= found.end_offset:
            found.log_start_offset = bases[0]
        self._name_damages()
        self._check_names(bases)
        runs = [run for segment in found.segments for run in segment.epochs]
        data = self._read(LEADER_EPOCHS) if LEADER_EPOCHS in self._entries else None
        wrong, found.epochs = check_leader_epochs(
            data, self._place(LEADER_EPOCHS), runs, found.log_start_offset, found.end_offset, closed=found.closed
        )
        found.findings += wrong
        self._check_metadata()

    def _base_offsets(self) -> list[int]:
        bases = []
        for name, entry in sorted(self._entries.items()):
            if name.endswith(LOG) and not entry.is_folder:
                stem = name.removesuffix(LOG)
                if is_offset_name(stem):
                    bases.append(int(stem))
                else:
                    meaning = "a broker and readers refuse this file: move the file away"
                    self._report(Kind.CORRUPT, name, 0, "a name of 20 digits: the base offset", repr(stem), meaning)
        return bases

    def _check_segments(self, bases: Sequence[int]) -> None:
        found = self._found
        producers = Producers()
        exact = not bases or bases[0] == 0
        for number, base in enumerate(bases):
            snapshot = self._checked_snapshot(base, producers.entries(), exact=exact)
            if snapshot is not None and not exact:
                producers, exact = producers.corrected(snapshot), True
            following = bases[number + 1] if number + 1 < len(bases) else NO_END
            segment = self._check_segment(base, following, producers)
            found.segments.append(segment)
            found.findings += segment.findings
            exact = exact and not segment.has_gaps and not segment.damages
            self._check_aborted(segment, exact=exact)
            if following not in (NO_END, segment.end_offset):
                exact = False
            if number and not self._has(base, SNAPSHOT) and segment.producers:
                self._missing_snapshot(base)
        if bases and found.end_offset not in bases and not found.segments[-1].damages:
            snapshot = self._checked_snapshot(found.end_offset, producers.entries(), exact=exact)
            if not self._has(found.end_offset, SNAPSHOT) and len(producers):
                self._missing_snapshot(found.end_offset)
        found.producers = producers.entries()
        self._find_interval()

    def _find_interval(self) -> None:
        found = self._found
        for segment in found.segments:
            if segment.interval is None:
                continue
            both = found.interval.both(segment.interval)
            if not both.is_possible:
                self._report(
                    Kind.INDEX, offset_name(segment.files.base_offset) + INDEX, 0,
                    "entries that fit the same index.interval.bytes as the entries of older segments",
                    "other entries",
                    "the entries are correct; the setting was changed, a broker was restarted, or entries were lost",
                    is_note=True,
                )  # fmt: skip
                return
            found.interval = both

    def _check_segment(self, base: int, following: int, producers: Producers) -> CheckedSegment:
        stem = f"{self._folder}/{offset_name(base)}"
        size = self._entries[offset_name(base) + LOG].size
        files = SegmentFiles(stem, self._place(offset_name(base)), base, size, following)
        closed = self._found.closed
        newest = following == NO_END
        absent = Finding(
            Kind.INDEX, "", 0, "a file", "none",
            "--repair derives this file; a broker would treat a missing .timeindex as empty" if closed
            else "a broker derives this file at its next start",
            is_note=not closed,
        )  # fmt: skip
        rules = IndexRules(closed=closed or not newest)
        indexes = IndexChecks.read(self._storage, files.stem, files.shown, base, rules, absent)
        return check_segment(self._storage, files, indexes, producers, self._options)

    def _check_aborted(self, segment: CheckedSegment, *, exact: bool) -> None:
        name = offset_name(segment.files.base_offset) + TRANSACTION_INDEX
        data = self._read(name) if name in self._entries else None
        # A compaction drops the entries of aborted transactions below the log start, as Kafka's does.
        start = self._found.log_start_offset
        segment.recordless |= {each for each in segment.aborted if each.last_offset < start}
        if data is None and segment.recordless.issuperset(segment.aborted):
            segment.aborted = ()
            return
        # The contents of damaged batches are unknown: an entry up to the next segment's base offset may belong to them.
        end = segment.files.following if segment.damages else segment.end_offset
        base = segment.files.base_offset
        self._found.findings += check_transaction_index(
            data, self._place(name), segment.aborted, segment.recordless, base, end, exact=exact
        )
        segment.aborted = transactions_to_index(data, segment.aborted, base, end, exact=exact)

    def _checked_snapshot(
        self, offset: int, derived: tuple[ProducerEntry, ...], *, exact: bool
    ) -> tuple[ProducerEntry, ...] | None:
        name = offset_name(offset) + SNAPSHOT
        if name not in self._entries:
            return None
        wrong, entries = check_snapshot(self._read(name), self._place(name), offset, derived, exact=exact)
        self._found.findings += wrong
        return entries

    def _missing_snapshot(self, offset: int) -> None:
        self._report(
            Kind.SNAPSHOT, offset_name(offset) + SNAPSHOT, 0, "a file", "none",
            "a broker must read the log from an older snapshot to know the producers; --repair derives this file",
            is_note=not self._found.closed,
        )  # fmt: skip

    def _name_damages(self) -> None:
        """Report the damaged parts. Torn tails and corruption can be distinguished only after all segments are read."""
        with_batches = [number for number, segment in enumerate(self._found.segments) if segment.batches]
        newest = with_batches[-1] if with_batches else 0
        for number, segment in enumerate(self._found.segments):
            for damage in segment.damages:
                at_end = number >= newest and damage.end == segment.files.size
                torn = at_end and (not self._found.closed or self._is_cut_off(segment, damage))
                self._found.findings.append(damage_finding(segment, damage, torn=torn, closed=self._found.closed))

    def _is_cut_off(self, segment: CheckedSegment, damage: Damage) -> bool:
        """Whether a damaged end is the beginning of a batch, or zeros, but not a whole batch with changed bytes."""
        head = self._storage.read(segment.files.stem + LOG, damage.position, LOG_OVERHEAD)
        length = int.from_bytes(head[LENGTH_POSITION:], "big", signed=True)
        return len(head) < LOG_OVERHEAD or not any(head) or LOG_OVERHEAD + length > damage.size

    def _check_names(self, bases: Sequence[int]) -> None:
        """Report unknown files and folders, and those that an interrupted step left."""
        known = set(bases)
        for name, entry in sorted(self._entries.items()):
            stem, _, suffix = name.partition(".")
            suffix = "." + suffix
            ending = next((each for each in _MEANINGS if name.endswith(each)), None)
            if entry.is_folder:
                self._note(name, "files only", "a folder", "a broker ignores this folder")
            elif name in (LEADER_EPOCHS, PARTITION_METADATA) or name.endswith(LOG):
                continue
            elif ending is not None:
                self._report(Kind.LEFT_OVER, name, 0, "no such file", f"a {ending} file", _MEANINGS[ending])
            elif not is_offset_name(stem):
                self._note(name, "only Kafka's files", "another file", "a broker ignores this file")
            elif suffix in INDEX_SUFFIXES:
                if int(stem) not in known:
                    meaning = "this file has no meaning without its .log; --repair deletes this file, as a broker does"
                    self._report(
                        Kind.LEFT_OVER,
                        name,
                        0,
                        "a .log of the same name",
                        "none",
                        meaning,
                        is_note=not self._found.closed,
                    )
            elif suffix == SNAPSHOT:
                if int(stem) not in known | {self._found.end_offset}:
                    self._stray_snapshot(name, int(stem))
            elif suffix.endswith(CORRUPT):
                self._note(
                    name,
                    "no such file",
                    f"{entry.size} bytes that were cut out",
                    "delete this file when it is no longer needed",
                )
            else:
                self._note(name, "only Kafka's files", "another file", "a broker ignores this file")

    def _stray_snapshot(self, name: str, offset: int) -> None:
        wrong, _ = check_snapshot(self._read(name), self._place(name), offset, (), exact=False)
        self._found.findings += wrong
        if not wrong:
            self._note(
                name, "an offset at which a segment or the log ends", "another offset",
                "retention or cleaning deleted the segment at this offset; a broker deletes this file at its next"
                " start",
            )  # fmt: skip

    def _check_metadata(self) -> None:
        if PARTITION_METADATA not in self._entries:
            self._report(
                Kind.METADATA, PARTITION_METADATA, 0, "a file", "none", "a broker sets this folder aside as a stray",
                is_note=True,
            )  # fmt: skip
            return
        place = self._place(PARTITION_METADATA)
        try:
            topic_id = decode_partition_metadata(self._read(PARTITION_METADATA), place)
        except CorruptionError as error:
            self._found.findings.append(
                of_error(error, Kind.METADATA, "copy this file from another partition of the topic")
            )
            return
        if _TOPIC_ID.fullmatch(topic_id):
            self._found.topic_id = topic_id
        else:
            found = f"{len(topic_id)} characters that are not an id"
            meaning = "copy this file from another partition of the topic"
            self._report(Kind.METADATA, PARTITION_METADATA, 0, "an id of 22 base64url characters", found, meaning)

    def _has(self, base: int, suffix: str) -> bool:
        return offset_name(base) + suffix in self._entries

    def _read(self, name: str) -> bytes:
        return self._storage.read(f"{self._folder}/{name}")

    def _place(self, name: str) -> str:
        return f"{self._storage.uri}/{self._folder}/{name}"

    def _report(
        self, kind: Kind, name: str, position: int, expected: str, found: str, meaning: str, *, is_note: bool = False
    ) -> None:
        self._found.findings.append(Finding(kind, self._place(name), position, expected, found, meaning, is_note))

    def _note(self, name: str, expected: str, found: str, meaning: str) -> None:
        self._report(Kind.LEFT_OVER, name, 0, expected, found, meaning, is_note=True)


def damage_finding(segment: CheckedSegment, damage: Damage, *, torn: bool, closed: bool) -> Finding:
    """The finding for bytes of a .log that are not an intact batch."""
    expected, _, found = damage.problem.removeprefix("expected ").partition(", found ")
    if not torn:
        meaning = f"these {damage.size} bytes are lost, but the batches after them are not; {_BACKUP}"
    elif closed:
        meaning = f"the log was closed cleanly, so its end was changed afterwards; {_BACKUP}"
    else:
        meaning = (
            f"a crash leaves such a tail (here {damage.size} bytes); a broker cuts the tail off, and so does --repair,"
            " which also saves its bytes"
        )
    return Finding(
        Kind.TORN if torn else Kind.CORRUPT, segment.files.shown + LOG, damage.position, expected, found, meaning
    )
