"""What an export into a database writes: whole tables, read by plain SQL."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pipeline.delta.export_plan import ExportBounds
from pipeline.delta.rows.row_decoding import decode_batches, decoded_columns
from pipeline.delta.without_spark.row_changes import IncrementRecords, RecordPlace
from pipeline.settings.jdbc_settings import DatabaseKind
from schemas.event_model import EventModel
from schemas.event_schema import EventSchema
from tests.pipeline.delta.order_models import MendedOrder, OrderWithPrice
from tests.pipeline.delta.test_small_export import Everything
from tests.pipeline.jdbc.shop import Shop


class Unstorable(EventModel):
    text: str
    number: float


def at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def utc(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows with all timestamps in UTC; MariaDB's have no zone."""

    def plain(value: Any) -> Any:
        return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value

    return [tuple(plain(value) for value in row) for row in rows]


def test_newest_record_of_a_key_is_its_row_and_a_tombstone_deletes_it(shop: Shop) -> None:
    for key, value in [(b"a", 1), (b"b", 2), (b"a", 3), (b"c", 4), (b"c", None), (b"\xff\\\t'", 5)]:
        shop.log.add(key, value)
    first = shop.run()
    assert (first.records, first.written, first.deleted, first.tombstones) == (6, 3, 0, 1)
    assert utc(shop.rows()) == [
        (b"a", 3, "red", 0, 2, at(3), None, None, None),
        (b"b", 2, "red", 0, 1, at(2), None, None, None),
        (b"\xff\\\t'", 5, "red", 0, 5, at(6), None, None, None),
    ]
    for key, value in [(b"b", None), (b"d", 6), (b"a", 7)]:
        shop.log.add(key, value)
    second = shop.run()
    assert (second.records, second.written, second.deleted, second.table_version) == (3, 2, 1, 1)
    assert shop.rows("_key", "number", "_offset") == [(b"a", 7, 8), (b"d", 6, 7), (b"\xff\\\t'", 5, 5)]
    assert shop.position() == [("orders", 1)]
    assert shop.letters() == []
    third = shop.run()
    assert (third.records, third.table_version) == (0, 1)
    assert shop.staging_tables() == []


def test_record_that_does_not_decode_leaves_its_row_and_is_kept(shop: Shop) -> None:
    shop.log.add(b"a", 1)
    shop.log.add(b"a", b"{}")
    shop.log.add(b"a", b"[]")
    shop.log.add(None, 2)
    shop.log.add(b"lost", b"{}")
    first = shop.run()
    assert (first.written, first.dead_letters, first.without_row, first.became_stale) == (1, 4, 1, 0)
    stale = (b"a", 1, "red", 0, 0, at(1), 0, 1, at(2))
    assert utc(shop.rows()) == [stale]
    shop.log.add(b"a", b"{}")
    assert shop.run().became_stale == 0
    assert utc(shop.rows()) == [stale]
    assert shop.letters() == [
        (0, 1, b"a", b"{}", "undecodable"),
        (0, 2, b"a", b"[]", "undecodable"),
        (0, 3, None, b'{"number": 2, "colour": "red"}', "no key"),
        (0, 4, b"lost", b"{}", "undecodable"),
        (0, 5, b"a", b"{}", "undecodable"),
    ]
    assert [json.loads(text) for (text,) in shop.letters("headers")] == [[{"key": "trace", "value": "MQ=="}]] * 5
    shop.log.add(b"a", 9)
    shop.log.add(b"b", 1)
    shop.run()
    shop.log.add(b"b", b"{}")
    assert shop.run().became_stale == 1
    assert utc(shop.rows()) == [
        (b"a", 9, "red", 0, 6, at(7), None, None, None),
        (b"b", 1, "red", 0, 7, at(8), 0, 8, at(9)),
    ]


