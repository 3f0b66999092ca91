"""Opening the log of one partition in a plain Kafka log directory (Kafka's LogLoader), and what can be saved of it.

    1. an interrupted swap is undone or finished, and what was to be deleted goes (log.segment_swap)
    2. indexes without a .log go
    3. segments below the recovery point, and all of them after an orderly stop, are believed where their indexes check
       out: sizes are whole, the last entry's batch is where it says. Others are read and get new indexes
    4. after a crash the segments from the recovery point on are read: every CRC and offset is checked, indexes, leader
       epochs, producers and their snapshots are derived again
    5. producers come from the newest snapshot that fits, and from the batches behind it

What is damaged is cut out, never thrown away: its bytes stay beside the log as <base>.<position>.corrupt, and the report
names them. A torn tail, which a crash leaves behind all intact batches, is expected. Damage before intact batches is
not: Kafka cuts the log off there and deletes all later segments; here exactly the damaged bytes go and everything
behind them stays, with a gap in the offsets as compaction leaves one. `kafka_way` does as Kafka does (and still keeps
what it cuts).

Every step can be interrupted and is done again by the next load. For one thread, in a directory that is locked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from storage_engine.checkpoint import LEADER_EPOCHS, decode_leader_epochs, encode_leader_epochs
from storage_engine.config import INT_MAX, TopicConfig
from storage_engine.errors import CorruptionError, ExitStatus, NotFoundError
from storage_engine.log.filenames import (
    CLEANED,
    CORRUPT,
    DELETED,
    INDEX,
    INDEX_SUFFIXES,
    LOG,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    is_offset_name,
    offset_name,
)
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.intact_batches import Damage, DamagedLog
from storage_engine.log.leader_epochs import Epochs, cut_end, cut_start, with_batches
from storage_engine.log.offset_index import OFFSET_ENTRY, decode_offset_index
from storage_engine.log.partition_state import LeaderEpoch, Segment
from storage_engine.log.producer_snapshot import HEADER_BYTES as EMPTY_SNAPSHOT_BYTES
from storage_engine.log.producer_snapshot import decode_snapshot, encode_snapshot
from storage_engine.log.producer_state import EndedTransaction, Producers, aborted_among, active_producers
from storage_engine.log.segment_reader import (
    READ_BYTES,
    Chunk,
    SegmentFile,
    TransactionRanges,
    first_batch_timestamp,
    read_chunks,
)
from storage_engine.log.segment_swap import settle_swaps, swap_in
from storage_engine.log.time_index import TIME_ENTRY, decode_time_index
from storage_engine.log.transaction_index import (
    AbortedTransaction,
    decode_transaction_index,
    encode_transaction_index,
)
from storage_engine.record.batch import (
    HEADER_BYTES,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchTable,
    scan_header,
)
from storage_engine.record.decoding import NO_END
from storage_engine.storage import DirectoryStorage, FolderEntry, Storage


class Fate(StrEnum):
    """Why bytes were cut out of a .log."""

    TORN_TAIL = "torn tail"
    """Behind all intact batches of the log: what a crash leaves of bytes that were never durable."""
    QUARANTINED = "quarantined"
    """Intact batches lie behind them, and stayed."""
    TRUNCATED = "truncated"
    """Kafka's way: damage, and everything behind it, intact or not."""


@dataclass(frozen=True)
class Cut:
    """Bytes that recovery took out of a log.

    file: the .log. problem: what was expected and found at the position. kept_as: the file that has the bytes now,
    empty where all of them were zero.
    """

    file: str
    position: int
    size: int
    problem: str
    kept_as: str
    fate: Fate

    def __str__(self) -> str:
        kept = f"kept as {self.kept_as}" if self.kept_as else "all zero"
        return f"{self.file} at position {self.position}: {self.fate}, {self.size} bytes, {kept}; {self.problem}"

    @property
    def error(self) -> CorruptionError:
        """The same as an error."""
        expected, _, found = self.problem.removeprefix("expected ").partition(", found ")
        remedy = f"The {self.size} bytes were cut out and kept as {self.kept_as}." if self.kept_as else ""
        return CorruptionError(self.file, self.position, expected, found, remedy)


