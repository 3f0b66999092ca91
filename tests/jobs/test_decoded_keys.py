"""The jobs `export` and `prove` and the fresh view of topics whose keys have a schema, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakelog
from jobs.export import export
from lakelog.errors import ConfigError
from pipeline.export.export_request import add_export_options
from pipeline.export.proof_run import add_proof_options, prove_exports
from pipeline.job import run_job
from tests.roots.delta_tables import rows_of_table
from tests.schemas.avro.avro_values import encoded, record, with_id
from tests.schemas.protobuf import messages
from tests.schemas.writers.schema_registry import Registry, schema_registry
from tests.stores import root_at, storage_at

KEY = record(("shop", "int"), ("id", "string"), name="Key")
SETTINGS = """
topics:
  orders: {{partitions: 1, cleanup.policy: compact, schema: "id STRING, amount BIGINT"{keys}}}
export: {{topic: orders, max.dead.letter.share: 1, mode: {mode}}}
"""
NO_ID = "key: no_schema_id: neither a header nor the first bytes of the value are the id of a schema"


class Place:
    """A root with the topic orders, and a settings file with its export."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = root_at(folder / "root")
        self.topic = lakelog.open(self.root, create=True).create_topic("orders", partitions=1)

    def use(self, mode: str = "upsert", **keys: str) -> None:
        """keys: the settings of the keys, with _ instead of dots."""
        more = "".join(f', {name.replace("_", ".")}: "{text}"' for name, text in keys.items())
        (self.folder / "conf.yaml").write_text(SETTINGS.format(keys=more, mode=mode))

    def schema(self, schema: Any) -> str:
        (self.folder / "key.avsc").write_text(json.dumps(schema))
        return f"{self.folder}/key.avsc"

    def append(self, *records: tuple[bytes | None, int | None]) -> None:
        """Append records. The second item is the amount; None is a tombstone."""
        values = [None if amount is None else b'{"id": "x", "amount": %d}' % amount for _, amount in records]
        self.topic.append([{"key": key, "value": value} for (key, _), value in zip(records, values, strict=True)])

    def run(self, *arguments: str) -> int:
        argv = ["--conf", f"{self.folder}/conf.yaml", "--root", self.root, *arguments]
        return run_job("export", "", export, add_export_options, argv, {})

    def prove(self) -> int:
        argv = ["--conf", f"{self.folder}/conf.yaml", "--root", self.root]
        return run_job("prove", "", prove_exports, add_proof_options, argv, {})

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        found = sorted(rows_of_table(storage_at(self.folder / "root"), "tables/orders"), key=lambda row: row["_offset"])
        return [tuple(row[name] for name in names) for row in found]

    def letters(self) -> list[tuple[int, str, str | None]]:
        found = rows_of_table(storage_at(self.folder / "root"), "tables/dead_letters/export/orders")
        return sorted((row["offset"], row["reason"], row["detail"]) for row in found)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def server() -> Iterator[Registry]:
    with schema_registry() as found:
        yield found


def test_a_key_is_one_string_in_the_wire_format(place: Place, server: Registry) -> None:
    number = server.add('"string"', "orders-key")
    schema = place.schema("string")
    place.use(key_schema=schema, key_schema_registry=server.url)
    one, two = (with_id(number, encoded("string", text)) for text in ("ä", "b"))
    place.append((one, 1), (two, 2), (b"plain", 3), (one[:-1], 4), (one, 5), (b"plain", None))
    assert place.run() == 0
    assert place.rows("_key_value", "amount", "_key", "_offset") == [("b", 2, two, 1), ("ä", 5, one, 4)]
    short = "key: too_short: the value ends before all of its fields"
    assert place.letters() == [(2, "undecodable", NO_ID), (3, "undecodable", short)]
    assert place.prove() == 0

    other = with_id(server.add('["null", "string"]', "other-key"), encoded("long", 1) + encoded("string", "ä"))
    place.append((two, None), (one, 6), (other, 7))
    names = ("_key_value", "amount", "_key", "_offset")
    view = place.topic.table(schema="id STRING, amount BIGINT", key_schema=schema, key_registry=server.url).to_arrow()
    rows = [("ä", 6, one, 7), ("ä", 7, other, 8)]
    assert sorted(tuple(row[name] for name in names) for row in view.to_pylist()) == rows
    assert place.run() == 0
    assert place.rows(*names) == rows, "the bytes of the key decide which row a record replaces"
    assert place.prove() == 0
    with pytest.raises(
        ConfigError, match="the keys of topic orders have a schema, but the argument key_schema names none"
    ):
        place.topic.table(schema="id STRING, amount BIGINT")


