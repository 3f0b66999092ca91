"""Runs an export into a database. The records are read without Spark if there are few, and with Spark if there are
many.

Each task of Spark fills the staging tables through its own connection. If a task fails, it returns the error as its
result, and raises no exception. If the task raised an exception, Spark would print a traceback and repeat the task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from lakelog.optional import MissingPackageError
from pipeline.delta.export_plan import Export, ExportBounds, ExportPlan, ExportResult, PartitionOffsets, Register
from pipeline.delta.reads.whole_reads import Newest
from pipeline.jdbc.connecting import connected
from pipeline.jdbc.database import DatabaseAccessError, DatabaseFailedError, DatabaseUnavailableError, DuplicateKeyError
from pipeline.jdbc.database_export import export_to_database
from pipeline.jdbc.staging import Filled, Staging, fill
from pipeline.job import JobContext
from storage_engine.errors import ConflictError, LogError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from storage_engine.topic.chain.topic_state import TopicState

ReadingWithSpark = Callable[[JobContext, "TopicState", str], AbstractContextManager[Callable[..., "DataFrame"]]]
_ERRORS_OF_TASKS = {
    each.__name__: each
    for each in (
        ConflictError,
        DatabaseAccessError,
        DatabaseFailedError,
        DatabaseUnavailableError,
        DuplicateKeyError,
        MissingPackageError,
    )
}


def export_topic_to_database(
    context: JobContext,
    state: TopicState,
    target: Export,
    ranges: Mapping[int, PartitionOffsets],
    register: Register,
    bounds: ExportBounds,
    newest: Newest,
    reading_with_spark: ReadingWithSpark,
) -> ExportResult:
    """Export the new records of a topic into the table of `export.jdbc`."""
    wanted = context.settings.required_export()
    assert wanted.jdbc is not None, "the caller looks"

    def fill_tables(plan: ExportPlan, staging: Staging) -> Sequence[Filled]:
        offsets = sum(plan.end[each] - plan.start[each] for each in plan.waiting)
        if offsets < wanted.spark_records:
            return [_fill_without_spark(context, state, target, plan, staging)]
        with reading_with_spark(context, state, "export") as read:
            return fill_with_spark(read(*plan.to_read, plan.required), target, staging)

    with connected(wanted.jdbc.target()) as database:
        return export_to_database(
            database, target, ranges, fill_tables, register, bounds, wanted.max_dead_letter_share, newest
        )


def _fill_without_spark(
    context: JobContext, state: TopicState, target: Export, plan: ExportPlan, staging: Staging
) -> Filled:
    from pipeline.delta.without_spark.topic_records import batch_reader

    with context.work("export", state.topic) as shown:
        read = batch_reader(context.storage, context.topics.chain(state.topic), state, shown)
        return fill(target, staging, read(*plan.to_read, plan.required))


def fill_with_spark(records: DataFrame, target: Export, staging: Staging) -> list[Filled]:
    """Fill the staging tables with the tasks of Spark.

    Args:
        records: records with the columns of Spark's Kafka source.

    Raises:
        LogError: a task failed.
    """
    records = records.select("key", "value", "partition", "offset", "timestamp", "headers")
    rows = records.mapInArrow(partial(_task, export=target, staging=staging), "result string").collect()
    return [_result(row["result"]) for row in rows]


def _task(batches: Iterable[pa.RecordBatch], export: Export, staging: Staging) -> Iterator[pa.RecordBatch]:
    try:
        result: dict[str, object] = {"filled": fill(export, staging, batches).to_json()}
    except tuple(_ERRORS_OF_TASKS.values()) as error:
        result = {"error": [type(error).__name__, error.place, error.problem, error.remedy]}
    yield pa.record_batch({"result": [json.dumps(result)]})


def _result(text: str) -> Filled:
    document = json.loads(text)
    if "error" in document:
        name, *facts = document["error"]
        error: LogError = _ERRORS_OF_TASKS[name](*facts)
        raise error
    return Filled.from_json(document["filled"])