@dataclass
class RecoveryReport:
    """What loading found and did. recovered: base offsets of the segments that were read through. rebuilt, removed:
    names of files that were derived again, and of those that had no meaning any more."""

    place: str
    recovered: list[int] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)

    @property
    def losses(self) -> list[Cut]:
        """The cuts that no crash explains."""
        return [cut for cut in self.cuts if cut.fate is not Fate.TORN_TAIL]

    @property
    def exit_status(self) -> ExitStatus:
        """PARTIAL where intact or once durable bytes are no longer in the log."""
        return ExitStatus.PARTIAL if self.losses else ExitStatus.DONE


class LoadedLog(NamedTuple):
    """A partition's log as loading leaves it.

    closed: all segments but the newest. active: the newest, with its indexes. aborted: what the newest's .txnindex
    holds. recovery_point: up to where the log is known to be durable.
    """

    closed: tuple[Segment, ...]
    active: GrowingSegment
    aborted: tuple[AbortedTransaction, ...]
    active_modified_ms: int
    log_start_offset: int
    recovery_point: int
    leader_epochs: Epochs
    producers: Producers
    report: RecoveryReport


@dataclass(frozen=True)
class LoadOptions:
    """What loading has to know.

    clean: the log was closed in order. recovery_point, log_start_offset: from the checkpoints, 0 where these say
    nothing. kafka_way: cut off at the first damage and drop all later segments, as Kafka does.
    """

    now_ms: int
    clean: bool = False
    recovery_point: int = 0
    log_start_offset: int = 0
    producer_expiration_ms: int = 86_400_000
    kafka_way: bool = False


def load_log(storage: DirectoryStorage, folder: str, config: TopicConfig, options: LoadOptions) -> LoadedLog:
    """Load the log in a folder, which is created where it is missing, and mend what can be mended.

    Raises:
        CorruptionError: a .log has a name that is no offset, or more bytes than positions in an index can tell.
        StorageError: the storage refused or failed.
    """
    return _Loading(storage, folder, config, options).load()


class _Found(NamedTuple):
    """A segment's content, and how it is known: its indexes, and the entries of its .txnindex."""

    growing: GrowingSegment
    aborted: tuple[AbortedTransaction, ...]


class _TailCut(NamedTuple):
    """A cut that reaches the end of its segment; a torn tail if no intact batch lies behind it in the log."""

    number: int
    row: int


class _Replay(NamedTuple):
    """The producers behind some batches, and the transactions that end in these."""

    producers: Producers
    ended: Sequence[EndedTransaction]


