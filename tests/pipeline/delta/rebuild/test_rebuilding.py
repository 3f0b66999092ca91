"""Rebuilds: a table is made again from the log, in one commit, and no row is lost without consent."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from lakelog.spark.splits import RECORDS, read_topic
from pipeline.delta.dead_letter_share import TooManyDeadLettersError
from pipeline.delta.export_plan import (
    NO_BOUNDS,
    Export,
    ExportBounds,
    ExportMode,
    ExportModeError,
    TableSchemaError,
    TopicRecreatedError,
)
from pipeline.delta.exporting import ReadRecords, export_increment
from pipeline.delta.rebuild import rebuilding
from pipeline.delta.rebuild.lost_rows import LostRows, RowsWouldBeLostError, check_lost
from pipeline.delta.rebuild.rebuilding import RebuildOptions, RebuildResult, rebuild_table
from pipeline.delta.replaying import replay
from pipeline.delta.table_history import read_head
from storage_engine.errors import ConflictError
from storage_engine.progress import NO_PROGRESS
from tests.pipeline.delta.order_models import MendedOrder, MendedOrderWithPrice, OrderWithText, schema_of
from tests.pipeline.delta.proof.exported_topic import ExportedTopic, some_orders, whole
from tests.roots.delta_tables import rows_of_table, table_at

pytestmark = pytest.mark.spark
Row = dict[str, Any]


def reading(spark: SparkSession, topic: ExportedTopic) -> ReadRecords:
    state = topic.state()
    return lambda first, end, known, then=RECORDS: read_topic(
        spark, topic.storage, state, first, end, known, NO_PROGRESS, then
    )


def rebuild(
    spark: SparkSession, topic: ExportedTopic, export: Export, accepted_lost: int = 0, max_share: float = 1,
    bounds: ExportBounds = NO_BOUNDS,
) -> RebuildResult:  # fmt: skip
    head = read_head(export.table)
    assert head is not None
    return rebuild_table(
        spark,
        export,
        head,
        topic.ranges(),
        reading(spark, topic),
        topic.ranges,
        options=RebuildOptions(accepted_lost, bounds, max_share),
    )


def rows(export: Export, version: int | None = None) -> list[Row]:
    found = table_at(export.table, version).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["_partition"], row["_offset"]))


def new_table(topic: ExportedTopic, export: Export) -> list[Row]:
    """The rows of a new table that is made from the same log."""
    before, topic.export = topic.export, replace(export, table=f"{export.table}-{topic.clock.now_ms()}")
    topic.run_export()
    found = rows(topic.export)
    topic.export = before
    return found


def outcomes(topic: ExportedTopic) -> dict[int, str | None]:
    letters = rows_of_table(topic.storage, "tables/dead_letters/export/orders")
    return {row["offset"]: row["outcome"] for row in letters if row["table_id"] == table_id(topic)}


def table_id(topic: ExportedTopic) -> str:
    return str(table_at(topic.export.table).metadata().id)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (ExportMode.APPEND, ExportMode.UPSERT),
        (ExportMode.UPSERT, ExportMode.APPEND),
        (ExportMode.UPSERT, ExportMode.CHANGELOG),
    ],
)
def test_a_table_gets_another_mode(spark: SparkSession, tmp_path: Path, old: ExportMode, new: ExportMode) -> None:
    chance = random.Random(f"{old}{new}")
    topic = ExportedTopic(tmp_path, old, digest=True)
    for _ in range(3):
        some_orders(topic, chance)
        topic.run_export()
    some_orders(topic, chance)
    before, version = rows(topic.export), table_at(topic.export.table).version()
    topic.export = replace(topic.export, mode=new)
    with pytest.raises(ExportModeError) as refused:
        topic.run_export()
    assert str(refused.value) == (
        f"{topic.export.table}: was exported in {old} mode; the mode in the settings is now {new}. To make the table again"
        " in the new mode, run the export once with --rebuild. Or export to another table."
    )

    result = rebuild(spark, topic, topic.export)
    assert (result.before, result.lost, result.foreign) == (len(before), LostRows(), ())
    assert result.exported.table_version == version + 1
    assert rows(topic.export) == new_table(topic, topic.export)
    assert rows(topic.export, version) == before, "time travel shows the old table"
    proof = topic.prove()
    assert whole(proof) == {
        "answer": "equal", "rows": result.exported.written, "equal": result.exported.written, "unprovable": {},
        "differences": [],
    }  # fmt: skip
    some_orders(topic, chance)
    topic.run_export()
    assert rows(topic.export) == new_table(topic, topic.export)
    assert whole(topic.prove())["answer"] == "equal"


def test_after_a_restore_the_mode_of_the_rows_counts(spark: SparkSession, tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, ExportMode.APPEND, partitions=1)
    topic.append((b"a", 1), (b"a", 2))
    topic.run_export()
    upsert = replace(topic.export, mode=ExportMode.UPSERT)
    rebuild(spark, topic, upsert)
    assert [row["number"] for row in rows(upsert)] == [2]
    table_at(topic.export.table).restore(1)
    topic.append((b"a", 3))
    topic.export = upsert
    with pytest.raises(ExportModeError, match="was exported in append mode"):
        topic.run_export()
    topic.export = replace(upsert, mode=ExportMode.APPEND)
    topic.run_export()
    assert [row["number"] for row in rows(topic.export)] == [1, 2, 3]


def test_rows_that_the_log_no_longer_has_are_not_lost_without_consent(spark: SparkSession, tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, ExportMode.APPEND, partitions=1)
    topic.append((b"a", 1), (b"b", 2), (b"c", 3), (b"a", 4))
    topic.append(*((b"fill-%d" % number, number) for number in range(40)))
    topic.append((b"d", 5))
    topic.run_export()
    topic.compact()  # removes offset 0
    topic.delete_records(0, 2)  # deletes offset 1
    before, version = rows(topic.export), table_at(topic.export.table).version()
    with pytest.raises(RowsWouldBeLostError) as refused:
        rebuild(spark, topic, topic.export)
    assert str(refused.value) == (
        f"{topic.export.table}: a rebuild would lose 2 of 45 rows, because the log no longer has their records (2 deleted by"
        " retention). Nothing was changed. Choose one: (1) keep this table, and make a second table beside it: change"
        " export.table; (2) accept the loss once with --rebuild --accept-lost-rows 2."
    )
    with pytest.raises(RowsWouldBeLostError, match=r"and --accept-lost-rows accepts 1\. "):
        rebuild(spark, topic, replace(topic.export, section="exports.o"), accepted_lost=1)
    assert (rows(topic.export), table_at(topic.export.table).version()) == (before, version)
    assert rebuild(spark, topic, topic.export, accepted_lost=2).lost == LostRows(retention=2)
    assert [row["_offset"] for row in rows(topic.export)] == list(range(2, 45))


def test_a_rebuild_without_digests_and_without_new_records_leaves_no_row_that_may_be_older_than_a_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    topic = ExportedTopic(tmp_path, ExportMode.APPEND, partitions=1)
    topic.append((b"a", b'{"number": 1, "price": 2.5}'), (b"b", 2))
    topic.run_export()
    topic.export = replace(topic.export, schema=schema_of(MendedOrderWithPrice))
    rebuild(spark, topic, topic.export)
    assert whole(topic.prove())["answer"] == "equal"
    table_at(topic.export.table).update(predicate="_offset = 0", updates={"price": "NULL"})
    assert [each.problem for each in topic.prove().findings.differences] == ["another value in price"]


def test_rows_that_were_exported_without_a_column_do_not_differ(spark: SparkSession, tmp_path: Path) -> None:
    for mode in (ExportMode.APPEND, ExportMode.UPSERT):
        topic = ExportedTopic(tmp_path / mode, mode, partitions=1)
        price = b'{"number": %d, "price": 2.5}'
        whole_rows = replace(topic.export, headers=mode is ExportMode.APPEND, schema=schema_of(MendedOrderWithPrice))
        for key, export in [
            (b"a", whole_rows), (b"b", replace(whole_rows, headers=False, schema=schema_of(MendedOrder))), (b"c", whole_rows),
        ]:  # fmt: skip
            topic.export = export
            topic.append((key, price % 1))
            export_increment(spark, export, topic.ranges(), reading(spark, topic))
        proof = whole(topic.prove())
        assert [row["price"] for row in rows(topic.export)] == [2.5, None, 2.5]
        assert (proof["answer"], proof["differences"], proof["equal"]) == ("equal as far as the log can tell", [], 2)
        # A row that is newer than such an export must have the column.
        table_at(topic.export.table).update(predicate="_offset = 2", updates={"price": "NULL"})
        assert [tuple(each) for each in topic.prove().findings.differences] == [(0, 2, "another value in price")]


def test_what_compaction_removed_is_lost_only_if_no_newer_record_decides(spark: SparkSession, tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, partitions=1)
    topic.append((b"stale", 1), (b"replaced", 2), (b"deleted", 3), (b"stays", 4))
    topic.run_export()
    topic.append((b"stale", b"{"), (b"replaced", 6), (b"deleted", None))
    topic.append(*((b"fill-%d" % number, number) for number in range(40)))
    topic.append((b"end", 8))
    topic.run_export()
    topic.compact()
    assert [row["_key"] for row in rows(topic.export)][:3] == [b"stale", b"stays", b"replaced"]
    with pytest.raises(RowsWouldBeLostError, match=r"would lose 1 of 44 rows, .* \(1 removed by compaction\)"):
        rebuild(spark, topic, topic.export)
    assert rebuild(spark, topic, topic.export, accepted_lost=1).lost == LostRows(compaction=1)
    assert [row["_key"] for row in rows(topic.export)][:2] == [b"stays", b"replaced"]
    assert whole(topic.prove())["answer"] == "equal"


def test_a_column_of_another_type_and_too_many_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, partitions=1)
    topic.append((b"a", 1), (b"b", b'{"number": "two", "colour": "red"}'))
    topic.run_export()
    text = replace(topic.export, schema=schema_of(OrderWithText))
    with pytest.raises(TooManyDeadLettersError, match=r"1 of 2 records to export cannot be decoded: 50\.0%"):
        rebuild(spark, topic, text, max_share=0.05)
    rebuild(spark, topic, text)
    assert table_at(text.table).to_pyarrow_table().schema.names == [
        "number", "_key", "_partition", "_offset", "_timestamp", "_stale_since",
    ]  # fmt: skip
    assert [(row["_key"], row["number"]) for row in rows(text)] == [(b"b", "two")]
    assert outcomes(topic) == {0: None, 1: "replayed"}


def test_a_dead_letter_that_a_rebuild_leaves_without_a_row_is_open_again(spark: SparkSession, tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, partitions=1)
    topic.append((b"k", b'{"nummer": 2}'), (b"k", 3))
    topic.run_export()

    def replayed(export: Export) -> int:
        return replay(spark, export, topic.ranges(), reading(spark, topic), topic.ranges).replayed

    replayed(topic.export)
    assert outcomes(topic) == {0: "superseded"}
    history = replace(topic.export, mode=ExportMode.APPEND)
    rebuild(spark, topic, history)
    assert outcomes(topic) == {0: None}
    mended = replace(history, schema=schema_of(MendedOrder))
    assert replayed(mended) == 1
    assert [(row["_offset"], row["number"]) for row in rows(history)] == [(0, 2), (1, 3)]
    assert outcomes(topic) == {0: "replayed"}
    assert whole(topic.prove(mended))["answer"] == "equal"


def test_the_outcomes_of_dead_letters_follow_the_mode(spark: SparkSession, tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, partitions=1)
    mended = replace(topic.export, schema=schema_of(MendedOrder))
    topic.append((b"a", b'{"nummer": 1}'), (b"a", 2), (b"b", b'{"nummer": 3}'), (b"c", 4))
    topic.run_export()
    replay(spark, mended, topic.ranges(), reading(spark, topic), topic.ranges)
    assert outcomes(topic) == {0: "superseded", 2: "replayed"}
    topic.append((b"b", 9))
    topic.run_export()
    topic.export = replace(mended, mode=ExportMode.APPEND)
    rebuild(spark, topic, topic.export)
    assert outcomes(topic) == {0: "replayed", 2: "replayed"}
    topic.export = mended
    rebuild(spark, topic, topic.export)
    assert outcomes(topic) == {0: "superseded", 2: "superseded"}


class Killed(BaseException):
    """What ends a process at once."""


def test_a_rebuild_that_is_killed_leaves_the_old_table_or_the_new_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = ExportedTopic(tmp_path, ExportMode.APPEND, partitions=1)
    topic.append((b"a", 1), (b"b", 2), (b"b", None), (b"c", b"{"), (b"a", 5))
    topic.run_export()
    assert outcomes(topic) == {2: None, 3: None}
    old, upsert = topic.export, replace(topic.export, mode=ExportMode.UPSERT)
    before = rows(old)

    def kill(step: str, *, after: bool) -> None:
        whole_step = getattr(rebuilding, step)

        def killed(*arguments: Any, **named: Any) -> None:
            if after:
                whole_step(*arguments, **named)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(rebuilding, step, killed)
            with pytest.raises(Killed):
                rebuild(spark, topic, upsert)

    kill("append_undecodable", after=True)
    assert rows(old) == before
    assert whole(topic.prove(old))["answer"] == "equal"
    kill("check_committed", after=False)
    assert [(row["_key"], row["number"]) for row in rows(upsert)] == [(b"a", 5)]
    assert outcomes(topic) == {2: None, 3: None}
    assert whole(topic.prove(upsert))["answer"] == "equal"

    def refused(*_: Any) -> None:
        raise ConflictError("tables/dead_letters", "another writer was first")

    with monkeypatch.context() as patch:
        patch.setattr(rebuilding, "mark_letters", refused)
        assert rebuild(spark, topic, upsert).unfinished == "tables/dead_letters: another writer was first."
    assert outcomes(topic) == {2: None, 3: None}
    assert rebuild(spark, topic, upsert).unfinished == ""
    assert outcomes(topic) == {2: "superseded", 3: None}
    assert whole(topic.prove(upsert))["answer"] == "equal"


def test_of_a_rebuild_and_an_export_at_the_same_time_one_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = ExportedTopic(tmp_path, ExportMode.APPEND, partitions=1)
    topic.append((b"a", 1))
    topic.run_export()
    topic.append((b"b", 2))

    def raced(*arguments: Any) -> None:
        topic.run_export()
        check_lost(*arguments)

    monkeypatch.setattr(rebuilding, "check_lost", raced)
    with pytest.raises(ConflictError, match="another export committed"):
        rebuild(spark, topic, replace(topic.export, mode=ExportMode.UPSERT))
    assert [row["number"] for row in rows(topic.export)] == [1, 2]
    assert whole(topic.prove())["answer"] == "equal"

    def foreign(*arguments: Any) -> None:
        table = table_at(topic.export.table)
        write_deltalake(table, table.to_pyarrow_table(), mode="append")
        check_lost(*arguments)

    monkeypatch.setattr(rebuilding, "check_lost", foreign)
    assert rebuild(spark, topic, topic.export).foreign == (3,)
    assert [row["number"] for row in rows(topic.export)] == [1, 2]
    monkeypatch.undo()
    topic.append((b"c", 3))
    topic.run_export()
    assert [row["number"] for row in rows(topic.export)] == [1, 2, 3]
    assert whole(topic.prove())["answer"] == "equal"


def test_tables_that_a_rebuild_refuses(spark: SparkSession, tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, ExportMode.APPEND, partitions=1)
    topic.append((b"a", 1))
    topic.run_export()
    with pytest.raises(TopicRecreatedError):
        rebuild(spark, topic, replace(topic.export, topic_id="BBBBBBBBBBBBBBBBBBBBBB"))
    table_at(topic.export.table).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(TableSchemaError) as refused:
        rebuild(spark, topic, topic.export)
    assert str(refused.value) == (
        f"{topic.export.table}: must be rewritten because all rows are made again, but its property delta.appendOnly forbids"
        " a rewrite. Nothing was changed. Export to another table."
    )
