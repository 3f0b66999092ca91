"""Tests that `*` in an expression of the settings means exactly the source's columns, in their order.

Each source is ingested once. Every setting with an expression uses `*`. The expressions for key, value, timestamp,
partition and topic use one form of `*`, and the expression for headers uses every form. Spark cannot know that these
expressions never fail, so Lakelog guards each expression with extra columns. The extra columns of one expression must
not be visible to another expression. Records are read by `lakelog read` and compared as a whole.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import write_deltalake
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from lakelog import cli
from lakelog.dead_letter_tables import UNKNOWN_TOPIC_DEAD_LETTERS
from tests.kafka_broker import KafkaBroker
from tests.pipeline.ingest.ingest_runs import append_values, dead_letters_of, run_ingest, topics_of
from tests.roots.delta_tables import rows_of_table
from tests.stores import root_at, storage_at

Row = dict[str, Any]
"""A row as to_json writes it: a source's columns in their order; None for a null."""

ALL = "to_json(struct(*), map('ignoreNullFields', 'false'))"
SEEN = f"size(json_object_keys({ALL}))"
NAMES = {"k": "a", "_lakelog_timestamp_failed": "mine", "_lakelog_value_failed": None, "_Lakelog_Malformed": "too"}
"""Columns of a user. Some of them have names that Lakelog's own columns could have."""


@dataclass
class Source:
    """A source and its rows.

    number: a column of whole numbers; each row has a different number.
    nested: the columns whose values CSV cannot represent.
    positions: the columns that contain the position of a row.
    """

    settings: dict[str, Any]
    rows: list[Row]
    number: str = "n"
    nested: Sequence[str] = ()
    positions: str | None = None

    @property
    def width(self) -> int:
        return len(self.rows[0])

    def forms(self) -> dict[str, str]:
        """Expressions with `*`, by the name of the header that contains the result of the expression."""
        flat = f"* EXCEPT ({', '.join(self.nested)})" if self.nested else "*"
        return {
            "json": "to_json(struct(*))",
            "nulls": ALL,
            "named": "to_json(named_struct('all', struct(*)))",
            "except": f"to_json(struct(* EXCEPT ({self.number})))",
            "lambda": "to_json(transform(array(1), one -> struct(*)))",
            "csv": f"to_csv(struct({flat}))",
        } | {name: f"to_json(struct({name}.*))" for name in self.nested if isinstance(self.rows[0][name], dict)}

    def record(self, row: Row) -> dict[str, Any]:
        """The record that a row becomes, as `lakelog read` prints it, without offset and epoch."""
        number = int(row[self.number])
        flat = [value for name, value in row.items() if name not in self.nested]
        headers = {
            "json": as_json(row),
            "nulls": as_json(row, nulls=True),
            "named": f'{{"all":{as_json(row)}}}',
            "except": as_json({name: value for name, value in row.items() if name != self.number}),
            "lambda": f"[{as_json(row)}]",
            "csv": ",".join("" if value is None else str(value) for value in flat),
        } | {name: as_json(row[name]) for name in self.nested if isinstance(row[name], dict)}
        return {
            "topic": f"seen-{self.width}", "partition": self.width + number % 2, "timestamp": self.width * 1000 + number,
            "timestampType": "CreateTime", "key": as_json(row, nulls=True), "value": as_json(row),
            "headers": headers,
        }  # fmt: skip


def as_json(row: Row, *, nulls: bool = False) -> str:
    return json.dumps(row if nulls else _without_nulls(row), separators=(",", ":"))


def _without_nulls(row: Row) -> Row:
    return {
        name: _without_nulls(value) if isinstance(value, dict) else value
        for name, value in row.items()
        if value is not None
    }


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def plain(data: str) -> str:
    return base64.b64decode(data).decode()


def moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Ingested:
    """A root, and ingests into it."""

    def __init__(self, spark: SparkSession, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.spark = spark
        self.folder = folder
        self.root = folder / "root"
        self._capsys = capsys

    def run(self, source: Source) -> dict[str, int]:
        """Ingest all rows, and return the number of refused rows by reason. If an expression sees too many columns of a
        row, the row goes to another topic."""
        pairs = ", ".join(
            f"named_struct('key', '{name}', 'value', binary({form}))" for name, form in source.forms().items()
        )
        topics = {f"seen-{source.width + more}": {"partitions": source.width + 4} for more in range(3)}
        ingest = {
            "topics": list(topics),
            "topic.column": f"concat('seen-', {SEEN})",
            "checkpoint": "checkpoints/ingest/all",
            "source": source.settings,
            "key": f"if({SEEN} > 0, {ALL}, null)",
            "value": "to_json(struct(*))",
            "headers": f"array({pairs})",
            "timestamp": f"{SEEN} * 1000 + bigint({source.number})",
            "partition": f"{SEEN} + bigint({source.number}) % 2",
        }
        if source.positions:
            ingest["position.columns"] = source.positions
        conf = self.folder / "settings.yaml"
        conf.write_text(yaml.safe_dump({"root": "unused", "topics": topics, "ingest": ingest}, width=10_000))
        return dict(run_ingest(self.spark, conf, self.root).dead_letters)

    def records(self, topic: str) -> list[dict[str, Any]]:
        """As `lakelog read` prints them, in the order of their timestamps, without offset, epoch and base64."""
        self._capsys.readouterr()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys, "argv", ["lakelog", "read", "--root", root_at(self.root), "--topic", topic])
            with pytest.raises(SystemExit) as ended:
                cli.main()
        assert not ended.value.code
        found = [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]
        for record in found:
            del record["offset"], record["leaderEpoch"]
            record["key"], record["value"] = plain(record["key"]), plain(record["value"])
            record["headers"] = {name: plain(value) for name, value in record["headers"]}
        return sorted(found, key=lambda record: int(record["timestamp"]))

    def check(self, source: Source) -> None:
        """Compare every record with what the source's rows make it."""
        assert self.records(f"seen-{source.width}") == [source.record(row) for row in source.rows]


