"""The settings files in conf/, with other paths and ports: the records are those of the source, also after a
second run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.kafka_broker import KafkaBroker
from tests.pipeline.ingest.ingest_runs import dead_letters_of, records_of, run_ingest
from tests.sample_orders import FILES, KAFKA_TOPIC, orders, send_orders, write_files

CONF = Path(__file__).resolve().parents[4] / "conf"


def identities(records: list[dict[str, Any]]) -> list[tuple[str, str, float]]:
    """The order in each record's value, and that it is one of those that were put in."""
    values = [json.loads(record["value"]) for record in records]
    return sorted((value["id"], value["customer"], value["amount"]) for value in values)


def put_in(count: int) -> list[tuple[str, str, float]]:
    return [(row["id"], row["customer"], row["amount"]) for row in orders(0, count).to_pylist()]


@pytest.mark.parametrize("kind", FILES)
def test_files_and_tables_arrive_and_a_second_run_adds_what_is_new(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    conf, root = CONF / f"{kind}.yaml", tmp_path / "root"
    source = f"ingest.source.path={tmp_path / kind}"
    write_files(tmp_path, 0, 100)
    assert run_ingest(spark, conf, root, source).records == 100
    write_files(tmp_path, 100, 20)

    assert run_ingest(spark, conf, root, source).records == 20

    records = records_of(root, f"orders-{kind}")
    assert identities(records) == put_in(120)
    times = {json.loads(record["value"])["id"]: record["timestamp"] for record in records}
    assert times["order-000001"] - times["order-000000"] == 60_000
    assert {record["key"].decode() for record in records} == {f"customer-{number}" for number in range(7)}
    assert dead_letters_of(root, f"orders-{kind}") == []


def test_a_lakelog_topic_becomes_another_one(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for first, count in ((0, 100), (100, 20)):
        write_files(tmp_path, first, count)
        run_ingest(spark, CONF / "json.yaml", root, f"ingest.source.path={tmp_path / 'json'}")
        assert run_ingest(spark, CONF / "lakelog.yaml", root).records == count

    records = records_of(root, "orders-by-id")
    assert identities(records) == put_in(120)
    assert sorted(record["key"].decode() for record in records) == [order for order, _, _ in put_in(120)]


@pytest.mark.kafka
def test_a_kafka_topic_arrives_byte_for_byte(spark: SparkSession, tmp_path: Path, kafka_broker: KafkaBroker) -> None:
    conf, root = CONF / "kafka.yaml", tmp_path / "root"
    servers = f"ingest.source.options.kafka.bootstrap.servers={kafka_broker.bootstrap_servers}"
    kafka_broker.create_topic(KAFKA_TOPIC, partitions=3)
    send_orders(kafka_broker.bootstrap_servers, 0, 100)
    kafka_broker.send(KAFKA_TOPIC, b"no JSON", key=b"customer-1")
    kafka_broker.send(KAFKA_TOPIC, None, key=b"customer-2")

    first = run_ingest(spark, conf, root, servers)
    assert (first.records, dict(first.dead_letters)) == (101, {"malformed": 1})
    send_orders(kafka_broker.bootstrap_servers, 100, 20)
    assert run_ingest(spark, conf, root, servers).records == 20

    records = records_of(root, "orders-kafka")
    (tombstone,) = [record for record in records if record["value"] is None]
    assert tombstone["key"] == b"customer-2"
    orders_only = [record for record in records if record["value"] is not None]
    assert identities(orders_only) == put_in(120)
    assert all(record["headers"] == [{"key": "from", "value": b"sample"}] for record in orders_only)
    (letter,) = dead_letters_of(root, "orders-kafka")
    assert (letter["key"], letter["value"]) == (b"customer-1", b"no JSON")
    assert letter["source"].startswith(f"{KAFKA_TOPIC}-")
    assert "@" in letter["source"]