class _Loading:
    def __init__(self, storage: DirectoryStorage, folder: str, config: TopicConfig, options: LoadOptions) -> None:
        self._storage = storage
        self._folder = folder
        self._config = config
        self._options = options
        self._entries: dict[str, FolderEntry] = {}
        self._bases: list[int] = []
        self._segments: dict[int, Segment] = {}
        self._newest: _Found | None = None
        self._epochs: Epochs = ()
        self._tail_cuts: list[_TailCut] = []
        self._report = RecoveryReport(folder)

    def load(self) -> LoadedLog:
        options = self._options
        self._storage.make_folder(self._folder)
        entries = self._storage.entries(self._folder)
        if any(entry.name.endswith((CLEANED, SWAP, DELETED)) for entry in entries):
            self._report.removed += settle_swaps(self._storage, self._folder)
            entries = self._storage.entries(self._folder)
        self._list(entries)
        epochs = self._checkpointed_epochs()
        self._epochs = epochs or ()
        producers = self._load_segments(read_all=epochs is None)
        end = self._newest.growing.end_offset if self._newest else options.log_start_offset
        start = max(options.log_start_offset, self._bases[0] if self._bases else 0)
        if end < start:
            # Records below the log start were given up, and those above it lost before they were durable.
            for base in self._bases:
                self._remove_segment(base)
            self._bases, self._newest = [], None
            producers, end = Producers(), start
        if self._newest is None:
            self._bases, self._newest = [start], _Found(GrowingSegment(start, 0, self._config.index_interval_bytes), ())
        self._remove_stray_snapshots(end)
        kept_epochs = cut_start(cut_end(self._epochs, end), start)
        if kept_epochs != epochs:
            self._storage.replace(f"{self._folder}/{LEADER_EPOCHS}", encode_leader_epochs(kept_epochs))
        entry = self._entries.get(offset_name(self._bases[-1]) + LOG)
        return LoadedLog(
            closed=tuple(self._segments[base] for base in self._bases[:-1]),
            active=self._newest.growing.resumed(options.now_ms, 0),
            aborted=self._newest.aborted,
            active_modified_ms=entry.modified_ms if entry else options.now_ms,
            log_start_offset=start,
            recovery_point=end if options.clean else min(options.recovery_point, end),
            leader_epochs=kept_epochs,
            producers=producers,
            report=self._report,
        )

    # What lies in the folder.

    def _list(self, entries: Sequence[FolderEntry]) -> None:
        self._entries = {entry.name: entry for entry in entries if not entry.is_folder}
        for name in sorted(name for name in self._entries if name.endswith(LOG)):
            key = f"{self._folder}/{name}"
            if not is_offset_name(name.removesuffix(LOG)):
                raise CorruptionError(
                    key, 0, "a name of 20 digits, the base offset", repr(name), "Move it away: a broker refuses it, too."
                )  # fmt: skip
            if self._entries[name].size > INT_MAX:
                raise CorruptionError(key, INT_MAX, "at most 2 GiB", f"{self._entries[name].size} bytes")
            self._bases.append(int(name.removesuffix(LOG)))
        for name in sorted(self._entries):
            stem, _, suffix = name.partition(".")
            if "." + suffix in INDEX_SUFFIXES and stem + LOG not in self._entries:
                self._remove(name)

    def _remove(self, name: str) -> None:
        self._storage.delete(f"{self._folder}/{name}")
        del self._entries[name]
        self._report.removed.append(name)

    def _remove_segment(self, base: int, *, keep_log: bool = False) -> None:
        for suffix in (*INDEX_SUFFIXES, SNAPSHOT, *(() if keep_log else (LOG,))):
            if self._has(base, suffix):
                self._remove(offset_name(base) + suffix)

    def _has(self, base: int, suffix: str) -> bool:
        return offset_name(base) + suffix in self._entries

    def _key(self, base: int, suffix: str = LOG) -> str:
        return f"{self._folder}/{offset_name(base)}{suffix}"

    def _size(self, base: int, suffix: str = LOG) -> int:
        entry = self._entries.get(offset_name(base) + suffix)
        return entry.size if entry else 0

    def _modified_ms(self, base: int) -> int:
        return self._entries[offset_name(base) + LOG].modified_ms

    def _following(self, number: int) -> int:
        return self._bases[number + 1] if number + 1 < len(self._bases) else NO_END

    # Segments.

    def _load_segments(self, *, read_all: bool) -> Producers:
        """Believe or recover each segment; returns the producers at the log's end."""
        options = self._options
        first = len(self._bases)
        if read_all or not self._bases:
            first = 0
        elif not options.clean:
            first = max(0, bisect_right(self._bases, options.recovery_point) - 1)
        number = 0
        while number < min(first, len(self._bases) - 1):
            if not self._trust(number):
                self._recover(number, self._producers_at(self._bases[number]))
            number += 1
        if number == len(self._bases) - 1 and first > number:
            self._newest = self._trusted_newest()
            if self._newest is not None:
                return self._producers_at(self._newest.growing.end_offset)
        if not self._bases:
            return Producers()
        producers = self._producers_at(self._bases[number])
        for snapshot in self._snapshot_offsets():
            if snapshot > self._bases[number]:
                self._remove(offset_name(snapshot) + SNAPSHOT)
        intact: tuple[int, _Found] | None = None
        while number < len(self._bases):
            producers, found = self._recover(number, producers)
            if found.growing.size or intact is None:
                intact = number, found
            self._newest = found
            number += 1
        if intact is not None:
            self._settle_tail(*intact)
        return producers

    def _trust(self, number: int) -> bool:
        """Take in a closed segment by its indexes, if these check out."""
        base, following = self._bases[number], self._following(number)
        times = self._largest_timestamp(base, following)
        if times is None or not self._index_checks_out(base, following):
            return False
        aborted = self._aborted(number, following)
        self._segments[base] = Segment(
            base, offset_name(base), self._size(base), following, *times, self._modified_ms(base), aborted
        )
        return True

    def _trusted_newest(self) -> _Found | None:
        """The newest segment by its indexes and by its batches behind the last entry; None where these do not fit."""
        base = self._bases[-1]
        if self._largest_timestamp(base, NO_END) is None or not self._index_checks_out(base, NO_END):
            return None
        file = SegmentFile(self._key(base, ""), base, self._size(base), NO_END)
        growing = resume_segment(self._storage, file, self._config.index_interval_bytes)
        if growing is None or (growing.size and growing.largest_timestamp_offset >= growing.end_offset):
            return None
        return _Found(growing, self._aborted(len(self._bases) - 1, growing.end_offset))

    def _index_checks_out(self, base: int, following: int) -> bool:
        """Whether the .index can be that of its .log. Readers look at the batch that an entry names themselves."""
        size, index_size = self._size(base), self._size(base, INDEX)
        if not self._has(base, INDEX) or index_size % OFFSET_ENTRY.itemsize:
            return False
        if not index_size:
            return self._needs_no_entry(base, size)
        last = self._storage.read(self._key(base, INDEX), index_size - OFFSET_ENTRY.itemsize)
        relative_offset, position = np.frombuffer(last, OFFSET_ENTRY)[0].tolist()
        return bool(0 <= relative_offset < following - base and 0 < position < size)

    def _needs_no_entry(self, base: int, size: int) -> bool:
        """Whether no batch begins behind more than index.interval.bytes."""
        interval = self._config.index_interval_bytes
        if size <= interval:
            return True
        data = self._storage.read(self._key(base), 0, interval + LOG_OVERHEAD)
        position = 0
        while position <= interval:
            length = int.from_bytes(data[position + LENGTH_POSITION : position + LOG_OVERHEAD], "big", signed=True)
            if length <= 0:
                return False
            position += LOG_OVERHEAD + length
        return position == size

    def _first_header(self, base: int) -> BatchTable:
        """The first batch's header, a table of one row or none."""
        return scan_header(np.frombuffer(self._storage.read(self._key(base), 0, HEADER_BYTES), np.uint8))

    def _largest_timestamp(self, base: int, following: int) -> tuple[int, int] | None:
        """What the .timeindex says of it, and of its offset; None where it cannot be that of its .log."""
        index_size = self._size(base, TIME_INDEX)
        if not self._has(base, TIME_INDEX) or index_size % TIME_ENTRY.itemsize:
            return None
        if not index_size:
            has_timestamp = (self._first_header(base).max_timestamps >= 0).any()
            return None if has_timestamp else (NO_TIMESTAMP, base)
        last = self._storage.read(self._key(base, TIME_INDEX), index_size - TIME_ENTRY.itemsize)
        timestamp, relative_offset = np.frombuffer(last, TIME_ENTRY)[0].tolist()
        # A file that was preallocated and not trimmed ends in zeros.
        trimmed = index_size == TIME_ENTRY.itemsize or (timestamp, relative_offset) != (0, 0)
        sane = trimmed and timestamp >= 0 and 0 <= relative_offset < following - base
        return (timestamp, base + relative_offset) if sane else None

    def _aborted(self, number: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """What the .txnindex says; derived again where it is damaged, or missing though it may have had entries."""
        base = self._bases[number]
        indexed = self._indexed_aborted(base)
        if indexed is not None and not self._lacks_transaction_index(base, end_offset):
            return indexed
        ended = self._replay(number, self._producers_at(base), base, NO_END).ended
        # A transaction of which compaction left the marker only has no entry, though a snapshot can tell of it; neither has
        # one that ended below the log start.
        left = [
            each
            for each in ended
            if each.transaction.last_offset >= self._options.log_start_offset
            and (each.has_records or self._has_records(each.transaction))
        ]
        self._write_aborted(base, aborted := aborted_among(left))
        return aborted

    def _has_records(self, transaction: AbortedTransaction) -> bool:
        """Whether the log has a record of a transaction."""
        first, end = transaction.first_offset, transaction.last_offset
        ranges = TransactionRanges([transaction])
        for number, base in enumerate(self._bases):
            following = self._following(number)
            if following <= first or base >= end:
                continue
            for chunk in DamagedLog(self._storage, self._key(base), base, self._size(base), following).chunks():
                table = chunk.table.select((chunk.table.base_offsets >= first) & (chunk.table.base_offsets < end))
                if (ranges.holding(table) & (table.records_counts > 0)).any():
                    return True
        return False

    def _write_aborted(self, base: int, aborted: Sequence[AbortedTransaction]) -> None:
        if aborted:
            self._write(offset_name(base) + TRANSACTION_INDEX, encode_transaction_index(aborted))
        elif self._has(base, TRANSACTION_INDEX):
            self._remove(offset_name(base) + TRANSACTION_INDEX)

    def _indexed_aborted(self, base: int) -> tuple[AbortedTransaction, ...] | None:
        """What the .txnindex says; None where it is damaged."""
        if not self._has(base, TRANSACTION_INDEX):
            return ()
        key = self._key(base, TRANSACTION_INDEX)
        try:
            return decode_transaction_index(self._storage.read(key), key)
        except CorruptionError:
            return None

    def _lacks_transaction_index(self, base: int, end_offset: int) -> bool:
        """Whether transactions may have been aborted in a segment that has no .txnindex: behind its end somebody is
        known who once ended one."""
        if self._has(base, TRANSACTION_INDEX) or not self._size(base):
            return False
        if self._size(end_offset, SNAPSHOT) in (0, EMPTY_SNAPSHOT_BYTES):
            return False
        after = self._snapshot(end_offset)
        return after is not None and any(each.coordinator_epoch >= 0 for each in after.entries())

    def _recover(self, number: int, producers: Producers) -> tuple[Producers, _Found]:
        """Read a segment through, cut out what is damaged, derive all that belongs to it.

        Returns:
            The producers at its end, and what it holds.
        """
        base = self._bases[number]
        if number:
            self._write(offset_name(base) + SNAPSHOT, encode_snapshot(producers.entries()))
        log = DamagedLog(self._storage, self._key(base), base, self._size(base), self._following(number))
        growing = GrowingSegment(base, 0, self._config.index_interval_bytes)
        ended: list[EndedTransaction] = []
        markers: set[tuple[int, int]] = set()
        kept: list[tuple[int, int]] = []
        damages: list[Damage] = []
        intact_behind = False
        for chunk in log.chunks():
            if (log.damages or damages) and self._options.kafka_way:
                intact_behind = True
                break
            for part in _replay_around_damage(producers, chunk, self._key(base)):
                if damages and self._options.kafka_way:
                    break
                producers = part.producers
                ended += part.ended
                if len(part.table):
                    growing.append_all(part.table)
                    kept.append((chunk.position + int(part.table.positions[0]), chunk.position + part.table.end))
                    markers |= _markers(part.table)
                    self._epochs = with_batches(self._epochs, part.table)
                damages += part.damages
        growing.seal()
        damages = sorted(damages + log.damages)
        if damages and self._options.kafka_way:
            self._truncate_here(number, damages[0], intact_behind=intact_behind or len(damages) > 1)
        elif damages:
            self._cut_out(number, damages, kept)
        aborted = self._with_indexed(base, aborted_among(ended), markers)
        self._note_size(offset_name(base) + LOG, growing.size)
        self._write(offset_name(base) + INDEX, growing.offset_index_bytes())
        self._write(offset_name(base) + TIME_INDEX, growing.time_index_bytes())
        self._write_aborted(base, aborted)
        self._segments[base] = growing.segment(offset_name(base), self._modified_ms(base), aborted)
        self._report.recovered.append(base)
        return producers, _Found(growing, aborted)

    def _with_indexed(
        self, base: int, derived: Sequence[AbortedTransaction], markers: set[tuple[int, int]]
    ) -> tuple[AbortedTransaction, ...]:
        """What was derived, and what the .txnindex knows of transactions of which compaction left the marker only."""
        indexed = self._indexed_aborted(base) or ()
        known = {each.last_offset: each for each in indexed if (each.producer_id, each.last_offset) in markers}
        known |= {each.last_offset: each for each in derived}
        return tuple(known[offset] for offset in sorted(known))

    # Damage.

    def _cut_out(self, number: int, damages: Sequence[Damage], kept: Sequence[tuple[int, int]]) -> None:
        """Keep the damaged bytes beside the log, and leave them out of it."""
        base, size = self._bases[number], self._size(self._bases[number])
        for damage in damages:
            if damage.end == size:
                self._tail_cuts.append(_TailCut(number, len(self._report.cuts)))
            self._note_cut(base, damage, Fate.QUARANTINED)
        end = sum(stop - start for start, stop in kept)
        if not kept or kept[-1][1] == end:
            self._cut_off(base, end)
            return
        with closing(self._storage.open(self._key(base) + CLEANED)) as cleaned:
            position = 0
            for start, stop in kept:
                for data in self._pieces(self._key(base), start, stop):
                    cleaned.write_at(position, [data])
                    position += len(data)
            cleaned.sync()
        self._storage.set_modified(self._key(base) + CLEANED, self._entries[offset_name(base) + LOG].modified_ns)
        for key in swap_in(self._storage, self._folder, base, [base]):
            self._storage.delete(key)
        for suffix in INDEX_SUFFIXES:
            self._entries.pop(offset_name(base) + suffix, None)

    def _truncate_here(self, number: int, damage: Damage, *, intact_behind: bool) -> None:
        """Kafka's way: the log ends before this damage."""
        base, later = self._bases[number], self._bases[number + 1 :]
        size = self._size(base)
        lost = intact_behind or any(self._size(each) for each in later)
        fate = Fate.TRUNCATED if lost else Fate.TORN_TAIL
        self._note_cut(base, Damage(damage.position, size - damage.position, damage.problem), fate)
        # The newest first, so that a crash in between leaves no hole.
        for each in reversed(later):
            if whole := self._size(each):
                name = self._free_name(each, 0)
                self._storage.rename(self._key(each), f"{self._folder}/{name}")
                self._entries[name] = self._entries.pop(offset_name(each) + LOG)
                problem = f"expected an intact segment {base} before it, found a damaged one"
                self._report.cuts.append(Cut(self._key(each), 0, whole, problem, f"{self._folder}/{name}", fate))
            self._remove_segment(each)
        del self._bases[number + 1 :]
        self._cut_off(base, damage.position)

    def _cut_off(self, base: int, size: int) -> None:
        with closing(self._storage.open(self._key(base))) as log:
            log.truncate(size)
            log.sync()

    def _note_cut(self, base: int, damage: Damage, fate: Fate) -> None:
        kept_as = self._keep(base, damage)
        self._report.cuts.append(Cut(self._key(base), damage.position, damage.size, damage.problem, kept_as, fate))

    def _keep(self, base: int, damage: Damage) -> str:
        """Copy damaged bytes to a file of their own; returns its key, none where all of them are zero."""
        key, start, end = self._key(base), damage.position, damage.end
        if not any(np.frombuffer(data, np.uint8).any() for data in self._pieces(key, start, end)):
            return ""
        for name, entry in self._entries.items():
            if (
                name.startswith(f"{offset_name(base)}.{start}.")
                and name.endswith(CORRUPT)
                and entry.size == end - start
            ):
                kept = self._pieces(f"{self._folder}/{name}", 0, entry.size)
                if all(one == other for one, other in zip(kept, self._pieces(key, start, end), strict=True)):
                    return f"{self._folder}/{name}"  # an interrupted recovery came as far as this
        name = self._free_name(base, start)
        with closing(self._storage.open(f"{self._folder}/{name}")) as copy:
            copied = 0
            for data in self._pieces(key, start, end):
                copy.write_at(copied, [data])
                copied += len(data)
            copy.sync()
        self._note_size(name, copied)
        return f"{self._folder}/{name}"

    def _free_name(self, base: int, position: int) -> str:
        """A name for cut out bytes that no other has."""
        name, number = f"{offset_name(base)}.{position}{CORRUPT}", 1
        while name in self._entries:
            number += 1
            name = f"{offset_name(base)}.{position}.{number}{CORRUPT}"
        return name

    def _pieces(self, key: str, start: int, end: int) -> Iterator[bytes]:
        """A range of a file, in bounded memory."""
        while start < end and (data := self._storage.read(key, start, min(READ_BYTES, end - start))):
            yield data
            start += len(data)

    def _settle_tail(self, newest_intact: int, found: _Found) -> None:
        """Tell torn tails from other damage, and drop the segments behind one: nothing intact is in them."""
        tail = [cut for cut in self._tail_cuts if cut.number >= newest_intact]
        if not tail:
            return
        if not self._options.clean and found.growing.end_offset >= self._options.recovery_point:
            for cut in tail:
                self._report.cuts[cut.row] = replace(self._report.cuts[cut.row], fate=Fate.TORN_TAIL)
        for base in reversed(self._bases[newest_intact + 1 :]):
            self._remove_segment(base)
        del self._bases[newest_intact + 1 :]
        self._newest = found

    # What can be derived.

    def _write(self, name: str, data: bytes) -> None:
        """Let a file have these bytes, durably; one that has them already is not touched."""
        key = f"{self._folder}/{name}"
        entry = self._entries.get(name)
        if entry is not None and entry.size == len(data) and self._storage.read(key) == data:
            return
        with closing(self._storage.open(key)) as file:
            file.write_at(0, [data])
            file.truncate(len(data))
            file.sync()
        self._note_size(name, len(data))
        self._report.rebuilt.append(name)

    def _note_size(self, name: str, size: int) -> None:
        entry = self._entries.get(name) or FolderEntry(name, False, 0, self._options.now_ms * 1_000_000, (0, 0))
        self._entries[name] = replace(entry, size=size)

    def _snapshot_offsets(self) -> list[int]:
        stems = [name.removesuffix(SNAPSHOT) for name in self._entries if name.endswith(SNAPSHOT)]
        return sorted(int(stem) for stem in stems if is_offset_name(stem))

    def _snapshot(self, offset: int) -> Producers | None:
        """The producers that a .snapshot tells; one that is damaged is removed."""
        if not self._has(offset, SNAPSHOT):
            return None
        key = self._key(offset, SNAPSHOT)
        try:
            return Producers(decode_snapshot(self._storage.read(key), key))
        except CorruptionError:
            self._remove(offset_name(offset) + SNAPSHOT)
            return None

    def _producers_at(self, offset: int) -> Producers:
        """The producers by the newest snapshot at or below an offset, and by the batches from there to it.

        Of the snapshot only those count that are not forgotten by now; who has a batch behind it always does.
        """
        start, producers = -1, Producers()
        for snapshot in reversed(self._snapshot_offsets()):
            if snapshot <= offset and (known := self._snapshot(snapshot)) is not None:
                active = active_producers(known.entries(), self._options.now_ms, self._options.producer_expiration_ms)
                start, producers = snapshot, Producers(active)
                break
        for number, base in enumerate(self._bases):
            if base < offset and self._following(number) > start and start != offset:
                producers = self._replay(number, producers, start, offset).producers
        return producers

    def _replay(self, number: int, producers: Producers, start: int, end: int) -> _Replay:
        """Replay the batches of a segment that begin at start <= offset < end; what is damaged is passed over."""
        base = self._bases[number]
        ended: list[EndedTransaction] = []
        for chunk in DamagedLog(
            self._storage, self._key(base), base, self._size(base), self._following(number)
        ).chunks():
            table = chunk.table.select((chunk.table.base_offsets >= start) & (chunk.table.base_offsets < end))
            for part in _replay_around_damage(producers, replace(chunk, table=table), self._key(base)):
                producers = part.producers
                ended += part.ended
        return _Replay(producers, ended)

    def _remove_stray_snapshots(self, end_offset: int) -> None:
        """Those at no segment's base; the newest one may be at the log's end, where the log was closed."""
        snapshots = self._snapshot_offsets()
        newest = max((each for each in snapshots if each <= end_offset), default=-1)
        bases = set(self._bases)
        for snapshot in snapshots:
            if snapshot != newest and (snapshot not in bases or snapshot > end_offset):
                self._remove(offset_name(snapshot) + SNAPSHOT)

    def _checkpointed_epochs(self) -> Epochs | None:
        """What the leader-epoch-checkpoint says; None where it is missing or damaged."""
        key = f"{self._folder}/{LEADER_EPOCHS}"
        try:
            return tuple(LeaderEpoch(*entry) for entry in decode_leader_epochs(self._storage.read(key), key))
        except (NotFoundError, CorruptionError):
            return None


class _Replayed(NamedTuple):
    """Neighbouring batches, the producers behind them, and what the batch behind them has that none may have."""

    table: BatchTable
    producers: Producers
    ended: Sequence[EndedTransaction]
    damages: Sequence[Damage]


def _replay_around_damage(producers: Producers, chunk: Chunk, key: str) -> Iterator[_Replayed]:
    """Replay a chunk, without the batches that no producer can have written at their place."""
    table = chunk.table
    while len(table):
        after = producers.copy()
        try:
            yield _Replayed(table, after, after.replay(chunk.data, table, key, chunk.position), ())
            return
        except CorruptionError as error:
            row = int(np.searchsorted(table.positions, error.position - chunk.position))
            before = table.select(slice(0, row))
            producers = producers.copy()
            ended = producers.replay(chunk.data, before, key, chunk.position)
            damage = Damage(error.position, int(table.sizes[row]), error.problem)
            yield _Replayed(before, producers, ended, (damage,))
            table = table.select(slice(row + 1, None))


def _markers(table: BatchTable) -> set[tuple[int, int]]:
    """Producer id and offset of each control batch."""
    control = table.select(table.is_control)
    return set(zip(control.producer_ids.tolist(), control.last_offsets.tolist(), strict=True))


def resume_segment(storage: Storage, file: SegmentFile, index_interval_bytes: int) -> GrowingSegment | None:
    """A segment as its indexes, and its batches behind their last entries, tell it; None where these do not fit.

    Raises:
        NotFoundError: a file is missing.
    """
    offsets = decode_offset_index(storage.read(file.stem + INDEX))
    times = decode_time_index(storage.read(file.stem + TIME_INDEX))
    segment = GrowingSegment(
        file.base_offset, 0, index_interval_bytes, offset_entries=offsets.tolist(), time_entries=times.tolist()
    )
    if segment.time_entries:
        timestamp, relative_offset = segment.time_entries[-1]
        segment.largest_timestamp, segment.largest_timestamp_offset = timestamp, file.base_offset + relative_offset
    position = segment.offset_entries[-1][1] if segment.offset_entries else 0
    try:
        if file.size:
            first = first_batch_timestamp(storage, file)
            segment.first_timestamp = NO_TIMESTAMP if first is None else first
        for chunk in read_chunks(storage, file, position):
            segment.end_offset = int(chunk.table.last_offsets[-1]) + 1
            newest = int(chunk.table.max_timestamps.argmax())
            if chunk.table.max_timestamps[newest] > segment.largest_timestamp:
                segment.largest_timestamp = int(chunk.table.max_timestamps[newest])
                segment.largest_timestamp_offset = int(chunk.table.last_offsets[newest])
    except CorruptionError:
        return None
    segment.size = file.size
    return segment
