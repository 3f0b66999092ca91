"""Compares writes through the sink with writes through Spark's Kafka sink: equal records, and equal refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.lakelog.spark.twins import BIG, FORMATS, LAKELOG, Twins, rows_of
from tests.roots.checkpoints import completed_batches, lose
from tests.stores import files_below, root_at, storage_at

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

HEADERS = (
    "array(named_struct('key', 'h', 'value', unhex(hex(id))), named_struct('key', 'n', 'value', cast(null as binary)))"
)
WRITES: dict[str, tuple[list[str], dict[str, str]]] = {
    "text": (["concat('k', id) key", "concat('v', id) value"], {"topic": "ONE"}),
    "bytes, headers and what is ignored": (
        ["unhex(hex(id)) key", "unhex(hex(id + 1000)) value", f"{HEADERS} headers", "id", "'x' Value"], {"topic": " ONE "},
    ),
    "tombstones and partitions": (
        ["if(id % 4 = 0, null, 'k') key", "if(id % 3 = 0, null, 'v') value", "cast(id % 3 as int) partition"], {"topic": "ONE"},
    ),
    "a topic for each row": (
        ["concat('k', id) key", "concat('v', id) value", "if(id % 5 = 0, 'ONE', 'TWO') topic"], {},
    ),
    "the option before the column": (["concat('k', id) key", "'v' value", "'nowhere' topic"], {"topic": "TWO"}),
}  # fmt: skip
REFUSED: list[tuple[list[str], dict[str, str], str, str]] = [
    (["'k' key"], {"topic": "ONE"}, "append", "value"),
    (["'v' VALUE"], {"topic": "ONE"}, "append", "(?i)value.*(missing|not found)"),
    (["'v' value"], {}, "append", "topic"),
    (["'v' value", "'ONE' topic"], {"topic": " "}, "append", "(?i)topic"),
    (["id value"], {"topic": "ONE"}, "append", "bigint"),
    (["'v' value", "id key"], {"topic": "ONE"}, "append", "bigint"),
    (["'v' value", "id partition"], {"topic": "ONE"}, "append", "bigint"),
    (["'v' value", "array('h') headers"], {"topic": "ONE"}, "append", "array<string>"),
    (["'v' value", "interval 1 day i"], {"topic": "ONE"}, "append", "(?i)column `?i.*interval day"),
    (["'v' value", "interval 1 month i"], {"topic": "ONE"}, "append", "(?i)column `?i.*interval month"),
    (["'v' value", "array(parse_json('1')) i"], {"topic": "ONE"}, "append", "(?i)column `?i.*array<variant>"),
    (["'v' value", "cast(null as string) topic"], {}, "append", "null"),
    (["'v' value", "cast(-1 as int) partition"], {"topic": "ONE"}, "append", "-1"),
    (["'v' value"], {"topic": "ONE", "kafka.value.serializer": "x"}, "append", "value.serializer"),
    (["'v' value"], {"topic": "ONE"}, "overwrite", "(?i)overwrite"),
]


@pytest.mark.parametrize("case", WRITES)
def test_a_write_appends_what_the_kafka_sink_appends(twins: Twins, spark: SparkSession, case: str) -> None:
    columns, options = WRITES[case]
    names = {word: twins.create(twins.name(f"sink-{word.lower()}"), 0, 0, 0) for word in ("ONE", "TWO")}
    found = []
    for kind in FORMATS:
        write(twins, kind, frame(spark, columns, names), {name: of(names, value) for name, value in options.items()})
        found.append(records(twins, kind, names))
    of_kafka, ours = found
    assert ours == of_kafka
    assert len(ours) == 20


@pytest.mark.parametrize(("columns", "options", "mode", "fact"), REFUSED)
def test_a_write_that_the_kafka_sink_refuses_is_refused(
    twins: Twins, spark: SparkSession, columns: list[str], options: dict[str, str], mode: str, fact: str
) -> None:
    names = {"ONE": twins.create(twins.name("sink-refused"), 0)}
    for kind in FORMATS:
        with pytest.raises((PySparkException, Py4JError)) as refusal:
            write(twins, kind, frame(spark, columns, names), {k: of(names, v) for k, v in options.items()}, mode)
        assert re.search(fact, str(refusal.value), re.DOTALL), str(refusal.value)
        assert records(twins, kind, names) == []


def test_a_stream_appends_each_row_once_to_each_topic(twins: Twins, spark: SparkSession, tmp_path: Path) -> None:
    one, two = (twins.create(twins.name(f"streamed-{word}"), 0) for word in ("one", "two"))
    storage = storage_at(tmp_path)

    def run(checkpoint: str, limit: int = 40) -> None:
        options = {"subscribe": BIG, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(limit)}
        rows = twins.spark.readStream.format(LAKELOG).options(**(twins.options(LAKELOG) | options)).load()
        ignored = "interval 1 day i", "parse_json('1') v"  # only a batch must not have columns of these types
        chosen = rows.selectExpr("key", "value", "timestamp", f"if(offset % 2 = 0, '{one}', '{two}') topic", *ignored)
        stream = chosen.writeStream.format(LAKELOG).options(**twins.options(LAKELOG))
        stream = stream.option("checkpointLocation", root_at(tmp_path / checkpoint))
        stream.trigger(availableNow=True).start().awaitTermination()

    expected = [
        {"topic": two if row["offset"] % 2 else one, **{name: row[name] for name in ("key", "value", "timestamp")}}
        for row in rows_of(twins.frame(LAKELOG, {"subscribe": BIG}))
    ]

    def check() -> None:
        found = [
            {name: row[name] for name in ("topic", "key", "value", "timestamp")}
            for row in rows_of(twins.frame(LAKELOG, {"subscribe": f"{one},{two}"}))
        ]
        assert sorted(found, key=str) == sorted(expected, key=str)

    run("checkpoint")
    check()
    batch = max(completed_batches(storage, "checkpoint"))
    storage.delete(f"checkpoint/commits/{batch}")  # the driver died behind the topics' commits
    for key in files_below(storage, "checkpoint/"):
        storage.put_new(f"copy/{key.removeprefix('checkpoint/')}", storage.read(key))
    run("checkpoint")
    check()
    lose(storage, "copy", f"offsets/{batch}")
    twins.append(BIG, 0)  # nothing new, so the rolled-back copy plans the same rows with another limit
    with pytest.raises(
        PySparkException, match=r"found batch \d+ with the offsets' hash .*The checkpoint was copied or rolled back"
    ):
        run("copy", limit=7)
    check()


def test_a_stream_whose_batches_cannot_be_identified_is_refused(
    twins: Twins, spark: SparkSession, tmp_path: Path
) -> None:
    topic = twins.create(twins.name("unidentified"), 0)
    spark.conf.set("spark.sql.streaming.checkpointLocation", root_at(tmp_path))
    try:
        rows = twins.spark.readStream.format(LAKELOG).options(**twins.options(LAKELOG)).option("subscribe", BIG)
        stream = rows.option("startingOffsets", "earliest").load().writeStream.format(LAKELOG)
        query = stream.options(**twins.options(LAKELOG)).option("topic", topic).trigger(availableNow=True).start()
        with pytest.raises(PySparkException, match="option checkpointLocation: is missing"):
            query.awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert rows_of(twins.frame(LAKELOG, {"subscribe": topic})) == []


def frame(spark: SparkSession, columns: list[str], names: dict[str, str]) -> DataFrame:
    return spark.range(20).coalesce(1).selectExpr(*(of(names, column) for column in columns))


def of(names: dict[str, str], text: str) -> str:
    """A text with the names of topics in the place of words."""
    for word, name in names.items():
        text = re.sub(rf"\b{word}\b", name, text)
    return text


def write(twins: Twins, kind: str, rows: DataFrame, options: dict[str, str], mode: str = "append") -> None:
    rows.write.format(kind).mode(mode).options(**(twins.options(kind) | options)).save()


def records(twins: Twins, kind: str, names: dict[str, str]) -> list[dict[str, Any]]:
    """Whole records in order. Kafka's sink chooses the partition of a record without a key, and the time."""
    rows = rows_of(twins.frame(kind, {"subscribe": ",".join(names.values()), "includeHeaders": "true"}))
    return [{name: value for name, value in row.items() if not name.startswith("timestamp")} for row in rows]