def test_row_stays_stale_if_its_new_record_is_older_than_the_bad_one(shop: Shop) -> None:
    """A key can be in two partitions. Between partitions, the timestamp decides."""
    shop.log.add(b"a", 1, timestamp=1)
    shop.log.add(b"a", b"{}", partition=1, timestamp=10)
    shop.run()
    shop.log.add(b"a", 2, timestamp=5)
    shop.run()
    assert utc(shop.rows()) == [(b"a", 2, "red", 0, 1, at(5), 1, 0, at(10))]
    shop.log.add(b"a", 3, timestamp=11)
    shop.run()
    assert utc(shop.rows()) == [(b"a", 3, "red", 0, 2, at(11), None, None, None)]


EVERYTHING = (
    b'{"text": "\xc3\xa4 \\\\ \' \\" \\t \\n %s", "whole": -9223372036854775808, "real": -2.5e-300, "flag": true,'
    b' "raw": "AP9c", "moment": "2026-01-31T12:00:00.123456+02:00", "day": "0001-01-01",'
    b' "price": "-123456.78", "parts": [{"weight": 1e308, "labels": [null, ""]}, {"labels": []}]}'
)


def test_each_type_is_stored_unchanged(shop: Shop) -> None:
    shop.with_model(Everything)
    shop.log.add(b"a", EVERYTHING)
    shop.log.add(b"late", EVERYTHING, timestamp=253402300799)
    shop.run()
    row, late = utc(
        shop.rows("text", "whole", "real", "flag", "raw", "moment", "day", "price", "parts", "part", "_timestamp")
    )
    assert row[:8] == (
        'ä \\ \' " \t \n %s', -(2**63), -2.5e-300, True, b"\0\xff\\",
        datetime(2026, 1, 31, 10, 0, 0, 123456, tzinfo=UTC), date(1, 1, 1), Decimal("-123456.78"),
    )  # fmt: skip
    assert json.loads(row[8]) == [{"weight": 1e308, "labels": [None, ""]}, {"weight": None, "labels": []}]
    assert row[9] is None
    assert late[-1] == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_topic_without_a_model_is_exported_as_bytes(shop: Shop) -> None:
    shop.export = replace(shop.export, schema=None)
    shop.log.add(b"a", b"\x00\xff'\\")
    shop.log.add(b"b", b"")
    shop.run()
    assert shop.rows("_key", "value") == [(b"a", b"\x00\xff'\\"), (b"b", b"")]


def test_value_that_the_database_cannot_store_is_a_dead_letter(shop: Shop) -> None:
    shop.with_model(Unstorable)
    for key, value in [
        (b"a", b'{"text": "x", "number": 1}'), (b"a", b'{"text": "\\u0000", "number": 1}'),
        (b"b", b'{"text": "x", "number": 1}'), (b"b", b'{"text": "x", "number": NaN}'),
        (b"c" * 2048, b'{"text": "", "number": 1}'), (b"d" * 2049, b'{"text": "x", "number": 1}'),
    ]:  # fmt: skip
        shop.log.add(key, value)
    shop.run()
    unstorable = 1 if shop.target.kind is DatabaseKind.POSTGRESQL else 3
    kept = {1: b'{"text": "\\u0000", "number": 1}', 3: b'{"text": "x", "number": NaN}'}[unstorable]
    assert shop.letters() == [
        (0, unstorable, b"a" if unstorable == 1 else b"b", kept, "does not fit"),
        (0, 5, b"d" * 2049, b'{"text": "x", "number": 1}', "does not fit"),
    ]
    found = {key: (offset, stale) for key, offset, stale in shop.rows("_key", "_offset", "_stale_offset")}
    others = {b"b": (3, None)} if unstorable == 1 else {b"a": (1, None)}
    assert found == {(b"a" if unstorable == 1 else b"b"): (unstorable - 1, unstorable), b"c" * 2048: (4, None)} | others


ODD = "tab\"le`s; %s \\ x'--"


