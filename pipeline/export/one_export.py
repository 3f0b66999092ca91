"""Runs one export. It chooses between Spark and the small export without a JVM, records the positions and the model,
and makes the report.

The positions of the export are registered as a consumer of the topic, so that cleaning keeps the tombstones that the
export has not read. These positions are registered before and after the table's commit. The table's own stamp decides
what the next run reads. So if the process dies between these steps, no record is exported twice or left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.delta.comments.column_comments import write_comments
from pipeline.delta.export_plan import (
    Export,
    ExportBounds,
    ExportPlan,
    ExportResult,
    PartitionOffsets,
    PositionAheadError,
    Register,
    offset_ranges,
)
from pipeline.delta.files.skipping_commit import fit_skipping
from pipeline.delta.reads.lost_records import check_nothing_lost
from pipeline.delta.reads.whole_reads import LogChangedError, Newest
from pipeline.delta.rows.row_columns import columns_without_schema, table_columns
from pipeline.delta.table_history import plan_from_history, read_head, were_files_joined
from pipeline.delta.table_stamp import TableHead
from pipeline.delta.upkeep.deleted_files import check_files, check_last_export
from pipeline.export.catalog_name import prepare_name, register_name
from pipeline.export.export_report import (
    chain_warnings,
    export_report,
    export_warnings,
    gap_warnings,
    rebuild_report,
    replay_report,
)
from pipeline.export.export_request import bounds_of, check_options, wanted_export
from pipeline.job import JobContext, JobReport
from pipeline.model_changes import TopicSchemas
from pipeline.topic_model import changed_model, record_model
from storage_engine.errors import (
    ConfigError,
    ConflictError,
    CorruptionError,
    LogError,
    StorageError,
    UnknownTopicError,
    UnsupportedError,
)
from storage_engine.topic.chain.transaction_files import newest_decided
from storage_engine.topic.readers.consumer_files import (
    DATABASE_EXPORT_KIND,
    EXPORT_KIND,
    consumer_key,
    export_consumer,
    put_positions,
    read_consumer,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from storage_engine.topic.chain.topic_state import RecordedModel, TopicState

_MOST_ATTEMPTS = 5
"""How often an export is made if each time files of its table are joined meanwhile, records of the log are removed, or
another export commits newer records."""


def export_topic(context: JobContext) -> JobReport:
    """Export the new records of the topic of the section `export`, or replay its dead letters, or rebuild its table. If
    records are removed from the log while they are read, the export begins again. It also begins again if the table has
    records that the state of the topic did not have yet when the export read it.

    Raises:
        DeletedFilesError: the export was committed, but other programs had deleted its files before.
        LogChangedError: tombstones may be missing among the records of each attempt. Nothing was committed.
        PositionAheadError: the table has records that the newest state of the topic does not have.
        LogError: nothing was committed to the table. An error after the commit, while the positions are recorded, raises
            nothing, but becomes a warning in the report.
    """
    check_options(context)
    for _ in range(_MOST_ATTEMPTS - 1):
        with suppress(LogChangedError, PositionAheadError):
            return _export_once(context)
    return _export_once(context)


def _export_once(context: JobContext) -> JobReport:
    """Plan the export with the newest state of the topic, and make it."""
    started_ms = context.clock.now_ms()
    wanted = context.settings.required_export()
    context.topics.state(wanted.topic)  # raises the right error if the topic does not exist
    state = newest_decided(context.storage, context.topics.chain(wanted.topic))
    target = wanted_export(context, state)
    accepted = vars(context.arguments).get("accept_schema", False)
    schemas = TopicSchemas(target.schema, target.key_schema)
    changed = changed_model(context.settings, state.topic, state.model, schemas, accepted)

    def register(positions: Mapping[int, int]) -> None:
        name = export_consumer(wanted.shown_table)
        kind = EXPORT_KIND if wanted.jdbc is None else DATABASE_EXPORT_KIND
        put_positions(context.storage, state, name, kind, positions, context.clock.now_ms(), holds_back=True)

    newly_accepted = changed if accepted else None
    if target.schema is None and wanted.jdbc is None and not vars(context.arguments).get("rebuild"):
        _refuse_lost_schema(context, state, target)
    if vars(context.arguments).get("replay"):
        return _replay(context, state, target, newly_accepted)
    if vars(context.arguments).get("rebuild"):
        head = read_head(target.table)
        if head is not None:
            return _rebuild(context, state, target, head, register, changed)
    bounds = bounds_of(context, state)
    skipping_warnings: list[str] = []
    if wanted.jdbc is not None:
        from pipeline.export.export_to_database import export_topic_to_database

        ranges, newest = offset_ranges(state), _newest(context, state)
        result = export_topic_to_database(context, state, target, ranges, register, bounds, newest, _reading_with_spark)
    else:
        result = _to_delta(context, state, target, register, bounds, skipping_warnings)
        if result.plan.waiting and result.table_version is not None:
            check_files(target.table, result.table_version, context.clock.now_ms() - started_ms)
    if not result.plan.waiting:
        if newly_accepted is not None:
            record_model(context.topics, state, newly_accepted)
        warnings = gap_warnings(result.plan)
        warnings += skipping_warnings
        if wanted.jdbc is None:
            result = replace(result, table_version=_describe(context, target, result.table_version, warnings))
        return export_report(target, wanted.shown_table, result, warnings)
    compacted = any(part.first_dirty_offset for part in state.partitions)
    warnings = export_warnings(result, target, compacted, to_database=wanted.jdbc is not None)
    try:
        if changed is not None:
            record_model(context.topics, state, changed)
        register(result.positions_after)
        if wanted.jdbc is None:
            warnings += chain_warnings(target, result.plan.head, result.table_version)
    except LogError as error:  # harmless: cleaning sees the older positions, and keeps more records than necessary
        warnings.append(
            f"the export is done, but its positions or the fields of its model could not be recorded: {error}"
        )
    if wanted.jdbc is None:
        warnings += skipping_warnings
        result = replace(result, table_version=_describe(context, target, result.table_version, warnings))
    return export_report(target, wanted.shown_table, result, warnings)


def _refuse_lost_schema(context: JobContext, state: TopicState, target: Export) -> None:
    """Refuse an export without a schema of the values into a table whose columns are fields of such a schema. A table that
    deltalake cannot open is not checked.

    Raises:
        ConfigError: the export would write null into columns, which are named.
    """
    from pipeline.delta.without_spark.table_opening import column_names

    columns: list[str] = []
    if state.model is not None:
        with suppress(StorageError, UnsupportedError):
            columns = column_names(target.table)
    if lost := columns_without_schema(state.model, columns):
        raise ConfigError(
            context.settings.place_of(f"topics.{state.topic}.schema"),
            f"no schema is set, but the table has columns of the model that is recorded in topic {state.topic}:"
            f" {', '.join(lost)}. The new rows would have null there",
            "Set the schema, make the table again with `export --rebuild`, or choose another export.table.",
        )


def _check_last_export(context: JobContext, state: TopicState, target: Export, plan: ExportPlan) -> None:
    """Check that the files of the last export exist, if that export did not register its positions.

    Raises:
        DeletedFilesError: a file does not exist.
    """
    name = export_consumer(context.settings.required_export().shown_table)
    registered = None
    with suppress(CorruptionError):  # a damaged file is replaced later
        registered = read_consumer(context.storage, consumer_key(state.topic, name))
    if plan.head is not None and (registered is None or registered.positions != plan.before):
        check_last_export(target.table, plan.head)


def _fit_skipping(target: Export, warnings: list[str]) -> bool:
    """Let readers skip files only by columns of which all files have bounds. Returns whether the table has got a new
    version. An error becomes a warning, because the rows are right. If deltalake cannot open the table, its readers cannot
    either, and the export itself names other errors."""
    try:
        return fit_skipping(target.table, table_columns(target)) is not None
    except (UnsupportedError, ConflictError) as error:
        warnings.append(f"readers that skip files may find too few rows: {error}")
    except StorageError:
        pass
    return False


def _describe(context: JobContext, target: Export, version: int | None, warnings: list[str]) -> int | None:
    """Write the descriptions of the model into the Delta table, and register the table in its catalog. An error of the
    comments is added to `warnings`, because the rows are exported. Returns the version with the comments.

    Args:
        version: the version with the rows.
    """
    try:
        version = write_comments(target) or version
    except LogError as error:
        warnings.append(f"the comments of the columns are not those of the model: {error}")
    register_name(context, target.table)
    return version


def _to_delta(
    context: JobContext,
    state: TopicState,
    target: Export,
    register: Register,
    bounds: ExportBounds,
    warnings: list[str],
) -> ExportResult:
    """Export to a Delta table. If maintenance joins files of the table meanwhile, Delta can refuse the commit of a
    merge. Then the export begins again. New warnings are added to `warnings`."""
    attempts = 0
    while True:
        attempts += 1
        plan = plan_from_history(target, offset_ranges(state), bounds)
        if attempts == 1 and plan is not None:
            _check_last_export(context, state, target, plan)
        if plan is not None and not plan.waiting:
            register(plan.before)
            return ExportResult(plan=plan, table_version=plan.table_version)
        if plan is not None:
            check_nothing_lost(target, plan, bounds)
        if attempts == 1 and _fit_skipping(target, warnings):
            continue  # the plan names a version of the table
        prepare_name(context, target.table)
        try:
            small = None if plan is None else _without_spark(context, state, target, plan, register)
            return _with_spark(context, state, target, register, bounds) if small is None else small
        except LogChangedError:
            raise
        except ConflictError:
            version = None if plan is None else plan.table_version
            if attempts == _MOST_ATTEMPTS or version is None or not were_files_joined(target.table, version):
                raise


def _without_spark(
    context: JobContext, state: TopicState, target: Export, plan: ExportPlan, register: Register
) -> ExportResult | None:
    """Export a small increment without a JVM; None if Spark must export."""
    wanted = context.settings.required_export()
    if _offsets_above_compaction(plan) >= wanted.spark_records:  # the imports below take a quarter of a second
        return None
    from pipeline.delta.without_spark.small_export import export_without_spark
    from pipeline.delta.without_spark.topic_records import batch_reader

    with context.work("export", state.topic) as shown:
        return export_without_spark(
            target,
            plan,
            batch_reader(context.storage, context.topics.chain(state.topic), state, shown),
            register,
            wanted.max_dead_letter_share,
            wanted.spark_records,
            accepted=vars(context.arguments).get("accept_dead_letters") is not None,
            newest=_newest(context, state),
        )


def _offsets_above_compaction(plan: ExportPlan) -> int:
    """How many offsets the plan reads, without those where a compaction may have removed records."""
    first, end = plan.to_read
    return sum(max(end[each] - max(first[each], plan.ranges[each].compacted_end), 0) for each in first)


def _with_spark(
    context: JobContext,
    state: TopicState,
    target: Export,
    register: Register,
    bounds: ExportBounds,
) -> ExportResult:
    """Export an increment of any size."""
    with _reading_with_spark(context, state, "export", "pipeline.delta.exporting") as read:
        from pipeline.delta.exporting import export_increment

        return export_increment(
            context.spark,
            target,
            offset_ranges(state),
            read,
            register,
            bounds,
            context.settings.required_export().max_dead_letter_share,
            context.lines.info,
            _newest(context, state),
        )


@contextmanager
def _reading_with_spark(
    context: JobContext, state: TopicState, work: str, module: str = "lakelog.spark.splits"
) -> Iterator[Callable[..., DataFrame]]:
    """A function that reads the topic with Spark: (first offsets, end offsets, required offsets) by partition. In the
    block, errors of Spark are errors of this work, and its progress is shown.

    Args:
        work: export, replay or rebuild.
        module: is imported while Spark starts. The block imports it again.
    """
    from pipeline.spark.session import importing

    with importing(module):
        spark = context.spark
    from lakelog.spark.splits import RECORDS, read_topic
    from lakelog.spark.task_progress import progress_of_tasks
    from pipeline.delta.without_spark.topic_records import RUN_AGAIN
    from pipeline.spark.failures import spark_failures
    from pipeline.spark.store_settings import require_file_system

    require_file_system(spark, context.storage.uri)
    with (
        spark_failures(f"{work} of topic {state.topic}"),
        context.work(work, state.topic) as shown,
        progress_of_tasks(spark, shown) as progress,
    ):
        yield lambda first, end, known, then=RECORDS: read_topic(
            spark, context.storage, state, first, end, known, progress, then, RUN_AGAIN
        )


def _replay(
    context: JobContext,
    state: TopicState,
    target: Export,
    accepted: RecordedModel | None,
) -> JobReport:
    """Replay dead letters. accepted: the model to record, because the operator has accepted its changes; or None."""
    head = read_head(target.table)
    with _reading_with_spark(context, state, "replay", "pipeline.delta.replaying") as read:
        from pipeline.delta.replaying import replay

        result = replay(context.spark, target, offset_ranges(state), read, _newest(context, state), context.lines.info)
    warnings = []
    try:
        if head is not None and head.version != result.table_version:
            warnings += chain_warnings(target, head, result.table_version)
        if accepted is not None:
            record_model(context.topics, state, accepted)
    except LogError as error:
        warnings.append(f"the replay is done, but the fields of its model could not be recorded: {error}")
    return replay_report(target, context.settings.required_export().table, result, warnings)


def _rebuild(
    context: JobContext,
    state: TopicState,
    target: Export,
    head: TableHead,
    register: Register,
    changed: RecordedModel | None,
) -> JobReport:
    """Make the table again. changed: the model to record; None if this model is recorded already."""
    wanted = context.settings.required_export()
    lost: int | None = vars(context.arguments).get("accept_lost_rows")
    prepare_name(context, target.table)
    bounds = bounds_of(context, state)
    with _reading_with_spark(context, state, "rebuild", "pipeline.delta.rebuild.rebuilding") as read:
        from pipeline.delta.rebuild.rebuilding import RebuildOptions, rebuild_table

        options = RebuildOptions(lost or 0, bounds, wanted.max_dead_letter_share)
        result = rebuild_table(
            context.spark, target, head, offset_ranges(state), read, _newest(context, state), register, options
        )
    warnings = []
    if result.unfinished:
        warnings.append(
            f"the rebuild is done, but the outcomes of dead letters in {target.dead_letters} could not be written:"
            f" {result.unfinished}. The next rebuild or replay writes these outcomes."
        )
    try:
        if changed is not None:
            record_model(context.topics, state, changed)
        register(result.exported.positions_after)
        if not target.digest:
            warnings += chain_warnings(target, head, result.exported.table_version)
    except LogError as error:
        warnings.append(
            f"the rebuild is done, but its positions or the fields of its model could not be recorded: {error}"
        )
    described = _describe(context, target, result.exported.table_version, warnings)
    result = replace(result, exported=replace(result.exported, table_version=described))
    return rebuild_report(target, wanted.table, result, warnings)


def _newest(context: JobContext, state: TopicState) -> Newest:
    """A function that returns the newest offsets of the topic."""

    def newest() -> Mapping[int, PartitionOffsets]:
        found = context.topics.state(state.topic)
        if found.topic_id != state.topic_id:
            raise UnknownTopicError(
                f"topic {state.topic}", "was deleted and created again while it was read", "Start the job again."
            )
        return offset_ranges(found)

    return newest
