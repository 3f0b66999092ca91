"""An ingest of Avro values that another topic has, with a check of each value, and their export with Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakelog
from jobs.export import export
from pipeline.export.export_request import add_export_options
from pipeline.ingest.rows.source_rows import names_event
from pipeline.job import run_job
from pipeline.settings import load_settings
from pipeline.topic_model import check_schemas
from storage_engine.errors import ConfigError
from tests.pipeline.ingest.ingest_runs import run_ingest
from tests.roots.delta_tables import rows_of_table
from tests.schemas.avro.avro_values import encoded, record, with_id
from tests.schemas.writers.schema_registry import schema_registry
from tests.stores import root_at, storage_at

ORDER = record(("id", "string"), ("amounts", {"type": "map", "values": "int"}))
CONF = """
topics:
  orders: {{partitions: 1, schema: FOLDER/order.avsc, schema.registry: "URL", key.schema: "k BIGINT NOT NULL"}}
ingest:
  topic: orders
  source: {{format: lakelog, options: {{root: "{source}", subscribe: raw}}}}
  key: "{key}"
  value: value
  headers: headers
  validate: true
export: {{topic: orders, mode: append, spark.records: 0}}
"""


@pytest.mark.spark
def test_values_are_checked_copied_and_exported(spark: SparkSession, tmp_path: Path) -> None:
    source, root = root_at(tmp_path / "source"), tmp_path / "root"
    raw = lakelog.open(source, create=True).create_topic("raw", partitions=1)
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    conf = tmp_path / "conf.yaml"
    with schema_registry() as server:
        number = server.add(json.dumps(ORDER), "orders-value")
        conf.write_text(
            CONF.format(source=source, key="key").replace("FOLDER", str(tmp_path)).replace("URL", server.url)
        )
        value = with_id(number, encoded(ORDER, {"id": "a", "amounts": {"x": 1}}))
        key = b'{"k": 1}'
        raw.append([{"key": key, "value": each} for each in (value, value[:-1], None, b"{}")])
        raw.append([{"key": b"{}", "value": value}])
        named = [("__value_schema_id", value[:5])]
        raw.append([{"key": key, "value": value[5:], "headers": named}])
        result = run_ingest(spark, conf, root)
        assert (result.records, dict(result.dead_letters)) == (3, {"invalid": 3})
        letters = rows_of_table(storage_at(root), "tables/dead_letters/ingest/orders")
        by = f", by the schema {tmp_path}/order.avsc"
        assert sorted((row["value"], row["detail"]) for row in letters) == [
            (value[:-1], f"too_short: the value ends before all of its fields{by}"),
            (value, "key: missing at k, by the schema k BIGINT NOT NULL"),
            (b"{}", f"no_schema_id: neither a header nor the first bytes of the value are the id of a schema{by}"),
        ]
        argv = ["--conf", str(conf), "--root", root_at(root), "--set", "export.max.dead.letter.share=1"]
        assert run_job("export", "", export, add_export_options, argv, {}) == 0
    rows = rows_of_table(storage_at(root), "tables/orders")
    assert sorted((row["_offset"], row["id"], row["amounts"], row["_key_k"]) for row in rows) == [
        (0, "a", [("x", 1)], 1), (2, "a", [("x", 1)], 1),
    ]  # fmt: skip
    letters = rows_of_table(storage_at(root), "tables/dead_letters/export/orders")
    assert [(row["offset"], row["reason"]) for row in letters] == [(1, "no value")]


EVERYTHING = record(
    ("id", "string"),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}),
    ("legs", {"type": "array", "items": record(("distance", "int"), name="Leg")}),
    ("stops", {"type": "map", "values": ["null", "Leg"]}),
    ("either", ["null", "string", "Leg"]),
)
FULL = {
    "id": "a",
    "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "price": Decimal("7.9000"),
    "legs": [{"distance": 1}],
    "stops": {"x": {"distance": 3}, "y": None},
    "either": ("shop.Leg", {"distance": 4}),
}


@pytest.mark.spark
def test_expressions_of_an_ingest_see_the_fields_of_a_decoded_value(spark: SparkSession, tmp_path: Path) -> None:
    source, root = root_at(tmp_path / "source"), tmp_path / "root"
    raw = lakelog.open(source, create=True).create_topic("raw", partitions=1)
    (tmp_path / "order.avsc").write_text(json.dumps(EVERYTHING))
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "7.avsc").write_text(json.dumps(EVERYTHING))
    value = encoded(EVERYTHING, FULL)
    named = [("__value_schema_id", with_id(7, b""))]
    raw.append([{"key": b"k", "value": each, "headers": named} for each in (value, value[:-1], None)])
    raw.append([{"key": b"k", "value": with_id(7, value)}])
    key = "concat_ws(' ', event.id, event.at, event.price, event.legs[0].distance, to_json(event.stops), to_json(event.either))"
    text = CONF.format(source=source, key=key).replace("FOLDER", str(tmp_path)).replace("URL", f"{tmp_path}/schemas")
    text = text.replace("  validate: true\n", "").replace(', key.schema: "k BIGINT NOT NULL"', "")
    (tmp_path / "conf.yaml").write_text(text)
    result = run_ingest(spark, tmp_path / "conf.yaml", root)
    assert (result.records, dict(result.dead_letters)) == (3, {"malformed": 1})
    found = lakelog.open(root_at(root)).topic("orders").read().to_arrow()
    fields = 'a 2026-01-31 12:00:00 7.9000 1 {"x":{"distance":3},"y":null} {"member1":{"distance":4}}'
    assert found.select(["key", "value"]).to_pylist() == [
        {"key": fields.encode(), "value": value}, {"key": b"", "value": None},
        {"key": fields.encode(), "value": with_id(7, value)},
    ]  # fmt: skip
    (letter,) = rows_of_table(storage_at(root), "tables/dead_letters/ingest/orders")
    assert (letter["reason"], letter["value"]) == ("malformed", value[:-1])

    # The topic has another schema than the messages of the source: Avro becomes JSON.
    text = text.replace(f"schema: {tmp_path}/order.avsc, schema.registry: {tmp_path}/schemas", "schema: 'id STRING'")
    text = text.replace("source: {", f"source: {{schema: {tmp_path}/order.avsc, schema.registry: {tmp_path}/schemas, ")
    text = text.replace("value: value", "value: to_json(event)").replace(f'key: "{key}"', "key: event.id")
    (tmp_path / "json.yaml").write_text(text)
    result = run_ingest(spark, tmp_path / "json.yaml", tmp_path / "json")
    assert (result.records, dict(result.dead_letters)) == (3, {"malformed": 1})
    found = lakelog.open(root_at(tmp_path / "json")).topic("orders").read().to_arrow()
    fields = (
        '{"id":"a","at":"2026-01-31T12:00:00.000Z","price":7.9000,"legs":[{"distance":1}],"stops":{"x":{"distance":3}'
    )
    assert [None if each is None else each[: len(fields)] for each in found["value"].to_pylist()] == [
        fields.encode(), None, fields.encode(),
    ]  # fmt: skip


def test_a_schema_of_values_is_no_schema_of_rows(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    conf = tmp_path / "conf.yaml"
    text = (
        CONF.format(source=tmp_path, key="key").replace("FOLDER", str(tmp_path)).replace(', schema.registry: "URL"', "")
    )
    conf.write_text(text)
    settings = load_settings(conf, (), root_at(tmp_path / "root"))
    check_schemas(settings)

    def refused(*more: str) -> str:
        with pytest.raises(ConfigError) as caught:
            check_schemas(load_settings(conf, more, root_at(tmp_path / "root")))
        return str(caught.value)

    source = f"ingest.source.schema={tmp_path}/order.avsc"
    check_schemas(load_settings(conf, (source,), root_at(tmp_path / "root")))
    assert refused(source, "ingest.source.format=parquet") == (
        f"--set ingest.source.schema: found '{tmp_path}/order.avsc', a schema in Avro or Protobuf, which decodes only the"
        " values of messages, but a source of format parquet has rows. Give a model, or columns such as `id BIGINT, name"
        " STRING`."
    )
    missing = f"{tmp_path}/missing"
    assert refused(f"{source[:-10]}none.avsc").startswith(
        f"--set ingest.source.schema: the schema's file {tmp_path}/none.avsc cannot be read"
    )
    assert refused(source, f"ingest.source.schema.registry={missing}").startswith(
        f"--set ingest.source.schema.registry: the folder of schemas {missing} cannot be read"
    )
    assert (
        "a registry is only for Avro and Protobuf, but ingest.source.schema is not in one of these formats"
        in refused(f"ingest.source.schema.registry={tmp_path}")
    )


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("event.id", True), ("concat(Event.id, 'x')", True), ("`event`.id", True), ("concat('it\\'s ', event.id)", True),
        ("struct(event.event)", True), ("upper('a')||event.id||'b'", True),
        ("get_json_object(CAST(value AS STRING), '$.event.id')", False), ("map('event', key)", False),
        ('concat("event", key)', False), ("concat('it\\'s event', key)", False), ("from_json(x, 'y').`event`.id", False),
        ("events.id", False),
    ],
)  # fmt: skip
def test_the_values_are_decoded_only_if_an_expression_names_event(tmp_path: Path, key: str, names: bool) -> None:
    conf = tmp_path / "conf.yaml"
    conf.write_text(CONF.format(source=tmp_path, key="KEY"))
    settings = load_settings(conf, (f"ingest.key={key}",), root_at(tmp_path / "root"))
    assert names_event(settings) == names
