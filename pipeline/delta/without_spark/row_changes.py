"""Decides how the records of an increment change the rows of an upserted table.

The rules are the rules of `pipeline.delta.rows.export_rows`, which Spark applies to increments of any size. This module
applies them in memory: for each key, the newest record that can be decoded or is a tombstone decides the row; a record
that cannot be decoded makes the row stale. All functions of this module are pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from pipeline.delta.rows.row_columns import STALE_SINCE


class RecordPlace(NamedTuple):
    """The place of a record. timestamp: microseconds since 1970."""

    partition: int
    offset: int
    timestamp: int


class TableRow(NamedTuple):
    """What decides whether a row changes. stale_since: as in the column `_stale_since`. digest: None if the table has no
    digests."""

    place: RecordPlace
    stale_since: RecordPlace | None
    digest: bytes | None = None


@dataclass
class RowChanges:
    """The changes of a table.

    written: by the index of a decoded record that becomes a row, the place since which the row is stale, or None.
    deleted: the keys whose rows are deleted.
    stale: by key, the place since which the row is stale. The row's other columns do not change.
    newly_stale: the number of keys in `stale` whose row was current before.
    without_row: the number of keys that have a record that cannot be decoded, but neither a row nor a deciding record.
    """

    written: dict[int, RecordPlace | None] = field(default_factory=dict)
    deleted: list[bytes] = field(default_factory=list)
    stale: dict[bytes, RecordPlace] = field(default_factory=dict)
    newly_stale: int = 0
    without_row: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.written or self.deleted or self.stale)


@dataclass
class _KeyRecords:
    """The records of one key. latest: by partition, the index of the last record that can be decoded or is a tombstone.
    undecodable: the places of the others."""

    latest: dict[int, int] = field(default_factory=dict)
    undecodable: list[RecordPlace] = field(default_factory=list)


class IncrementRecords:
    """The decoded records of an increment, by key. Records without a key are left out: they are dead letters that
    belong to no row."""

    def __init__(self, decoded: pa.Table) -> None:
        """
        Args:
            decoded: decoded records (row_decoding.decoded_columns). In each partition, offsets increase.
        """
        self.places = places_of(decoded["_partition"], decoded["_offset"], decoded["_timestamp"])
        self._tombstones = decoded["_tombstone"].to_pylist()
        self.by_key: dict[bytes, _KeyRecords] = {}
        undecodable = decoded["_reason"].is_valid().to_pylist()
        for index, (key, place) in enumerate(zip(decoded["_key"].to_pylist(), self.places, strict=True)):
            if key is None:
                continue
            records = self.by_key.setdefault(key, _KeyRecords())
            if undecodable[index]:
                records.undecodable.append(place)
            else:
                records.latest[place.partition] = index

    def decide(self, table: Mapping[bytes, TableRow]) -> RowChanges:
        """The changes of the table.

        Args:
            table: the rows that the table has for the increment's keys.
        """
        changes = RowChanges()
        for key, records in self.by_key.items():
            self._decide(key, records, table.get(key), changes)
        return changes

    def _decide(self, key: bytes, records: _KeyRecords, row: TableRow | None, changes: RowChanges) -> None:
        decides = max(records.latest.values(), key=lambda index: _age(self.places[index]), default=None)
        place = None if decides is None else self.places[decides]
        change = decide_row(place, records.undecodable, row)
        if decides is None or not change.wins:
            if row is None:
                changes.without_row += change.stale_since is not None
            elif change.becomes_stale and change.stale_since is not None:
                changes.stale[key] = change.stale_since
                changes.newly_stale += row.stale_since is None
        elif self._tombstones[decides]:
            if row is not None:
                changes.deleted.append(key)
        else:
            changes.written[decides] = change.stale_since


class RowDecision(NamedTuple):
    """What happens to the row of a key.

    wins: the record that decides the row replaces it or deletes it. False: the row stays, or there is still no row.
    stale_since: the value of `_stale_since` after a replacement. If the row stays: the first newer record that cannot be
        decoded, or None.
    becomes_stale: the row stays, and gets the value `stale_since`.
    """

    wins: bool
    stale_since: RecordPlace | None
    becomes_stale: bool


def decide_row(place: RecordPlace | None, undecodable: Iterable[RecordPlace], row: TableRow | None) -> RowDecision:
    """Decide what happens to the row of a key.

    Args:
        place: the newest record of the key that can be decoded or is a tombstone; None: there is none.
        undecodable: the other records of the key.
        row: the row of the table; None: there is none.
    """
    bad = _first(
        each for each in undecodable
        if (place is None or is_newer(each, place)) and (row is None or is_newer(each, row.place))
    )  # fmt: skip
    stale = row.stale_since if row is not None else None
    if place is None or (row is not None and is_newer(row.place, place)):
        becomes_stale = row is not None and bad is not None and (stale is None or is_newer(stale, bad))
        return RowDecision(False, bad, becomes_stale)
    stays = stale is not None and is_newer(stale, place) and (bad is None or is_newer(bad, stale))
    return RowDecision(True, stale if stays else bad, False)


def places_of(partitions: pa.ChunkedArray, offsets: pa.ChunkedArray, timestamps: pa.ChunkedArray) -> list[RecordPlace]:
    """The places in three columns without nulls."""
    moments = timestamps.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    columns = (partitions.to_pylist(), offsets.to_pylist(), moments.to_pylist())
    return [RecordPlace(*each) for each in zip(*columns, strict=True)]


def stale_places(column: pa.StructArray) -> list[RecordPlace | None]:
    """The places in a column `_stale_since`."""
    if column.null_count == len(column):
        return [None] * len(column)
    fields = [pa.chunked_array([column.field(number)]) for number in range(3)]
    parts = [field.fill_null(0) for field in (fields[0], fields[1], fields[2].cast(pa.int64()))]
    whole = places_of(parts[0], parts[1], parts[2].cast(pa.timestamp("us", tz="UTC")))
    return [each if valid else None for each, valid in zip(whole, column.is_valid().to_pylist(), strict=True)]


def stale_array(places: Collection[RecordPlace | None]) -> pa.Array:
    """The column `_stale_since`."""
    times = [None if each is None else each.timestamp for each in places]
    moments = pa.array(times, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return pa.StructArray.from_arrays(
        [
            pa.array([None if each is None else each.partition for each in places], pa.int32()),
            pa.array([None if each is None else each.offset for each in places], pa.int64()),
            moments,
        ],
        fields=list(STALE_SINCE.type),
        mask=pa.array([each is None for each in places], pa.bool_()),
    )


def is_newer(one: RecordPlace, other: RecordPlace) -> bool:
    """Whether the record at `one` is newer than the record of the same key at `other`."""
    if one.partition == other.partition:
        return one.offset > other.offset
    return _age(one) > _age(other)


def _age(place: RecordPlace) -> tuple[int, int]:
    """Orders records of different partitions."""
    return place.timestamp, place.partition


def _first(places: Iterable[RecordPlace]) -> RecordPlace | None:
    """The first of these places: in each partition the lowest offset, and of these the oldest record."""
    firsts: dict[int, RecordPlace] = {}
    for place in places:
        known = firsts.setdefault(place.partition, place)
        if place.offset < known.offset:
            firsts[place.partition] = place
    return min(firsts.values(), key=_age, default=None)
