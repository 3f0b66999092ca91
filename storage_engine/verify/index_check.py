"""Checks the entries of an .index and a .timeindex against the batches of their .log.

Batches are read once, in chunks. Each entry is checked when its batch is in the chunk, so a check needs memory for the
index and one chunk. An entry that points to damaged bytes is skipped, because the damage itself is reported.

Two things decide which batches have an entry: restarts in the middle of a segment, and the key index.interval.bytes. No
file contains the value of this key. The correct entries show which values the key can have had. One of these values is
needed to rebuild an index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

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

_DERIVABLE = "this file can be rebuilt from the .log: by --repair, or by a broker after you remove the file"


@dataclass(frozen=True)
class IndexRules:
    """The rules that an index must follow.

    closed: the segment gets no more batches, so the index is trimmed and the .timeindex has its closing entry.
    ahead: the index may have entries for bytes after the end of the log, which were written but never committed.
    """

    closed: bool
    ahead: bool = False


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


class _IndexEntries:
    """The entries of an index file, without the zeros after them."""

    def __init__(self, data: bytes, file: str, dtype: np.dtype[Any], rules: IndexRules) -> None:
        self.file = file
        self.findings: list[Finding] = []
        self.size = dtype.itemsize
        whole = len(data) // self.size * self.size
        if whole < len(data) and not rules.ahead:
            self.problem(whole, f"entries of {self.size} bytes", f"{len(data) - whole} bytes of an incomplete entry")
        rows = np.frombuffer(data[:whole], dtype)
        first, second = (rows[name].astype(np.int64) for name in dtype.names or ())
        used = np.flatnonzero((first != 0) | (second != 0))
        # A single entry of zeros is a real entry: timestamp 0 at the base offset.
        kept = int(used[-1]) + 1 if len(used) else int(len(rows) == 1)
        if kept < len(rows) and rules.closed:
            self.problem(
                kept * self.size, "no zeros after the last entry", f"{len(data) - kept * self.size} bytes of zeros"
            )
        self.first, self.second = first[:kept], second[:kept]

    def __len__(self) -> int:
        return len(self.first)

    def problem(self, position: int, expected: str, found: str) -> None:
        self.findings.append(Finding(Kind.INDEX, self.file, position, expected, found, _DERIVABLE))

    def wrong(self, rows: npt.NDArray[np.bool_], expected: str, of: str) -> None:
        """Add one finding for each run of wrong entries."""
        for start, end in _runs(rows):
            found = f"{of} {self.first[start]} and {self.second[start]}"
            more = f", and {end - start - 1} wrong entries after it" if end - start > 1 else ""
            self.problem(start * self.size, expected, found + more)

    def first_difference(self, other: _IndexEntries, end: int) -> int | None:
        """The first row of another ascending index that is below `end` and differs from, or is missing in, this index."""
        rows = int((other.second < end).sum())
        both = min(rows, len(self))
        differs = (self.first[:both] != other.first[:both]) | (self.second[:both] != other.second[:both])
        if differs.any():
            return int(differs.argmax())
        return both if both < rows else None


def _runs(rows: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], rows.astype(np.int8), [0]))))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


class OffsetIndexCheck:
    """Checks one .index. Batches are passed in order."""

    def __init__(self, data: bytes, file: str, base_offset: int, rules: IndexRules) -> None:
        self.entries = _IndexEntries(data, file, OFFSET_ENTRY, rules)
        self._rules = rules
        self._base = base_offset
        self._order = np.argsort(self.entries.second, kind="stable")
        self._sorted = self.entries.second[self._order]
        self._right = np.zeros(len(self.entries), np.bool_)
        self._compared = 0
        self._previous = np.zeros(len(self.entries), np.int64)
        self._last_start = 0

    def take(self, table: BatchTable, position: int) -> None:
        """Check the next batches. position: where the table's positions begin in the file."""
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

    def findings(self, size: int, damages: Sequence[Damage]) -> list[Finding]:
        """The problems, after the last batch. size: bytes of the .log."""
        entries = self.entries
        positions = entries.second
        wrong = ~self._right
        for damage in damages:
            wrong &= ~((positions >= damage.position) & (positions < damage.end))
        if self._rules.ahead:
            wrong &= positions < size
        entries.wrong(wrong, "the last offset and the position of a batch", "relative offset and position")
        if not wrong.any():
            back = np.flatnonzero(np.diff(positions) <= 0)
            if len(back):
                row = int(back[0]) + 1
                entries.problem(
                    row * entries.size, "ascending entries", f"entry {row}, which is not above the entry before"
                )
        return entries.findings

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
        self.entries = _IndexEntries(data, file, TIME_ENTRY, rules)
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

    def take(self, table: BatchTable, *, behind_damage: bool) -> None:
        """Check the next batches. behind_damage: whether the bytes between the previous batches and these batches are
        damaged.
        """
        seen = int(np.searchsorted(self._sorted, table.last_offsets[-1], side="right"))
        wanted = self._sorted[self._compared : seen]
        rows = np.searchsorted(table.last_offsets, wanted)
        entries = self._order[self._compared : seen]
        so_far = np.maximum.accumulate(np.concatenate(([self._largest], table.max_timestamps)))
        timestamps = self.entries.first[entries]
        self._right[entries] = (
            (table.base_offsets[rows] <= wanted)
            & (table.max_timestamps[rows] == timestamps)
            & (so_far[rows] < timestamps)
        )
        if behind_damage:
            self._gone[entries] = (wanted > self._last_offset) & (wanted < table.base_offsets[0])
        self._compared = seen
        if int(so_far[-1]) > self._largest:
            self._largest = int(so_far[-1])
            self._largest_offset = int(table.last_offsets[int(np.argmax(table.max_timestamps))])
        self._last_offset = int(table.last_offsets[-1])

    @property
    def largest(self) -> tuple[int, int]:
        """The largest timestamp of the batches, -1 for none, and the last offset of the batch that has it."""
        return self._largest, self._largest_offset

    def findings(self, end_offset: int, damages: Sequence[Damage]) -> list[Finding]:
        """The problems, after the last batch. end_offset: the offset after the last batch."""
        entries = self.entries
        wrong = ~(self._right | self._gone)
        if self._rules.ahead or damages:
            wrong &= entries.second + self._base < end_offset
        entries.wrong(
            wrong, "the largest timestamp so far and the last offset of the batch that has it",
            "timestamp and relative offset",
        )  # fmt: skip
        if not wrong.any():
            back = np.flatnonzero((np.diff(entries.first) < 0) | (np.diff(entries.second) < 0))
            if len(back):
                row = int(back[0]) + 1
                entries.problem(
                    row * entries.size, "entries that never decrease", f"entry {row}, which is below the entry before"
                )
            last = int(entries.first[-1]) if len(entries) else NO_TIMESTAMP
            if self._rules.closed and not damages and last != self._largest:
                found = f"timestamp {last}" if len(entries) else "none"
                entries.problem(len(entries) * entries.size, f"a closing entry with timestamp {self._largest}", found)
        return entries.findings


