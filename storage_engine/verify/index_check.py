"""Checks the entries of an .index and a .timeindex against the batches of their .log.

Batches are read once, in chunks. Each entry is checked while the chunk with its batch is in memory, so a check
needs memory for the index and one chunk. An entry that points to damaged bytes is skipped, because the damage itself is
reported.

Two things decide which batches have an entry: restarts in the middle of a segment, and the setting
index.interval.bytes. No file contains the value of this setting. The correct entries show which values the setting
can have had. One of these values is needed to rebuild an index.

Under data/ of a root, a process never continues a segment after a restart. So all entries of an .index fit one value
of index.interval.bytes. The .index and the .log show which entries the .timeindex must have. So the check also finds
entries that were lost. The check cannot find a loss if the remaining entries fit another value of
index.interval.bytes: for example, if both indexes are empty. Three things can differ from one correct index to
another, and are no problem:

- entries for bytes after the end of the log, because an append is running or did not commit; the last of these entries
  can be incomplete;
- a missing closing entry of the .timeindex: the process that wrote the segment did not roll it;
- a closing entry for an earlier end of the log: the index was rebuilt at that time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from storage_engine.config import INT_MAX, TopicConfig
from storage_engine.errors import LogError, NotFoundError
from storage_engine.log.filenames import INDEX, TIME_INDEX
from storage_engine.log.indexes.offset_index import OFFSET_ENTRY
from storage_engine.log.indexes.time_index import TIME_ENTRY
from storage_engine.log.intact_batches import Damage
from storage_engine.record.batch import BatchTable
from storage_engine.record.header import NO_TIMESTAMP
from storage_engine.storage import Storage
from storage_engine.verify.findings import Finding, Kind, of_error
from storage_engine.verify.index_entries import DERIVABLE, IndexEntries, IndexRules


class IndexInterval(NamedTuple):
    """The range of index.interval.bytes that explains the entries of an index. Empty if lowest > highest."""

    lowest: int = 0
    highest: int = INT_MAX

    def both(self, other: IndexInterval) -> IndexInterval:
        """The values of index.interval.bytes that explain both indexes."""
        return IndexInterval(max(self.lowest, other.lowest), min(self.highest, other.highest))

    @property
    def is_possible(self) -> bool:
        """Whether any value explains the entries."""
        return self.lowest <= self.highest

    @property
    def likeliest(self) -> int:
        """Kafka's default if it is in the range, else the largest power of two in the range, else the lowest value."""
        powers = (2**power for power in range(30, -1, -1) if self.lowest <= 2**power <= self.highest)
        default = TopicConfig().index_interval_bytes
        return default if self.lowest <= default <= self.highest else next(powers, self.lowest)