@pytest.fixture
def ingested(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ingested:
    return Ingested(spark, tmp_path, capsys)


def test_of_json(ingested: Ingested) -> None:
    path = ingested.folder / "json"
    path.mkdir()
    rows = [NAMES | {"n": number, "source": {"a": number, "b": "x"}} for number in range(3)]
    bad: list[Row] = [NAMES | {"n": 3, "source": 7}, NAMES | {"n": None, "source": {"a": 1}}]
    (path / "1.json").write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, *bad]))
    schema = ", ".join([*(f"{name} STRING" for name in NAMES), "n BIGINT, source STRUCT<a INT, b STRING>"])
    settings = {"format": "json", "path": str(path), "schema": schema}
    source = Source(settings, rows, nested=["source"], positions="k, n")

    assert ingested.run(source) == {"malformed": 1, "no_position": 1}

    ingested.check(source)
    (malformed,) = rows_of_table(storage_at(ingested.root), UNKNOWN_TOPIC_DEAD_LETTERS)
    assert malformed["value"].decode() == json.dumps(bad[0])
    (nowhere,) = dead_letters_of(ingested.root, f"seen-{source.width}")
    assert nowhere["value"].decode() == as_json(bad[1])


def test_of_csv(ingested: Ingested) -> None:
    path = ingested.folder / "csv"
    path.mkdir()
    rows = [NAMES | {"n": number} for number in range(3)]
    lines = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
    (path / "1.csv").write_text("".join(f"{line}\n" for line in [",".join(rows[0]), *lines]))
    schema = ", ".join([*(f"{name} STRING" for name in NAMES), "n BIGINT"])
    source = Source({"format": "csv", "path": str(path), "schema": schema, "options": {"header": "true"}}, rows)

    assert ingested.run(source) == {}

    ingested.check(source)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_of_tables(ingested: Ingested, kind: str) -> None:
    path = ingested.folder / kind
    rows = [NAMES | {"_metadata": "mine", "n": number} for number in range(3)]
    table = pa.Table.from_pylist(
        rows, pa.schema([*((name, "string") for name in [*NAMES, "_metadata"]), ("n", "int64")])
    )
    settings = {"format": kind, "path": str(path)}
    if kind == "parquet":
        path.mkdir()
        pq.write_table(table, path / "1.parquet")
        settings["schema"] = ", ".join([*(f"{name} STRING" for name in [*NAMES, "_metadata"]), "n BIGINT"])
    else:
        write_deltalake(path, table)
    source = Source(settings, rows)

    assert ingested.run(source) == {}

    ingested.check(source)


def test_of_a_topic(ingested: Ingested) -> None:
    topics_of(ingested.root).create("events", 1, {})
    events = [{"number": number, "_lakelog_parsed": "mine", "malformed": None} for number in range(3)]
    append_values(ingested.root, "events", *map(json.dumps, events), "no JSON")
    source = Source(
        {
            "format": "lakelog", "schema": "number BIGINT, _lakelog_parsed STRING, malformed STRING",
            "options": {"subscribe": "events"},
        },
        [], number="offset", nested=["key", "value", "headers", "event"], positions="topic, partition, offset",
    )  # fmt: skip
    written = ingested.records("events")
    source.rows = [
        {
            "key": in_base64(record["key"]), "value": in_base64(record["value"]), "topic": "events", "partition": 0,
            "offset": number, "timestamp": moment(record["timestamp"]), "timestampType": 0, "headers": None, "event": event,
        }
        for number, (record, event) in enumerate(zip(written, events, strict=False))
    ]  # fmt: skip

    assert ingested.run(source) == {"malformed": 1}

    ingested.check(source)


def test_of_rate(ingested: Ingested) -> None:
    source = Source(
        {"format": "rate", "options": {"rowsPerSecond": "2"}}, [{"timestamp": None, "value": 0}], number="value"
    )
    assert ingested.run(source) == {}  # no second has passed
    time.sleep(1.1)

    assert ingested.run(source) == {}

    rows = [json.loads(record["value"]) for record in ingested.records("seen-2")]
    assert [row["value"] for row in rows] == list(range(len(rows)))
    assert len(rows) >= 2
    source.rows = rows
    ingested.check(source)


@pytest.mark.kafka
def test_of_kafka(ingested: Ingested, kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("seen")
    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap_servers)
    events = [{"number": number, "_lakelog_parsed": "mine"} for number in range(3)]
    for number, event in enumerate(events):
        producer.send("seen", json.dumps(event).encode(), b"k", [("h", b"v")], timestamp_ms=1_700_000_000_000 + number)
    producer.close()
    source = Source(
        {
            "format": "kafka", "schema": "number BIGINT, _lakelog_parsed STRING",
            "options": {
                "kafka.bootstrap.servers": kafka_broker.bootstrap_servers, "subscribe": "seen",
                "startingOffsets": "earliest", "includeHeaders": "true",
            },
        },
        [
            {
                "key": in_base64("k"), "value": in_base64(json.dumps(event)), "topic": "seen", "partition": 0,
                "offset": number, "timestamp": moment(1_700_000_000_000 + number), "timestampType": 0,
                "headers": [{"key": "h", "value": in_base64("v")}], "event": event,
            }
            for number, event in enumerate(events)
        ],
        number="offset", nested=["key", "value", "headers", "event"], positions="topic, partition, offset",
    )  # fmt: skip

    assert ingested.run(source) == {}

    ingested.check(source)
