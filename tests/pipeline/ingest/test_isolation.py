"""A source's transactions: only committed records are read, unless the settings ask for all records."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaProducer

from jobs.ingest import ingest
from pipeline.job import run_job
from storage_engine.record.record_columns import TO_APPEND
from storage_engine.topic.append.transaction_writer import TransactionWriter
from tests.kafka_broker import PATIENCE_SECONDS, KafkaBroker
from tests.pipeline.ingest.ingest_runs import append_values, records_of, topics_of
from tests.stores import root_at

CONF = Path(__file__).resolve().parents[3] / "conf/kafka.yaml"
ORDER = b'{"id": "%s", "customer": "c", "amount": 1.5, "at": "2026-01-01T00:00:00Z"}'
NOW_MS = 1_767_225_600_000
FROM_A_TOPIC = """
root: unused
topics: {copy: {partitions: 1}}
ingest:
  topic: copy
  source: {format: lakelog, options: {subscribe: events}}
  key: key
  value: value
"""


def summary_of(capfd: pytest.CaptureFixture[str], conf: Path, root: Path, *overrides: str) -> dict[str, Any]:
    """What the job prints with --json; it ends with 0 and warns of nothing."""
    argv = ["--conf", str(conf), "--root", root_at(root), "--json", *(f"--set={each}" for each in overrides)]
    capfd.readouterr()
    assert run_job("ingest", "", ingest, no_arguments_of_its_own, argv, {}) == 0
    summary: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert summary["warnings"] == []
    return summary


def no_arguments_of_its_own(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(take_over=False, accept_new_checkpoint=False)


@pytest.mark.kafka
@pytest.mark.usefixtures("spark")
def test_aborted_kafka_transactions_stay_out(
    tmp_path: Path, kafka_broker: KafkaBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    kafka_broker.create_topic("transacted")
    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap_servers, transactional_id="isolation")
    producer.init_transactions()
    offsets = []
    for order, end in (
        (b"first", producer.commit_transaction),
        (b"taken back", producer.abort_transaction),
        (b"last", producer.commit_transaction),
    ):
        producer.begin_transaction()
        sent = producer.send("transacted", ORDER % order, order, [("from", order)], timestamp_ms=NOW_MS)
        offsets.append(sent.get(PATIENCE_SECONDS).offset)
        end()
    producer.close()
    assert offsets == [0, 2, 4]  # each followed by its transaction's marker
    options = "ingest.source.options"
    source = [f"{options}.kafka.bootstrap.servers={kafka_broker.bootstrap_servers}", f"{options}.subscribe=transacted"]
    without = tmp_path / "kafka.yaml"
    without.write_text("".join(f"{line}\n" for line in CONF.read_text().splitlines() if "isolation" not in line))

    for conf in (CONF, without):
        root = tmp_path / conf.parent.name
        summary = summary_of(capfd, conf, root, *source)
        assert (summary["isolation"], summary["records"]) == ("read_committed", 2)
        assert sorted(records(root, "orders-kafka"), key=str) == [record(b"first"), record(b"last")]
    everything = f"{options}.kafka.isolation.level=read_uncommitted"
    summary = summary_of(capfd, without, tmp_path / "all", *source, everything)
    found = sorted(records(tmp_path / "all", "orders-kafka"), key=str)
    assert found == [record(b"first"), record(b"last"), record(b"taken back")]
    assert (summary["isolation"], summary["records"]) == ("read_uncommitted", 3)


def record(order: bytes) -> dict[str, Any]:
    return {"key": order, "value": ORDER % order, "headers": [{"key": "from", "value": order}], "timestamp": NOW_MS}


def records(root: Path, topic: str) -> list[dict[str, Any]]:
    return [
        {name: found[name] for name in ("key", "value", "headers", "timestamp")} for found in records_of(root, topic)
    ]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_aborted_transactions_of_a_topic_stay_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root, conf = tmp_path / "root", tmp_path / "copy.yaml"
    conf.write_text(FROM_A_TOPIC)
    topics = topics_of(root)
    topics.create("events", 1, {})
    append_values(root, "events", "a plain one")
    for value, end in ((b"taken back", TransactionWriter.abort), (b"kept", TransactionWriter.commit)):
        transaction = TransactionWriter(topics)
        row = {"key": b"k", "value": value, "headers": [], "timestamp": NOW_MS}
        transaction.append("events", pa.RecordBatch.from_pylist([row], schema=TO_APPEND))
        end(transaction)

    summary = summary_of(capfd, conf, root)

    assert (summary["isolation"], summary["records"]) == ("read_committed", 2)
    found = [(each["key"], each["value"], each["headers"]) for each in records_of(root, "copy")]
    assert found == [(b"a", b"a plain one", []), (b"k", b"kept", [])]