class OffsetIndexCheck:
    """Checks one .index. Batches are passed in order."""

    def __init__(self, data: bytes, file: str, base_offset: int, rules: IndexRules) -> None:
        self.entries = IndexEntries(data, file, OFFSET_ENTRY, rules)
        self._rules = rules
        self._base = base_offset
        self._order = np.argsort(self.entries.second, kind="stable")
        self._sorted = self.entries.second[self._order]
        self._right = np.zeros(len(self.entries), np.bool_)
        self._compared = 0
        self._previous = np.zeros(len(self.entries), np.int64)
        self._last_start = 0

    def take(self, table: BatchTable, position: int) -> npt.NDArray[np.int64]:
        """Check the next batches.

        Args:
            position: where the table's positions begin in the file.

        Returns:
            The rows of the table that have a correct entry, ascending.
        """
        starts = table.positions + position
        seen = int(np.searchsorted(self._sorted, starts[-1], side="right"))
        wanted = self._sorted[self._compared : seen]
        rows = np.searchsorted(starts, wanted)
        entries = self._order[self._compared : seen]
        # The first batch never has an entry, because an entry is due only after more bytes than the interval.
        self._right[entries] = (
            (wanted > 0)
            & (starts[rows] == wanted)
            & (table.last_offsets[rows] - self._base == self.entries.first[entries])
        )
        self._previous[entries] = np.where(rows > 0, starts[rows - 1], self._last_start)
        self._compared = seen
        self._last_start = int(starts[-1])
        return rows[self._right[entries]]

    def findings(self, size: int, end_offset: int, damages: Sequence[Damage]) -> list[Finding]:
        """The problems, after the last batch. size, end_offset: of the .log."""
        entries = self.entries
        positions = entries.second
        wrong = ~self._right
        for damage in damages:
            wrong &= ~((positions >= damage.position) & (positions < damage.end))
        if self._rules.ahead:
            wrong &= (positions < size) | (entries.first < end_offset - self._base)
        entries.wrong(wrong, "the last offset and the position of a batch", "relative offset and position")
        if not wrong.any():
            back = np.flatnonzero(np.diff(positions) <= 0)
            if len(back):
                row = int(back[0]) + 1
                entries.problem(
                    row * entries.size, "ascending entries", f"entry {row}, which is not above the previous entry"
                )
        if self._rules.ahead and not damages and not entries.findings:
            self._find_gap(positions[positions < size])
            if not entries.findings:
                entries.refuse_incomplete(min(end_offset - self._base, INT_MAX).to_bytes(4, "big"))
        return entries.findings

    def _find_gap(self, positions: npt.NDArray[np.int64]) -> None:
        """Report the first missing entry: every value of index.interval.bytes that explains the other entries would put
        an entry there.

        Args:
            positions: of the entries for committed bytes, all of them correct and ascending.
        """
        anchors = np.concatenate(([0], positions))
        highest = int(np.diff(anchors).min(initial=INT_MAX + 1)) - 1
        without_entry = np.append(self._previous[: len(positions)], self._last_start) - anchors
        gaps = np.flatnonzero(without_entry > highest)
        if len(gaps):
            row = int(gaps[0])
            self.entries.problem(
                row * self.entries.size, f"an entry after at most {highest} bytes, as elsewhere in this index",
                f"no entry for {without_entry[row]} bytes",
            )  # fmt: skip

    def below(self, size: int) -> npt.NDArray[np.int64]:
        """The entries whose positions are below `size`, shape (entries, 2)."""
        entries = np.column_stack((self.entries.first, self.entries.second))
        return entries[self.entries.second < size]

    def refuse_times(self, relative_offset: int) -> None:
        """Report a missing entry: the .timeindex has an entry for a batch, but this index has none."""
        row = int(np.searchsorted(self.entries.first, relative_offset))
        self.entries.problem(
            row * self.entries.size, f"an entry for relative offset {relative_offset}, as in the .timeindex", "none"
        )

    def interval(self, *, complete: bool) -> IndexInterval:
        """The values of index.interval.bytes that explain the correct entries.

        An entry is due at the first batch that begins more than the interval after the batch of the last entry, or
        after the start.

        Args:
            complete: no entry is wrong, and no entry was lost at the end.
        """
        positions = self.entries.second
        anchors = np.concatenate(([0], positions[:-1]))
        known = self._right & np.concatenate(([True], self._right[:-1]))[: len(positions)]
        explained = IndexInterval()
        if known.any():
            lowest = int((self._previous - anchors)[known].max())
            explained = IndexInterval(max(0, lowest), int((positions - anchors)[known].min()) - 1)
        if complete:
            behind_last = self._last_start - (int(positions[-1]) if len(positions) else 0)
            explained = explained.both(IndexInterval(behind_last))
        return explained