def test_names_with_quotes_are_names(shop: Shop) -> None:
    table = f"{ODD}{shop.target.table[-6:]}"
    shop = Shop(replace(shop.target, table=table))
    shop.export = replace(shop.export, schema=EventSchema("`od\"d'; %s -- x` STRING NOT NULL, `select` BIGINT"))
    shop.log.add(b"a", b'{"od\\"d\'; %s -- x": "\'; DROP", "select": 1}')
    shop.log.add(b"b", b"{}")
    shop.run()
    shop.log.add(b"a", b'{"od\\"d\'; %s -- x": "2", "select": null}')
    shop.run()
    assert shop.rows("od\"d'; %s -- x", "select", "_key") == [("2", None, b"a")]
    assert shop.letters("offset") == [(1,)]
    assert shop.position() == [("orders", 1)]
    assert shop.staging_tables() == []


def test_new_field_is_a_new_column_and_a_removed_field_becomes_null(shop: Shop) -> None:
    shop.log.add(b"a", 1)
    shop.log.add(b"b", 2)
    shop.run()
    shop.with_model(OrderWithPrice)
    shop.log.add(b"b", b'{"number": 3, "price": 1.5}')
    shop.run()
    assert shop.rows("_key", "number", "colour", "price") == [(b"a", 1, "red", None), (b"b", 3, None, 1.5)]


def test_table_that_the_user_created_keeps_its_types(shop: Shop) -> None:
    key = "bytea" if shop.target.kind is DatabaseKind.POSTGRESQL else "varbinary(2048)"
    moment = "timestamptz" if shop.target.kind is DatabaseKind.POSTGRESQL else "datetime(6)"
    text = "text" if shop.target.kind is DatabaseKind.POSTGRESQL else "longtext"
    from tests.pipeline.jdbc.shop import sql

    sql(
        shop.target,
        f"CREATE TABLE {shop.table} (_key {key} PRIMARY KEY, number bigint, colour {text}, _partition integer, _offset"
        f" bigint, _timestamp {moment}, _stale_since {moment}, _stale_partition integer, _stale_offset bigint)",
    )
    shop.log.add(b"a", 1)
    shop.run()
    assert shop.rows("_key", "number") == [(b"a", 1)]


def test_export_from_an_earlier_offset_makes_the_rows_of_a_full_export(shop: Shop) -> None:
    records: list[tuple[bytes, int | bytes]] = [
        (b"a", 1), (b"b", b'{"nummer": 2}'), (b"c", 3), (b"c", b'{"nummer": 4}'),
    ]  # fmt: skip
    for key, value in records:
        shop.log.add(key, value)
    shop.run()
    from tests.pipeline.jdbc.shop import sql

    sql(shop.target, f"UPDATE {shop.table} SET _key = 'phantom', number = 7 WHERE number = 1")
    shop.with_model(MendedOrder)
    again = shop.run(bounds=ExportBounds(from_offsets={0: 0}))
    assert (again.written, again.deleted) == (3, 1)
    assert shop.rows("_key", "number", "_offset", "_stale_offset") == [
        (b"a", 1, 0, None), (b"b", 2, 1, None), (b"c", 4, 3, None),
    ]  # fmt: skip
    assert shop.letters("offset") == [(1,), (3,)]


# --- Increments ---------------------------------------------------------------------------------------------------


def random_log(shop: Shop, chance: random.Random) -> None:
    for _ in range(120):
        key = chance.choice([b"a", b"b", b"c", b"d", b"e", b"f"])
        values: list[int | bytes | None] = [chance.randrange(1000), None, b"{}"]
        [value] = chance.choices(values, [6, 1, 2])
        shop.log.add(key, value, partition=chance.randrange(2))


def expected(shop: Shop) -> list[tuple[Any, ...]]:
    """The rows by the rules in Python (`row_changes`), of the whole log at once."""
    start = dict.fromkeys(shop.log.records, 0)
    end = {each: len(records) for each, records in shop.log.records.items()}
    batches: Iterator[pa.RecordBatch] = decode_batches(shop.log.read_batches(start, end, {}), shop.export)
    decoded = pa.Table.from_batches(batches, schema=decoded_columns(shop.export))
    records = IncrementRecords(decoded)
    found = []
    for index, stale in records.decide({}).written.items():
        row = decoded.slice(index, 1).to_pylist()[0]
        place: RecordPlace = records.places[index]
        found.append(
            (row["_key"], row["number"], place.partition, place.offset, stale and stale[0], stale and stale[1])
        )
    return sorted(found)


