"""Lists the records of an upsert by key, with the places of their rows in new files, and decides what becomes of the rows
of these files and of the table.

Each task keeps the newest record of each key that it has read, and writes the rows of these records
(`pipeline.delta.files.upsert_tasks`). A newer record of the key can be in another task, or in the table. Then the row is
dropped from its new file. If the new record is newer, the row of the table is dropped. So both kinds of files change in
the same way: rows are dropped, and rows become stale.

The rules are the rules of `pipeline.delta.rows.export_rows`. Arrays decide the usual keys. Keys with a record that cannot be
decoded, or with a stale row, are decided one by one, as in a small export. All functions are pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.delta.rows.row_columns import COORDINATES, STALE_SINCE
from pipeline.delta.without_spark.row_changes import RecordPlace, TableRow, decide_row, stale_places

ROW, TOMBSTONE, UNDECODABLE = range(3)
INDEX = pa.schema([*COORDINATES, ("kind", pa.int8()), ("file", pa.int32()), ("row", pa.int64())])
"""The records of an upsert that have a key. file, row: the place of the row in the new files; 0 if there is none."""
FOUND = pa.schema([("row", pa.int64()), ("key", pa.int32()), *list(COORDINATES)[1:], STALE_SINCE])
"""The rows of one file of the table that have a key of the index. key: the number of the key in `KeyIndex.keys`."""

Numbers = npt.NDArray[np.int64]


@dataclass
class FileChange:
    """The changes of one file.

    dropped: the numbers of the rows that are dropped.
    stale: by number of a row, the new value of `_stale_since`.
    stays: whether the file stays in the table. Then only the rows of `stale` are written again.
    """

    dropped: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    stale: dict[int, RecordPlace] = field(default_factory=dict)
    stays: bool = False

    @property
    def gone(self) -> Numbers:
        """The numbers of the rows that leave the file."""
        return np.union1d(self.dropped, np.array([*self.stale], np.int64))


@dataclass
class UpsertDecision:
    """The changes of all files, by number of the file, and their counts.

    new, there: the new files, and the files of the table. Files without a change are missing.
    written: the number of rows that are inserted or replaced.
    deleted: the number of rows that are deleted.
    newly_stale: by partition, the number of rows that become stale.
    without_row: the number of keys that have a record that cannot be decoded, but no row.
    """

    new: dict[int, FileChange] = field(default_factory=dict)
    there: dict[int, FileChange] = field(default_factory=dict)
    written: int = 0
    deleted: int = 0
    newly_stale: Counter[int] = field(default_factory=Counter)
    without_row: int = 0


class KeyIndex:
    """The records of an upsert, by key.

    keys: each key once.
    """

    def __init__(self, entries: pa.Table) -> None:
        """
        Args:
            entries: the records of all tasks, columns as in INDEX.
        """
        encoded = entries["_key"].combine_chunks().dictionary_encode()
        self.keys: pa.Array = encoded.dictionary
        self._key = _numbers(encoded.indices)
        self._partition, self._offset, self._timestamp, self._kind, self._file, self._row = (
            _numbers(entries[name]) for name in INDEX.names[1:]
        )
        self._newest = self._newest_by_key()

    def _newest_by_key(self) -> Numbers:
        """By key, the index of the record that decides its row; -1: no record does."""
        newest = np.full(len(self.keys), -1, np.int64)
        good = np.flatnonzero(self._kind != UNDECODABLE)
        newest[self._key[good]] = good
        several = np.bincount(self._key[good], minlength=len(newest)) > 1
        rest = good[several[self._key[good]]]
        if len(rest):
            rest = self._last(rest, (self._offset, self._partition, self._key))
            rest = self._last(rest, (self._partition, self._timestamp, self._key), groups=1)
            newest[self._key[rest]] = rest
        return newest

    def _last(self, records: Numbers, order: Sequence[Numbers], groups: int = 2) -> Numbers:
        """The last record of each group.

        Args:
            order: the columns of the order, the most important last.
            groups: the number of columns, from the last, that are equal in a group.
        """
        records = records[np.lexsort([column[records] for column in order])]
        differs = np.zeros(len(records) - 1, np.bool_)
        for column in order[-groups:]:
            differs |= column[records][1:] != column[records][:-1]
        last: Numbers = records[np.append(differs, True)]
        return last

    def _place(self, record: int) -> RecordPlace:
        return RecordPlace(*(int(each[record]) for each in (self._partition, self._offset, self._timestamp)))

    def decide(self, found: Mapping[int, pa.Table]) -> UpsertDecision:
        """Decide what becomes of all rows.

        Args:
            found: by number of a file of the table, the rows with keys of the index, columns as in FOUND.
        """
        decision = UpsertDecision()
        rows = _FoundRows(found)
        newest = self._newest[rows.key]
        wins = (newest >= 0) & self._is_newest(newest, rows)
        lost = newest[~wins & (newest >= 0)]
        stays = np.zeros(len(self._key), np.bool_)
        stays[self._newest[self._newest >= 0]] = True
        stays[lost] = False
        is_row = self._kind == ROW
        decision.written = int((stays & is_row).sum())
        decision.deleted = int((self._kind[newest[wins]] == TOMBSTONE).sum())
        dropped = np.flatnonzero(is_row & ~stays)
        _drop(decision.new, self._file[dropped], self._row[dropped])
        _drop(decision.there, rows.file[wins], rows.row[wins])
        self._decide_stale(rows, decision)
        return decision

    def _is_newest(self, records: Numbers, rows: _FoundRows) -> npt.NDArray[np.bool_]:
        """Whether each record is as new as the row of the table, or newer."""
        partition, timestamp = self._partition[records], self._timestamp[records]
        is_later = (timestamp > rows.timestamp) | ((timestamp == rows.timestamp) & (partition > rows.partition))
        found: npt.NDArray[np.bool_] = np.where(
            partition == rows.partition, self._offset[records] >= rows.offset, is_later
        )
        return found

    def _decide_stale(self, rows: _FoundRows, decision: UpsertDecision) -> None:
        """Find the rows whose column `_stale_since` is not null in the end, or changes."""
        undecodable: dict[int, list[RecordPlace]] = {}
        for record in np.flatnonzero(self._kind == UNDECODABLE).tolist():
            undecodable.setdefault(int(self._key[record]), []).append(self._place(record))
        has_bad = np.zeros(len(self.keys), np.bool_)
        has_bad[list(undecodable)] = True
        there = {int(rows.key[number]): number for number in np.flatnonzero(has_bad[rows.key] | rows.is_stale).tolist()}
        for key in {*undecodable, *there}:
            record = int(self._newest[key])
            place = self._place(record) if record >= 0 else None
            number = there.get(key)
            row = None if number is None else rows.table_row(number)
            change = decide_row(place, undecodable.get(key, ()), row)
            since = change.stale_since
            if change.wins:
                if since is not None and self._kind[record] == ROW:
                    file, row_number = int(self._file[record]), int(self._row[record])
                    decision.new.setdefault(file, FileChange()).stale[row_number] = since
            elif row is None or number is None:
                decision.without_row += since is not None
            elif change.becomes_stale and since is not None:
                decision.there.setdefault(int(rows.file[number]), FileChange()).stale[int(rows.row[number])] = since
                if row.stale_since is None:
                    decision.newly_stale[row.place.partition] += 1


class _FoundRows:
    """The rows of the table that have a key of the index."""

    def __init__(self, found: Mapping[int, pa.Table]) -> None:
        table = pa.concat_tables([FOUND.empty_table(), *found.values()])
        self.file = np.repeat(np.array([*found], np.int64), [len(each) for each in found.values()])
        self.row, self.key, self.partition, self.offset, self.timestamp = (
            _numbers(table[name]) for name in FOUND.names[:-1]
        )
        self._stale = table[STALE_SINCE.name].combine_chunks()
        self.is_stale = np.array(self._stale.is_valid().to_numpy(zero_copy_only=False), np.bool_)

    def table_row(self, number: int) -> TableRow:
        place = RecordPlace(*(int(each[number]) for each in (self.partition, self.offset, self.timestamp)))
        return TableRow(place, stale_places(self._stale.slice(number, 1))[0])


def _drop(changes: dict[int, FileChange], files: Numbers, rows: Numbers) -> None:
    """Drop these rows of these files."""
    if not len(files):
        return
    order = np.lexsort((rows, files))
    numbers, begins = np.unique(files[order], return_index=True)
    for number, dropped in zip(numbers.tolist(), np.split(rows[order], begins[1:]), strict=True):
        changes.setdefault(number, FileChange()).dropped = dropped


def _numbers(values: pa.Array | pa.ChunkedArray) -> Numbers:
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    return np.array(pc.cast(values, pa.int64()).to_numpy(), np.int64)
