"""A topic of orders, and the rows and dead letters that its exported table must have."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import lakelog
from lakelog.delta.rows import open_rows
from pipeline.delta.without_spark.table_opening import open_or_none
from storage_engine.storage.storage_opening import open_storage
from tests.roots.delta_tables import table_at
from tests.sample_orders import random_order
from tests.stores import files_below

TABLE, LETTERS = "tables/orders", "tables/dead_letters/export/orders"
Row = tuple[Any, ...]
Offset = tuple[int, int]
"""The partition and the offset of a record."""


class Appended(NamedTuple):
    """A record of the topic. amount: as in random_order."""

    partition: int
    offset: int
    key: bytes
    amount: Any
    value: bytes | None


class Orders:
    """The topic. The expected rows are computed from what was appended, without Lakelog.

    appended: the number of records.
    """

    def __init__(self, root: str, mode: str, layout: Sequence[str] = (), **configs: str) -> None:
        """
        Args:
            mode: upsert or append.
            layout: settings of the export, such as its partition columns.
            configs: settings of the topic, with `_` instead of `.` and `-`.
        """
        self.root = root
        self.mode = mode
        self.layout = layout
        configs = {name.replace("_", "."): value for name, value in configs.items()}
        if mode == "upsert":
            configs["cleanup.policy"] = "compact"
        self._topic = lakelog.open(root, create=True).create_topic("orders", partitions=2, config=configs)
        self._records: list[Appended] = []
        self._compared = 0
        self._unread: frozenset[Offset] = frozenset()

    @property
    def table(self) -> str:
        return f"{self.root}/{TABLE}"

    @property
    def appended(self) -> int:
        return len(self._records)

    def settings(self, *more: str) -> list[str]:
        """The command line of a job."""
        given = [
            "topics.orders.schema=id STRING, amount BIGINT", "export.topic=orders", f"export.mode={self.mode}",
            "export.max.dead.letter.share=1", *self.layout, *more,
        ]  # fmt: skip
        return ["--root", self.root, "--json", *(text for each in given for text in ("--set", each))]

    def append(self, records: int, chance: random.Random) -> None:
        """Append random orders, tombstones and values that cannot be decoded. A key has one partition."""
        ends = Counter(each.partition for each in self._records)
        made: list[list[dict[str, Any]]] = [[], []]
        for _ in range(records):
            key, amount, value = random_order(chance)
            partition = key[-1] % 2
            made[partition].append({"key": key, "value": value})
            self._records.append(Appended(partition, ends[partition], key, amount, value))
            ends[partition] += 1
        for partition, batch in enumerate(made):
            if batch:
                self._topic.append(batch, partition=partition)

    def problems(self, *, restored: bool = False) -> list[str]:
        """How the rows and the dead letters in the tables differ from what was appended; empty if they are equal.

        Args:
            restored: the topic was compacted, and then an earlier version of the table was restored. If the newest record
                of a key cannot be decoded, compaction has removed the earlier ones. So the key may have any earlier row,
                marked as stale, or none.
        """
        names = ["_key", "id", "amount", "_partition", "_offset"]
        if self.mode == "upsert":
            names.append("_stale_since")
        rows = [_with_offset(row) for row in _rows_of(self.table, names)]
        letters = _rows_of(f"{self.root}/{LETTERS}", ["partition", "offset", "key", "value"])
        self._unread |= self._removed_before_a_read(rows, letters)
        expected = Expected(
            self.mode, [each for each in self._records if (each.partition, each.offset) not in self._unread]
        )
        self._compared = len(self._records)
        wanted = expected.rows
        found = []
        if restored and self.mode == "upsert":
            rows, earlier = _parted(rows, expected.undecoded)
            wanted, _ = _parted(wanted, expected.undecoded)
            found = expected.wrong_earlier(earlier)
        return [*found, *_differences("rows", rows, wanted), *_differences("dead letters", letters, expected.letters)]

    def _removed_before_a_read(self, rows: Sequence[Row], letters: Sequence[Row]) -> set[Offset]:
        """The records after the last comparison that compaction removed before an export read them. The log does not have
        such a record any more, a later record has its key, and neither table shows the record."""
        log = lakelog.open(self.root).topic("orders").read().to_pandas()
        there = set(zip(log["partition"], log["offset"], strict=True))
        newest = {each.key: each.offset for each in self._records}
        shown = {(row[3], row[4]) for row in rows} | {letter[:2] for letter in letters}
        by_key = {row[0]: row[4] for row in rows}
        return {
            (each.partition, each.offset)
            for each in self._records[self._compared :]
            if (each.partition, each.offset) not in there | shown
            and each.offset < newest[each.key]
            and (each.value is not None or by_key.get(each.key, each.offset) < each.offset)
        }

    def files(self) -> tuple[int, int]:
        """The number of files of the table that are in its newest version, and of all files in its folder."""
        return len(table_at(self.table).file_uris()), len(files_below(open_storage(self.root), f"{TABLE}/"))


class Expected:
    """What the tables must have after an export of records.

    rows, letters: the rows and the dead letters.
    undecoded: the keys whose newest record cannot be decoded.
    """

    def __init__(self, mode: str, records: Sequence[Appended]) -> None:
        self.letters: list[Row] = []
        self.undecoded: set[bytes] = set()
        self._appended: list[Row] = []
        by_key: dict[bytes, Row] = {}
        for partition, offset, key, amount, value in records:
            self.undecoded.discard(key)
            if isinstance(amount, int):
                row = (key, key.decode(), amount, partition, offset)
                self._appended.append(row)
                by_key[key] = (*row, None)
            elif amount is None and mode == "upsert":
                by_key.pop(key, None)
            else:
                self.letters.append((partition, offset, key, value))
                self.undecoded.add(key)
                before = by_key.get(key)
                if before is not None and before[-1] is None:
                    by_key[key] = (*before[:-1], offset)
        self.rows = list(by_key.values()) if mode == "upsert" else self._appended

    def wrong_earlier(self, rows: Sequence[Row]) -> list[str]:
        """The rows that are no stale row of their key, or of which the key has another one."""
        letters = {(key, partition, offset) for partition, offset, key, _ in self.letters}
        keys = Counter(row[0] for row in rows)
        return [
            f"no earlier stale row: {row}"
            for row in rows
            if keys[row[0]] > 1
            or row[:-1] not in self._appended
            or (row[0], row[3], row[-1]) not in letters
            or row[4] > row[-1]
        ]


def _parted(rows: list[Row], keys: set[bytes]) -> tuple[list[Row], list[Row]]:
    """The rows of other keys, and the rows of these keys."""
    return [row for row in rows if row[0] not in keys], [row for row in rows if row[0] in keys]


def _with_offset(row: Row) -> Row:
    """The row with the offset of `_stale_since` only."""
    stale = row[-1]
    return (*row[:-1], stale["offset"]) if isinstance(stale, dict) else row


def _rows_of(table: str, names: list[str]) -> list[Row]:
    opened = open_or_none(table)
    if opened is None:
        return []
    return [tuple(row.values()) for row in open_rows(opened, names).read_all().select(names).to_pylist()]


def _differences(what: str, found: list[Row], wanted: list[Row]) -> list[str]:
    there, expected = Counter(found), Counter(wanted)
    if there == expected:
        return []
    lost, more = expected - there, there - expected
    return [
        f"{what}: {lost.total()} lost, {more.total()} doubled or wrong; lost {list(lost)[:3]}, more {list(more)[:3]}"
    ]