@pytest.mark.parametrize("seed", range(2))
def test_increments_cut_at_random_make_the_table_of_a_single_export(shop: Shop, seed: int) -> None:
    chance = random.Random(seed)
    random_log(shop, chance)
    cuts = [sorted(chance.choices(range(len(records) + 1), k=6)) for _, records in sorted(shop.log.records.items())]
    for ends in zip(*cuts, strict=True):
        shop.run(up_to=dict(enumerate(ends)))
    shop.run()
    columns = ("_key", "number", "_partition", "_offset", "_stale_partition", "_stale_offset")
    assert sorted(shop.rows(*columns)) == expected(shop)
    places = [(letter[3], letter[4]) for letter in shop.log.in_order if letter[1] == b"{}"]
    assert shop.letters("partition", "offset") == sorted(places)


def test_rows_of_attempts_that_lost_are_ignored(shop: Shop) -> None:
    """Spark may run a task twice."""
    shop.log.add(b"a", 1)
    shop.log.add(b"a", b"{}")

    def twice(plan: Any, staging: Any) -> Any:
        shop.fill_tables(plan, staging)
        return shop.fill_tables(plan, staging)

    done = shop.run(fill_tables=twice)
    assert (done.records, done.written, done.dead_letters) == (2, 1, 1)
    assert shop.rows("_key", "number") == [(b"a", 1)]
    assert shop.letters("offset") == [(1,)]


class Visit(EventModel):
    at: datetime


class Visits(EventModel):
    at: datetime
    one: Visit | None = None
    many: list[Visit] | None = None


EARLY, LATE = "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"


def test_time_that_is_in_another_year_in_utc_is_a_dead_letter(shop: Shop) -> None:
    shop.with_model(Visits)
    good = "9999-12-31T23:59:59.999999Z"
    values: list[dict[str, Any]] = [{"at": good, "one": {"at": good}, "many": [{"at": good}, {"at": good}]}]
    for bad in (EARLY, LATE):
        values += [{"at": bad}, {"at": good, "one": {"at": bad}}, {"at": good, "many": [{"at": good}, {"at": bad}]}]
    values += [{"at": "0001-01-01T00:00:00Z"}]
    for number, value in enumerate(values):
        shop.log.add(b"%d" % number, json.dumps(value).encode())
    shop.run()
    assert shop.rows("_key") == [(b"0",), (b"7",)]
    assert shop.letters("offset", "reason", "detail") == [
        (offset, "undecodable", f"out_of_range at {name}")
        for offset, name in enumerate(["at", "one", "many", "at", "one", "many"], start=1)
    ]


def test_unknown_fields_are_a_text(shop: Shop) -> None:
    """A database gets them as JSON, in which U+0000 is no obstacle. Without the setting, a new row has none."""
    known = shop.export.schema
    assert known is not None
    shop.log.add(b"a", b'{"number": 1}')
    shop.run()
    shop.export = replace(shop.export, schema=replace(known, has_extra=True))
    shop.log.add(b"b", '{"number": 2, "é": "\\u0000\\"\\\\", "n": 0.12345678901234567890}'.encode())
    shop.log.add(b"c", b'{"number": 3, "x": []}')
    shop.run()
    kept = '{"n":0.12345678901234567890,"é":"\\u0000\\"\\\\"}'
    assert shop.rows("_key", "number", "_extra") == [(b"a", 1, None), (b"b", 2, kept), (b"c", 3, '{"x":[]}')]
    shop.export = replace(shop.export, schema=known)
    shop.log.add(b"c", b'{"number": 4, "x": []}')
    shop.run()
    assert shop.rows("_key", "number", "_extra") == [(b"a", 1, None), (b"b", 2, kept), (b"c", 4, None)]
