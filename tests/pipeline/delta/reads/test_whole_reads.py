"""Compaction or retention removes records while an export reads them. No row of a deleted key may stay in the table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from jobs.export import export
from lakelog.spark import splits
from lakelog.spark.splits import RECORDS, RecordTask, read_topic
from pipeline.delta.export_plan import NO_BOUNDS, Export, ExportMode, ExportPlan, ExportResult, PartitionOffsets
from pipeline.delta.exporting import export_increment
from pipeline.delta.files import upserting
from pipeline.delta.reads.whole_reads import LogChangedError, check_read
from pipeline.delta.rebuild.rebuilding import RebuildOptions, rebuild_table
from pipeline.delta.replaying import replay
from pipeline.delta.table_history import plan_from_history, read_head
from pipeline.delta.without_spark import topic_records
from pipeline.delta.without_spark.small_export import export_without_spark
from pipeline.export import one_export
from pipeline.export.export_request import add_export_options
from pipeline.export.proof_run import add_proof_options, prove_exports
from pipeline.job import run_job
from storage_engine.progress import NO_PROGRESS
from storage_engine.topic.dropped_files import delete_dropped
from tests.pipeline.delta.order_models import MendedOrder, schema_of
from tests.pipeline.delta.proof.exported_topic import ExportedTopic, whole
from tests.roots.delta_tables import is_table, rows_of_table, table_at

_HOUR_MS = 3_600_000
_DAYS_MS = 9 * 24 * _HOUR_MS
"""More than delete.retention.ms and consumer.max.hold.ms together."""
Read = Callable[[Mapping[int, int], Mapping[int, int], Mapping[int, int]], Iterator[pa.RecordBatch]]


class CleanedTopic(ExportedTopic):
    """A topic with one partition, whose cleaning a test can do at any moment."""

    def __init__(self, folder: Path, mode: ExportMode = ExportMode.UPSERT, *, digest: bool = False) -> None:
        super().__init__(folder, mode, partitions=1, digest=digest)

    def fill(self) -> None:
        """Roll segments, so that all earlier records can be compacted."""
        for number in range(3):
            self.append(*((b"filler-%d" % key, number) for key in range(12)))

    def clean(self) -> None:
        """Compact the log, and delete the replaced files."""
        self.compact()
        self.forget()

    def forget(self) -> None:
        """Delete the files of dropped segments."""
        self.clock.advance(_HOUR_MS)
        chain = self.topics.chain("orders")
        delete_dropped(self.storage, chain, self.topics.config(self.state()), self.clock.now_ms())

    def delete_key(self, key: bytes) -> None:
        """Append a tombstone. The next cleaning removes it."""
        self.append((key, None))
        self.fill()
        self.clean()
        self.fill()
        self.clock.advance(_DAYS_MS)

    def keys(self) -> set[bytes]:
        found = {row["_key"] for row in rows_of_table(self.storage, "tables/orders")}
        return {key for key in found if not key.startswith(b"filler")}

    def exported(self, read: Read) -> ExportResult | None:
        """Export without Spark."""
        plan = plan_from_history(self.export, self.ranges(), NO_BOUNDS)
        assert plan is not None
        return export_without_spark(self.export, plan, read, self.register, max_share=1, newest=self.ranges)

    def rows_removed_while_read(self, remove: Callable[[], object]) -> Read:
        """A reader that reads one batch before records are removed, and the rest after that."""
        read = self.reader()

        def reading(
            first: Mapping[int, int], end: Mapping[int, int], required: Mapping[int, int]
        ) -> Iterator[pa.RecordBatch]:
            batches = iter(read(first, end, required))
            yield next(batches)
            remove()
            yield from batches

        return reading

    def reading_with_spark(self, spark: SparkSession, remove: Callable[[], object]) -> Callable[..., DataFrame]:
        """A reader whose records are removed after the plan, and before the tasks of Spark read them."""
        state = self.state()

        def read(
            first: Mapping[int, int], end: Mapping[int, int], required: Mapping[int, int], then: RecordTask = RECORDS
        ) -> DataFrame:
            remove()
            return read_topic(spark, self.storage, state, first, end, required, NO_PROGRESS, then)

        return read


@pytest.fixture
def topic(tmp_path: Path) -> CleanedTopic:
    """The table has the rows a and b. The log has a tombstone of b that the export has not read, and that the next cleaning
    removes, because the export was away for too long."""
    topic = CleanedTopic(tmp_path, digest=True)
    topic.append((b"a", 1), (b"b", 2))
    topic.run_export()
    topic.delete_key(b"b")
    return topic


RunJob = Callable[..., dict[str, Any]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> RunJob:
    def run(root: str, name: str, *settings: str) -> dict[str, Any]:
        capfd.readouterr()
        argv = ["--root", root, "--json", "--set", "topics.orders.schema=number BIGINT"]
        argv += ["--set", "export.topic=orders", *settings]
        jobs: dict[str, tuple[Any, Any]] = {
            "export": (export, add_export_options), "prove": (prove_exports, add_proof_options)
        }  # fmt: skip
        status = run_job(name, "", *jobs[name], argv, {})
        report: dict[str, Any] = json.loads(capfd.readouterr().out)
        assert report["exit_status"] == status
        return report

    return run


def test_an_export_does_not_commit_without_a_tombstone_that_was_removed_while_it_read(topic: CleanedTopic) -> None:
    version, positions = table_at(topic.export.table).version(), plan_positions(topic)
    read = topic.reader()

    def cleaned_first(*offsets: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
        topic.clean()
        yield from read(*offsets)

    with pytest.raises(LogChangedError) as refused:
        topic.exported(cleaned_first)
    assert str(refused.value) == (
        f"{topic.export.table}: compaction removed tombstones of orders-0 while this partition was read, so rows of deleted"
        " keys could stay in the table. Nothing was committed. Start the job again. If this error comes again, give"
        " consumer.max.hold.ms of the topic a higher value, so that compaction waits longer for exports."
    )
    assert (table_at(topic.export.table).version(), plan_positions(topic)) == (version, positions)
    again = plan_from_history(topic.export, topic.ranges(), NO_BOUNDS)
    assert again is not None
    assert again.reread == (0,), "the next run reads the partition from its start"


def plan_positions(topic: CleanedTopic) -> Mapping[int, int]:
    plan = plan_from_history(topic.export, topic.ranges(), NO_BOUNDS)
    assert plan is not None
    return plan.before


def test_a_first_export_begins_again_after_it_missed_a_tombstone(
    tmp_path: Path, run: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = CleanedTopic(tmp_path)
    topic.append((b"a", 1), (b"b", 2))
    topic.fill()
    topic.append((b"b", None))
    topic.fill()
    attempts = count_reads(monkeypatch, topic, lambda attempt: remove_tombstones(topic) if attempt == 1 else None)
    report = run(topic.root, "export")
    assert (report["exit_status"], report["warnings"], len(attempts)) == (0, [], 2)
    assert topic.keys() == {b"a"}
    assert run(topic.root, "prove")["answer"] == "equal"


def test_an_export_fails_if_tombstones_are_removed_during_each_attempt(
    tmp_path: Path, run: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = CleanedTopic(tmp_path)
    topic.append((b"a", 1), (b"b", 2))
    topic.fill()

    def work(attempt: int) -> None:
        topic.append((b"b", None))
        topic.fill()
        remove_tombstones(topic)

    with monkeypatch.context() as patch:
        attempts = count_reads(patch, topic, work)
        report = run(topic.root, "export")
    assert (report["exit_status"], len(attempts)) == (1, 5)
    assert "compaction removed tombstones of orders-0 while this partition was read" in report["error"]
    assert "Nothing was committed. Start the job again." in report["error"]
    assert not is_table(topic.export.table)
    assert run(topic.root, "export")["exit_status"] == 0
    assert topic.keys() == {b"a"}


def test_records_that_another_export_commits_meanwhile_are_not_taken_for_a_restored_topic(
    tmp_path: Path, run: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = CleanedTopic(tmp_path)
    topic.append((b"a", 1))
    run(topic.root, "export")
    topic.append((b"b", 2))

    def after_another_export(*arguments: Any) -> ExportPlan | None:
        monkeypatch.undo()
        topic.append((b"c", 3))
        assert run(topic.root, "export")["records"] == 2
        return plan_from_history(*arguments)

    monkeypatch.setattr(one_export, "plan_from_history", after_another_export)
    report = run(topic.root, "export")
    assert (report["exit_status"], report["records"]) == (0, 0)
    assert topic.keys() == {b"a", b"b", b"c"}
    assert run(topic.root, "prove")["answer"] == "equal"


def remove_tombstones(topic: CleanedTopic) -> None:
    topic.clean()
    topic.clock.advance(_DAYS_MS)
    topic.fill()
    topic.clean()


def count_reads(patch: pytest.MonkeyPatch, topic: CleanedTopic, work: Callable[[int], object]) -> list[int]:
    """Do work on the log after an export without Spark has read its first batch. Returns the numbers of the attempts."""
    attempts: list[int] = []

    def reader(*_: Any) -> Read:
        def remove() -> None:
            attempts.append(len(attempts) + 1)
            work(attempts[-1])

        return topic.rows_removed_while_read(remove)

    patch.setattr(topic_records, "batch_reader", reader)
    return attempts


def test_a_first_export_does_not_miss_a_tombstone_that_was_deleted_with_the_records_before_it(tmp_path: Path) -> None:
    topic = CleanedTopic(tmp_path)
    topic.append((b"a", 1), (b"b", 2))
    topic.fill()
    topic.append((b"b", None))
    end = topic.ranges()[0].last_stable_offset
    topic.fill()
    topic.append((b"c", 3))

    def delete() -> None:
        topic.delete_records(0, end)
        topic.forget()

    with pytest.raises(LogChangedError) as refused:
        topic.exported(topic.rows_removed_while_read(delete))
    assert str(refused.value).startswith(
        f"{topic.export.table}: records of orders-0 below offset {end} were deleted while this partition was read, so rows"
        " of deleted keys could stay in the table. Nothing was committed."
    )
    assert not is_table(topic.export.table)
    topic.run_export()
    assert topic.keys() == {b"c"}


@pytest.mark.parametrize("mode", [ExportMode.APPEND, ExportMode.CHANGELOG])
def test_other_modes_export_what_compaction_leaves(tmp_path: Path, mode: ExportMode) -> None:
    """They have a row for each record that is left. Compaction removes other records than tombstones, too."""
    topic = CleanedTopic(tmp_path, mode)
    topic.append((b"a", 1), (b"b", 2))
    topic.run_export()
    topic.delete_key(b"b")
    read = topic.reader()

    def cleaned_first(*offsets: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
        topic.clean()
        yield from read(*offsets)

    assert topic.exported(cleaned_first) is not None
    assert topic.keys() == {b"a", b"b"}


@pytest.mark.parametrize(
    ("newest", "first", "required", "is_whole"),
    [
        (PartitionOffsets(0, 9, 4), 4, {0: 4}, True),  # the removed tombstones are in the table
        (PartitionOffsets(0, 9, 5), 4, {0: 4}, False),
        (PartitionOffsets(0, 9, 3), 0, {0: 4}, True),  # the plan knew it
        (PartitionOffsets(0, 9, 4), 0, {0: 4}, False),
        (PartitionOffsets(6, 9, 3), 4, {0: 4}, True),  # the reader would have failed
        (PartitionOffsets(1, 9, 3), 1, {}, True),
        (PartitionOffsets(2, 9, 3), 1, {}, False),
        (PartitionOffsets(2, 9, 3), 1, {0: 4}, False),
    ],
)
def test_the_second_look(
    upsert: Export, newest: PartitionOffsets, first: int, required: Mapping[int, int], is_whole: bool
) -> None:
    planned = {0: PartitionOffsets(0, 9, 3)}
    try:
        check_read(upsert, planned, {0: first}, required, lambda: {0: newest})
    except LogChangedError:
        assert not is_whole
    else:
        assert is_whole
    check_read(replace(upsert, mode=ExportMode.APPEND), planned, {0: first}, required, lambda: {0: newest})


@pytest.mark.spark
def test_an_export_reads_again_what_compaction_removed_while_it_read(
    spark: SparkSession, topic: CleanedTopic, run: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []

    def cleaned_first(*arguments: Any) -> DataFrame:
        ends.append(topic.ranges()[0].tombstones_end)
        topic.clean()
        return read_topic(*arguments)

    monkeypatch.setattr(splits, "read_topic", cleaned_first)
    report = run(topic.root, "export", "--set", "export.spark.records=0", "--set", "export.digest=true")
    assert (report["exit_status"], report["rows deleted"]) == (0, 1)
    assert ends[0] < ends[1]
    assert topic.keys() == {b"a"}
    assert whole(topic.prove())["answer"] == "equal"


@pytest.mark.spark
@pytest.mark.parametrize("by_files", [True, False])
def test_spark_does_not_commit_without_a_tombstone_that_was_removed(
    spark: SparkSession, topic: CleanedTopic, monkeypatch: pytest.MonkeyPatch, by_files: bool
) -> None:
    if not by_files:
        monkeypatch.setattr(upserting, "INDEX_BYTES", 0)
    version, files = table_at(topic.export.table).version(), files_of(topic)
    with pytest.raises(LogChangedError, match="compaction removed tombstones of orders-0 while"):
        export_increment(
            spark, topic.export, topic.ranges(), topic.reading_with_spark(spark, topic.clean), newest=topic.ranges
        )
    assert (table_at(topic.export.table).version(), files_of(topic)) == (version, files)


def files_of(topic: CleanedTopic) -> set[str]:
    return {file.key for file in topic.storage.list("tables/orders/") if file.key.endswith(".parquet")}


@pytest.mark.spark
def test_a_rebuild_does_not_replace_a_table_without_a_tombstone_that_was_removed(
    spark: SparkSession, topic: CleanedTopic
) -> None:
    head = read_head(topic.export.table)
    assert head is not None
    before = table_at(topic.export.table).version()

    def rebuild(remove: Callable[[], object]) -> None:
        read = topic.reading_with_spark(spark, remove)
        options = RebuildOptions(max_share=1)
        rebuild_table(spark, topic.export, head, topic.ranges(), read, topic.ranges, topic.register, options)

    with pytest.raises(LogChangedError, match="compaction removed tombstones of orders-0 while"):
        rebuild(topic.clean)
    assert table_at(topic.export.table).version() == before
    rebuild(lambda: None)
    assert topic.keys() == {b"a"}
    assert whole(topic.prove())["answer"] == "equal"


@pytest.mark.spark
def test_a_replay_does_not_bring_back_a_key_whose_tombstone_was_removed(spark: SparkSession, tmp_path: Path) -> None:
    topic = CleanedTopic(tmp_path)
    topic.append((b"a", 1), (b"b", b'{"nummer": 2}'))
    topic.run_export()
    topic.append((b"b", None))
    topic.fill()
    topic.append((b"c", b'{"nummer": 3}'))
    topic.run_export()
    topic.export = replace(topic.export, schema=schema_of(MendedOrder))
    before = rows_of_table(topic.storage, "tables/orders")
    letters = rows_of_table(topic.storage, "tables/dead_letters/export/orders")

    def replayed(remove: Callable[[], object]) -> int:
        read = topic.reading_with_spark(spark, remove)
        return replay(spark, topic.export, topic.ranges(), read, topic.ranges).replayed

    with pytest.raises(LogChangedError, match="compaction removed tombstones of orders-0 while"):
        replayed(lambda: remove_tombstones(topic))
    assert rows_of_table(topic.storage, "tables/orders") == before
    assert rows_of_table(topic.storage, "tables/dead_letters/export/orders") == letters
    assert replayed(lambda: None) == 1
    assert topic.keys() == {b"a", b"c"}
