"""Fresh views (a table with the records that are not exported yet), with Spark. Each view equals the view without
Spark, and equals the table after the next export.
"""

from __future__ import annotations

import random
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import lakelog
from lakelog.spark.splits import RECORDS, read_topic
from pipeline.delta.export_plan import ExportMode, ExportRefusedError
from pipeline.delta.exporting import export_increment
from pipeline.delta.fresh import fresh_frame
from storage_engine.config import BrokerConfig
from storage_engine.progress import NO_PROGRESS
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.dropped_files import delete_dropped
from tests.pipeline.delta.order_models import Order, Trip, WideTrip, schema_of
from tests.pipeline.delta.proof.exported_topic import ExportedTopic, some_orders
from tests.roots.delta_tables import table_at

pytestmark = pytest.mark.spark
Row = dict[str, Any]


def view(spark: SparkSession, topic: ExportedTopic) -> DataFrame:
    return lakelog.table(spark, "orders", root=topic.root, schema=schema_of(Order).text)


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["_partition"], row["_offset"]))


def rows_of(found: DataFrame) -> list[Row]:
    return in_order(found.toArrow().to_pylist())


def without_spark(topic: ExportedTopic) -> list[Row]:
    return in_order(topic.topic.table(schema=schema_of(Order).text).to_arrow().to_pylist())


def exported_rows(topic: ExportedTopic) -> list[Row]:
    return in_order(table_at(topic.export.table).to_pyarrow_table().to_pylist())


def test_a_view_is_the_table_after_an_export(spark: SparkSession, tmp_path: Path) -> None:
    """With tombstones, dead letters, compaction and a new partition."""
    chance = random.Random(7)
    topic = ExportedTopic(tmp_path, digest=True)
    for compacted in (False, True):
        some_orders(topic, chance, count=20)
        topic.run_export()
        some_orders(topic, chance, count=20)
        if compacted:
            topic.topics.alter("orders", partitions=3)
            topic.compact()
            some_orders(topic, chance, count=20)
        found = view(spark, topic)
        before = rows_of(found)
        topic.run_export()
        assert before == rows_of(found) == exported_rows(topic)
        assert found.columns == table_at(topic.export.table).to_pyarrow_table().schema.names
    assert rows_of(view(spark, topic)) == exported_rows(topic), "nothing is beyond the table"


def test_rows_whose_tombstones_are_gone_are_gone(spark: SparkSession, tmp_path: Path) -> None:
    """As after a RESTORE: the table is so old that compaction has removed tombstones that the table has not read."""
    topic = ExportedTopic(tmp_path, partitions=1)
    topic.append((b"a", 1), (b"b", 2), (b"c", 3))
    topic.run_export()
    topic.append((b"a", None), (b"c", b"{"))
    topic.append(*((b"fill-%d" % number, number) for number in range(40)))
    topic.run_export()
    for _ in range(2):
        topic.clock.advance(3_600_000)
        topic.compact()
        topic.append(*((b"fill-%d" % number, number) for number in range(40)))
    topic.run_export()
    table_at(topic.export.table).restore(1)
    assert topic.state().partitions[0].tombstones_end > 3, "the tombstone of `a` may be gone"
    found = rows_of(view(spark, topic))
    assert [row["_key"] for row in found][:3] == [b"b", b"c", b"fill-0"]
    assert found == without_spark(topic)
    state = topic.state()
    export_increment(
        spark,
        topic.export,
        topic.ranges(),
        lambda first, end, known, then=RECORDS: read_topic(
            spark, topic.storage, state, first, end, known, NO_PROGRESS, then
        ),
        max_share=1,
    )
    assert found == exported_rows(topic)


def test_an_export_and_retention_while_a_view_is_made(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = ExportedTopic(tmp_path, ExportMode.APPEND, partitions=1)
    topic.append((b"a", 1), (b"b", 2))
    topic.run_export()
    topic.append((b"a", 3), (b"b", None), (b"c", 4))
    topic.append(*((b"fill-%d" % number, number) for number in range(40)))
    topic.append((b"d", 5))
    united = fresh_frame._united
    attempts: list[int] = []

    def raced(*arguments: Any) -> DataFrame:
        if not attempts:
            topic.run_export()
            topic.delete_records(0, 45)
            assert retain_topic(topic.topics.chain("orders"), BrokerConfig()).changed
            topic.clock.advance(3_600_000)
            config = topic.topics.config(topic.state())
            delete_dropped(topic.storage, topic.topics.chain("orders"), config, topic.clock.now_ms())
        attempts.append(1)
        return united(*arguments)

    monkeypatch.setattr(fresh_frame, "_united", raced)
    assert rows_of(view(spark, topic)) == exported_rows(topic)
    assert len(attempts) == 2, "the first attempt found that its records were gone"


def test_a_view_has_the_wider_columns_and_new_fields_and_the_table_stays(spark: SparkSession, tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, partitions=1)
    topic.export = replace(topic.export, schema=schema_of(Trip))
    trip = b'{"number": 1, "count": 2, "price": "1.50", "marks": [3, null], "legs": [{"distance": 4%s}], "home": null}'
    topic.append((b"a", trip % b""), (b"b", trip % b""))
    topic.run_export()
    before = exported_rows(topic)
    topic.append((b"b", trip % b', "stop": "x"'))
    found = lakelog.table(spark, "orders", root=topic.root, table=topic.export.table, schema=schema_of(WideTrip).text)
    wide = {
        "number": 1.0, "count": Decimal("2.00"), "price": Decimal("1.5000"), "marks": [3.0, None], "home": None,
        "note": None,
    }  # fmt: skip
    names = ["_key", "legs", *wide]
    assert [{name: row[name] for name in names} for row in rows_of(found)] == [
        {"_key": b"a", "legs": [{"distance": 4.0, "stop": None}], **wide},
        {"_key": b"b", "legs": [{"distance": 4.0, "stop": "x"}], **wide},
    ]
    assert found.columns[-2:] == ["_stale_since", "note"]
    assert exported_rows(topic) == before


def test_a_table_without_a_stamp_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path)
    with pytest.raises(ExportRefusedError, match="there is no table"):
        view(spark, topic)