@dataclass(frozen=True)
class IndexChecks:
    """Checks both indexes of a segment. missing: suffixes of missing files. unread: findings for missing or unreadable
    files.
    """

    offsets: OffsetIndexCheck
    times: TimeIndexCheck
    missing: Sequence[str]
    unread: Sequence[Finding]

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
            read_rules[suffix] = IndexRules(closed=False, ahead=True)
        return cls(
            OffsetIndexCheck(data[INDEX], shown + INDEX, base_offset, read_rules[INDEX]),
            TimeIndexCheck(data[TIME_INDEX], shown + TIME_INDEX, base_offset, read_rules[TIME_INDEX]),
            missing,
            unread,
        )

    def take(self, table: BatchTable, position: int, *, behind_damage: bool) -> None:
        """Check the next batches with both checks."""
        self.offsets.take(table, position)
        self.times.take(table, behind_damage=behind_damage)

    def findings(self, size: int, end_offset: int, damages: Sequence[Damage]) -> list[Finding]:
        """The problems, after the last batch. size, end_offset: of the .log."""
        return [*self.unread, *self.offsets.findings(size, damages), *self.times.findings(end_offset, damages)]

    def lacking(self, others: IndexChecks, size: int, relative_end: int) -> Iterator[Finding]:
        """Findings if these indexes do not begin with the entries of other indexes for bytes below `size` and relative
        offsets below `relative_end`.

        Call this only after the last batch, and only if neither set of indexes has findings.
        """
        for suffix, own, other, end in (
            (INDEX, self.offsets.entries, others.offsets.entries, size),
            (TIME_INDEX, self.times.entries, others.times.entries, relative_end),
        ):
            if suffix not in self.missing and (row := own.first_difference(other, end)) is not None:
                found = f"{len(own)} entries, of which entry {row} differs or is missing"
                yield Finding(Kind.INDEX, own.file, row * own.size, f"the entries of {other.file}", found, _DERIVABLE)