class TimeIndexCheck:
    """Checks one .timeindex. Batches are passed in order."""

    def __init__(self, data: bytes, file: str, base_offset: int, rules: IndexRules) -> None:
        self.entries = IndexEntries(data, file, TIME_ENTRY, rules)
        self._rules = rules
        self._base = base_offset
        self._order = np.argsort(self.entries.second, kind="stable")
        self._sorted = self.entries.second[self._order] + base_offset
        self._right = np.zeros(len(self.entries), np.bool_)
        self._gone = np.zeros(len(self.entries), np.bool_)
        self._compared = 0
        self._largest = NO_TIMESTAMP
        self._largest_offset = base_offset
        self._last_offset = base_offset - 1
        self._required: list[npt.NDArray[np.int64]] = [np.empty((0, 2), np.int64)]
        self._last_required = NO_TIMESTAMP

    def take(self, table: BatchTable, indexed: npt.NDArray[np.int64], *, behind_damage: bool) -> None:
        """Check the next batches.

        Args:
            indexed: the rows of the table that have an entry in the .index.
            behind_damage: whether the bytes between the previous batches and these batches are damaged.
        """
        seen = int(np.searchsorted(self._sorted, table.last_offsets[-1], side="right"))
        wanted = self._sorted[self._compared : seen]
        rows = np.searchsorted(table.last_offsets, wanted)
        entries = self._order[self._compared : seen]
        so_far = np.maximum.accumulate(np.concatenate(([self._largest], table.max_timestamps)))
        timestamps = self.entries.first[entries]
        # An old broker may have written another offset of the batch. Lakelog itself has written the files under data/.
        belongs = table.last_offsets[rows] == wanted if self._rules.ahead else table.base_offsets[rows] <= wanted
        self._right[entries] = belongs & (table.max_timestamps[rows] == timestamps) & (so_far[rows] < timestamps)
        if behind_damage:
            self._gone[entries] = (wanted > self._last_offset) & (wanted < table.base_offsets[0])
        self._compared = seen
        if self._rules.ahead:
            self._require(table, so_far, indexed)
        if int(so_far[-1]) > self._largest:
            self._largest = int(so_far[-1])
            self._largest_offset = int(table.last_offsets[int(np.argmax(table.max_timestamps))])
        self._last_offset = int(table.last_offsets[-1])

    def _require(self, table: BatchTable, so_far: npt.NDArray[np.int64], indexed: npt.NDArray[np.int64]) -> None:
        """Note which entries the .timeindex must have for these batches: one at each entry of the .index, if the
        largest timestamp so far has grown since the previous entry.

        Args:
            so_far: the largest timestamp before each batch, and after the last batch.
        """
        timestamps = so_far[indexed + 1]
        grown = np.diff(timestamps, prepend=self._last_required) > 0
        rows, timestamps = indexed[grown], timestamps[grown]
        if not len(rows):
            return
        # The offset after which the largest timestamp has not grown any more.
        rises = np.flatnonzero(table.max_timestamps > so_far[:-1])
        offsets = np.concatenate(([self._largest_offset], table.last_offsets[rises]))
        offsets = offsets[np.searchsorted(rises, rows, side="right")]
        self._required.append(np.column_stack((timestamps, offsets - self._base)))
        self._last_required = int(timestamps[-1])

    @property
    def required(self) -> npt.NDArray[np.int64]:
        """The entries that come from the entries of the .index, shape (entries, 2). There are none if `ahead` is not
        set in the rules.
        """
        return np.concatenate(self._required)

    @property
    def largest(self) -> tuple[int, int]:
        """The largest timestamp of the batches, -1 for none, and the last offset of the batch that has it."""
        return self._largest, self._largest_offset

    def findings(self, end_offset: int, damages: Sequence[Damage]) -> list[Finding]:
        """The problems, after the last batch. end_offset: the offset after the last batch."""
        entries = self.entries
        wrong = ~(self._right | self._gone)
        if self._rules.ahead or damages:
            later = entries.second + self._base >= end_offset
            if not damages:
                later &= entries.first > self._largest
            wrong &= ~later
        entries.wrong(
            wrong, "the largest timestamp so far and the last offset of the batch that has it",
            "timestamp and relative offset",
        )  # fmt: skip
        if not wrong.any():
            back = np.flatnonzero((np.diff(entries.first) < 0) | (np.diff(entries.second) < 0))
            if len(back):
                row = int(back[0]) + 1
                entries.problem(
                    row * entries.size, "entries that never decrease", f"entry {row}, which is below the previous entry"
                )
            last = int(entries.first[-1]) if len(entries) else NO_TIMESTAMP
            if self._rules.closed and not damages and last != self._largest:
                found = f"timestamp {last}" if len(entries) else "none"
                entries.problem(len(entries) * entries.size, f"a closing entry with timestamp {self._largest}", found)
        if self._rules.ahead and not damages and not entries.findings:
            self._find_missing()
            if not entries.findings:
                last = int(entries.first[-1]) if len(entries) else NO_TIMESTAMP
                entries.refuse_incomplete(max(self._largest, last + 1).to_bytes(8, "big"))
        return entries.findings

    def _find_missing(self) -> None:
        """Report the first required entry that is missing. All entries are ascending."""
        entries = self.entries
        required = self.required
        rows = np.searchsorted(entries.first, required[:, 0])
        # The row after the last entry is an entry that equals no required entry.
        present = np.vstack((np.column_stack((entries.first, entries.second)), (NO_TIMESTAMP, -1)))
        missing = np.flatnonzero((present[rows] != required).any(axis=1))
        if len(missing):
            row = int(rows[missing[0]])
            timestamp, relative_offset = required[missing[0]].tolist()
            there = f"timestamp and relative offset {present[row, 0]} and {present[row, 1]}"
            entries.problem(
                row * entries.size, f"timestamp and relative offset {timestamp} and {relative_offset}",
                there if row < len(entries) else "none",
            )  # fmt: skip

    def without_cause(self, end_offset: int) -> int | None:
        """The relative offset of the first entry that no entry of the .index requires; None if there is no such entry.
        The last entry for committed bytes may be a closing entry, which nothing requires.

        Call this only after `findings` has found nothing. end_offset: the offset after the last batch.
        """
        entries = self.entries
        committed = int((entries.second + self._base < end_offset).sum())
        others = ~np.isin(entries.first[: max(0, committed - 1)], self.required[:, 0])
        return int(entries.second[others.argmax()]) if others.any() else None