def test_each_field_of_a_key_is_a_column_and_a_record_without_a_key_has_none(place: Place, tmp_path: Path) -> None:
    shop = messages.file()
    message = shop.message_type.add(name="Key")
    messages.add_field(message, "shop", 1, "int32")
    messages.add_field(message, "id", 2, "string")
    content = messages.descriptors(shop)
    (tmp_path / "shop.desc").write_bytes(content)
    place.use("append", key_schema=f"{tmp_path}/shop.desc:shop.Key")
    key = messages.encoded(content, "shop.Key", shop=7, id="a")
    place.append((key, 1), (None, 2), (b"", 3), (b"\xff", 4), (key, None))
    assert place.run() == 0
    rows = [(7, "a", "x", 1), (None, None, "x", 2), (0, "", "x", 3)]
    assert place.rows("_key_shop", "_key_id", "id", "amount") == rows
    assert place.letters() == [(3, "undecodable", "key: malformed"), (4, "no value", None)]
    assert place.prove() == 0


def test_a_changelog_says_which_key_was_deleted(place: Place) -> None:
    place.use("changelog", key_schema="shop BIGINT NOT NULL, id STRING")
    place.append((b'{"shop": 1, "id": "a"}', 1), (b'{"shop": 1, "id": "a"}', None), (b'{"id": "a"}', None))
    place.topic.append([{"key": b"{}", "value": b"{"}])
    assert place.run() == 0
    assert place.rows("_key_shop", "_key_id", "amount", "_change_type") == [
        (1, "a", 1, "upsert"),
        (1, "a", None, "delete"),
    ]
    assert place.letters() == [(number, "undecodable", "key: missing at shop") for number in (2, 3)]
    assert place.prove() == 0


def test_a_view_has_the_columns_of_a_key_schema_that_was_added_later(place: Place) -> None:
    place.use()
    key, other = (encoded(KEY, {"shop": number, "id": "a"}) for number in (1, 2))
    place.append((key, 1))
    assert place.run() == 0
    place.use(key_schema=place.schema(KEY))
    place.append((other, 2))
    view = (
        place.topic.table(schema="id STRING, amount BIGINT", key_schema=place.schema(KEY)).to_arrow().sort_by("amount")
    )
    assert view.select(["_key_shop", "_key_id", "amount"]).to_pylist() == [
        {"_key_shop": None, "_key_id": None, "amount": 1},
        {"_key_shop": 2, "_key_id": "a", "amount": 2},
    ]


@pytest.mark.spark
def test_a_rebuild_fills_the_columns_of_a_key_schema_that_was_added_later(spark: SparkSession, place: Place) -> None:
    place.use()
    place.append((encoded(KEY, {"shop": 1, "id": "a"}), 1))
    assert place.run() == 0
    place.use(key_schema=place.schema(KEY))
    assert place.run("--rebuild") == 0
    assert place.rows("_key_shop", "_key_id", "amount") == [(1, "a", 1)]
    assert place.prove() == 0


def test_a_change_of_a_key_schema_that_breaks_readers_is_refused(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.use(key_schema=place.schema(KEY))
    place.append((encoded(KEY, {"shop": 1, "id": "a"}), 1))
    assert place.run() == 0
    place.append((encoded(KEY, {"shop": 1, "id": "b"}), 2))
    refusals = {
        "_key_id is removed; _key_shop was int and is now str": place.schema(record(("shop", "string"), name="Key")),
        "_key_id is removed; _key_shop is removed": None,
    }
    for problem, schema in refusals.items():
        place.use(**({"key_schema": schema} if schema else {}))
        assert place.run() == 1
        error = capsys.readouterr().err
        assert problem in error
        assert "topics.orders.key.schema: the new model is not compatible" in error
    place.use(key_schema=place.schema(KEY))
    assert place.run() == 0
    assert place.rows("_key_shop", "_key_id", "amount") == [(1, "a", 1), (1, "b", 2)]

    place.use()
    assert place.run("--accept-schema") == 0
    place.append((encoded(KEY, {"shop": 1, "id": "c"}), 3))
    view = place.topic.table(schema="id STRING, amount BIGINT").to_arrow().sort_by("amount")
    assert view.select(["_key_shop", "_key_id", "amount"]).to_pylist() == [
        {"_key_shop": 1, "_key_id": "a", "amount": 1},
        {"_key_shop": 1, "_key_id": "b", "amount": 2},
        {"_key_shop": None, "_key_id": None, "amount": 3},
    ]


def test_what_is_wrong_with_a_key_schema_ends_the_job_at_its_start(
    place: Place, server: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    place.append((b"a", 1))
    conf = f"export: {place.folder}/conf.yaml, line 3, topics.orders.key.schema"
    refusals: list[tuple[dict[str, str], str]] = [
        ({"key_schema": "a.avsc"}, ": the schema's file "),
        (
            {"key_schema": "id STRING", "key_schema_registry": server.url},
            ".registry: a registry is only for Avro and Protobuf",
        ),
        (
            {"key_schema_registry": server.url},
            ".registry: a registry is only for Avro and Protobuf, but topics.orders.key.",
        ),
        (
            {"key_schema": ""},
            ": expected the name of a model, or module:Class, or a file, or columns in Spark's DDL; found",
        ),
    ]
    for keys, problem in refusals:
        place.use(**keys)
        assert place.run() != 0
        assert capsys.readouterr().err.startswith(f"{conf}{problem}")
