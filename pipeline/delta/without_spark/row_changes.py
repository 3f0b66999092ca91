"""Decides how the records of an increment change the rows of an upserted table.

The rules are the rules of `pipeline.delta.rows.export_rows`, which Spark applies to increments of any size. This module
applies them in memory: for each key, the newest record that can be decoded or is a tombstone decides the row; a record
that cannot be decoded makes the row stale. All functions of this module are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa


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
        bad = _first(
            each for each in records.undecodable
            if (place is None or is_newer(each, place)) and (row is None or is_newer(each, row.place))
        )  # fmt: skip
        stale = row.stale_since if row is not None else None
        if decides is None or place is None or (row is not None and is_newer(row.place, place)):
            if row is None:
                changes.without_row += bad is not None
            elif bad is not None and (stale is None or is_newer(stale, bad)):
                changes.stale[key] = bad
                changes.newly_stale += stale is None
        elif self._tombstones[decides]:
            if row is not None:
                changes.deleted.append(key)
        else:
            stays = stale is not None and is_newer(stale, place) and (bad is None or is_newer(bad, stale))
            changes.written[decides] = stale if stays else bad


def places_of(partitions: pa.ChunkedArray, offsets: pa.ChunkedArray, timestamps: pa.ChunkedArray) -> list[RecordPlace]:
    """The places in three columns without nulls."""
    moments = timestamps.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    columns = (partitions.to_pylist(), offsets.to_pylist(), moments.to_pylist())
    return [RecordPlace(*each) for each in zip(*columns, strict=True)]


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
