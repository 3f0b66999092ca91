"""Stages a micro-batch on Spark's executors: runs the tasks (staging_task.py) and combines their reports into one.

Spark's partitions of the micro-batch are staged as they are, without a shuffle. Spark accepts the report of exactly one
attempt of each task. So if an attempt fails, or if Spark runs a task twice, no report names the files of the failed or
needless attempt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql.conf import RuntimeConfig

from lakelog.spark.types import spark_struct
from pipeline.ingest.staging_task import IS_LARGE, REPORT, StagingTask
from storage_engine.phases import added_up
from storage_engine.storage import Storage
from storage_engine.topic.append.staged_list import StagedDeadLetters
from storage_engine.topic.append.staged_run import StagedRun, delete_staged, stored

_REPORT = spark_struct(REPORT)
_MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_MOST_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_NO_COUNT = 2**31 - 1
"""With this value of the setting _MOST_BYTES, Spark does not count bytes."""
_LARGE_ROW = 4 * 1024
_SMALL_ROWS = 65_536
"""The largest number of rows of a batch if bytes are not counted. A row then has at most _LARGE_ROW bytes, so a batch
has at most 256 MiB."""


@dataclass(frozen=True)
class StagingReport:
    """The combined reports of the tasks of a micro-batch, in the order of the tasks.

    runs: the staged runs by topic; each topic of the micro-batch has an entry.
    highest: by source partition, the highest position of the rows.
    already_committed: number of rows that were committed before.
    gave_up: a task received a row that is too large for batches whose bytes are not counted, so the task staged
        nothing.
    seconds: the time of all tasks together, by phase.
    """

    runs: Mapping[str, Sequence[StagedRun]]
    dead_letters: tuple[StagedDeadLetters, ...]
    highest: Mapping[str, int] = field(default_factory=dict)
    already_committed: int = 0
    gave_up: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def had_rows(self) -> bool:
        """Whether the micro-batch had any rows, including rows that were committed before."""
        return any(self.runs.values()) or bool(self.dead_letters) or self.already_committed > 0


class BatchStager:
    """Stages the micro-batches of one stream, one after another.

    Spark's Arrow writer counts the bytes of a batch after each row, and for small rows the count costs more than the
    row. So a stream begins without the count: only the number of rows limits a batch, and Spark empties and flags a row
    above _LARGE_ROW bytes. A task that receives an emptied row gives up. Then this micro-batch and all later
    micro-batches are staged with the count.

    Empty micro-batches often follow one another, because the source has no new rows or a filter drops all of them. So
    after an empty micro-batch, a Spark job first checks whether the next micro-batch has rows. This check takes less
    than half the time of a query with Python.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._counts_bytes = False
        self._limits: dict[str, str] = {}
        self._is_quiet = False

    def stage(self, rows: DataFrame, task: StagingTask) -> StagingReport:
        """Run the staging of one micro-batch on Spark.

        If there are dead letters, or if `task.listed` is set, all staged files are durable afterwards.

        Args:
            rows: rows with the columns of record_rows.

        Raises:
            StorageError: a file could not be made durable. The call can be repeated, and stages new files.
        """
        if self._is_quiet and _has_no_rows(rows):
            return StagingReport({topic.name: [] for topic in task.topics}, ())
        staged = self._stage(rows, task)
        self._is_quiet = not staged.had_rows
        if staged.dead_letters and not task.listed:
            # A list will name these files, because there are dead letters. The tasks could not know this.
            # So they are written now, as far as the tasks kept the bytes, and synced.
            staged = replace(staged, runs={topic: stored(self._storage, runs) for topic, runs in staged.runs.items()})
            for key in sorted({run.key for runs in staged.runs.values() for run in runs}):
                self._storage.sync_file(key)
        return staged

    def _stage(self, rows: DataFrame, task: StagingTask) -> StagingReport:
        if "headers" in rows.columns:
            self._counts_bytes = True  # there is no cheaper way to limit the size of batches of rows with headers
        if self._counts_bytes:
            return _staged(rows, task)
        conf = rows.sparkSession.conf  # of the session that Spark cloned for the stream
        if not self._limits:
            self._lift_limits(conf)
        staged = _staged(_with_large_emptied(rows), task)
        if not staged.gave_up:
            return staged
        for runs in staged.runs.values():
            delete_staged(self._storage, runs)
        for letters in staged.dead_letters:
            self._storage.delete(letters.key)
        self._counts_bytes = True
        for key, limit in self._limits.items():
            conf.set(key, limit)
        return _staged(rows, task)

    def _lift_limits(self, conf: RuntimeConfig) -> None:
        self._limits = {key: str(conf.get(key)) for key in (_MOST_BYTES, _MOST_ROWS)}
        most_rows = int(self._limits[_MOST_ROWS])
        conf.set(_MOST_BYTES, str(_NO_COUNT))
        conf.set(_MOST_ROWS, str(min(most_rows, _SMALL_ROWS) if most_rows > 0 else _SMALL_ROWS))


def _has_no_rows(rows: DataFrame) -> bool:
    """Whether a micro-batch has no rows; False also if the answer is not known.

    The check runs an asynchronous job on the RDD of the micro-batch. DataFrame.isEmpty() would plan a query first. A
    synchronous job would cost twice as much, because Spark's ClosureCleaner then reads the bytecode of SparkContext.
    """
    plan = rows._jdf.queryExecution().logical()  # noqa: SLF001 (PySpark has no other way)
    if plan.getClass().getSimpleName() != "LogicalRDD":
        return False
    return bool(plan.rdd().toJavaRDD().takeAsync(1).get().isEmpty())


def _with_large_emptied(rows: DataFrame) -> DataFrame:
    """The rows; rows above _LARGE_ROW bytes are emptied and flagged. The expressions are SQL text, because each call of
    `F` is a call of the JVM."""
    binary = [name for name in ("key", "value") if name in rows.columns]
    is_large = " + ".join(["0L", *(f"coalesce(octet_length({name}), 0)" for name in binary)]) + f" > {_LARGE_ROW}"
    columns = [
        f"CASE WHEN NOT ({is_large}) THEN {name} END AS {name}" if name in binary else name for name in rows.columns
    ]
    return rows.selectExpr(*columns, f"{is_large} AS {IS_LARGE}")


def _staged(rows: DataFrame, task: StagingTask) -> StagingReport:
    reports = rows.mapInArrow(task, _REPORT).collect()  # in the order of the tasks
    runs: dict[str, list[StagedRun]] = {topic.name: [] for topic in task.topics}
    letters = []
    highest: dict[str, int] = {}
    for report in reports:
        for topic, staged in json.loads(report["runs"]).items():
            runs[topic] += map(StagedRun.from_json, staged)
        letters += [StagedDeadLetters(*found) for found in json.loads(report["dead_letters"])]
        for partition, position in json.loads(report["highest"]).items():
            highest[partition] = max(position, highest.get(partition, position))
    return StagingReport(
        runs,
        tuple(letters),
        highest,
        already_committed=sum(report["already_committed"] for report in reports),
        gave_up=any(report["gave_up"] for report in reports),
        seconds=added_up(json.loads(report["seconds"]) for report in reports),
    )