@dataclass(frozen=True)
class IndexChecks:
    """Checks both indexes of a segment.

    missing: suffixes of missing files.
    unread: findings for missing or unreadable files.
    ahead: both files were read, and are under data/ of a root.
    """

    offsets: OffsetIndexCheck
    times: TimeIndexCheck
    missing: Sequence[str]
    unread: Sequence[Finding]
    ahead: bool

    @classmethod
    def read(
        cls, storage: Storage, stem: str, shown: str, base_offset: int, rules: IndexRules, absent: Finding | None = None
    ) -> Self:
        """Read the indexes at a storage key without suffix. Findings name them as `shown`. An index that is missing or
        cannot be read counts as empty.

        Args:
            absent: the finding for a missing index, without its name.
        """
        data, read_rules = dict.fromkeys((INDEX, TIME_INDEX), b""), dict.fromkeys((INDEX, TIME_INDEX), rules)
        missing, unread = [], []
        for suffix in data:
            try:
                data[suffix] = storage.read(stem + suffix)
                continue
            except NotFoundError:
                missing.append(suffix)
                unread += [] if absent is None else [replace(absent, file=shown + suffix)]
            except LogError as error:
                unread.append(of_error(error, Kind.INDEX))
            read_rules[suffix] = IndexRules(closed=False)
        return cls(
            OffsetIndexCheck(data[INDEX], shown + INDEX, base_offset, read_rules[INDEX]),
            TimeIndexCheck(data[TIME_INDEX], shown + TIME_INDEX, base_offset, read_rules[TIME_INDEX]),
            missing,
            unread,
            all(each.ahead for each in read_rules.values()),
        )

    def take(self, table: BatchTable, position: int, *, behind_damage: bool) -> None:
        """Check the next batches with both checks."""
        self.times.take(table, self.offsets.take(table, position), behind_damage=behind_damage)

    def findings(self, size: int, end_offset: int, damages: Sequence[Damage]) -> list[Finding]:
        """The problems, after the last batch. size, end_offset: of the .log."""
        offsets = self.offsets.findings(size, end_offset, damages)
        times = self.times.findings(end_offset, damages)
        if self.ahead and not damages and not offsets and not times:
            relative_offset = self.times.without_cause(end_offset)
            if relative_offset is not None:
                self.offsets.refuse_times(relative_offset)
        return [*self.unread, *offsets, *times]

    def lacking(self, others: IndexChecks, size: int) -> Iterator[Finding]:
        """Compare these indexes with other indexes of the same .log, which are under data/. Report the first entry of
        the other indexes, for bytes below `size`, that differs or is missing here. A closing entry of their .timeindex
        is not compared, because the log may have grown since this entry was written.

        Call this only after the last batch, and only if neither set of indexes has findings.
        """
        for suffix, own, other, entries in (
            (INDEX, self.offsets.entries, others.offsets.entries, others.offsets.below(size)),
            (TIME_INDEX, self.times.entries, others.times.entries, others.times.required),
        ):
            if suffix not in self.missing and (row := own.first_difference(entries)) is not None:
                found = f"{len(own)} entries, of which entry {row} differs or is missing"
                yield Finding(Kind.INDEX, own.file, row * own.size, f"the entries of {other.file}", found, DERIVABLE)
