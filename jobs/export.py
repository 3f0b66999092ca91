"""Bring a Delta table up to its topic, incrementally and exactly once.

    ./spark-submit.sh export --conf conf/flights.yaml [--from-offset P:N]... [--from-timestamp TIME]
        [--accept-dead-letters P:N,...]
    ./spark-submit.sh export --conf conf/flights.yaml --replay

Reads what the topic of the section `export` has got since the last run, of transactions the committed ones. A compacted
topic is upserted: the table holds the newest value of each key that decodes, and a tombstone deletes its row. Any other
topic is appended, record by record. Values are decoded by the topic's model in schemas/; what cannot be decoded goes to
tables/dead_letters/export/<topic>/. Where that is more than export.max.dead.letter.share of the records, nothing is
exported, and the message gives the choices.

--from-offset and --from-timestamp read from an earlier place on: an append replaces the table's rows from there on, an
upsert makes the rows of these records anew. --replay decodes dead letters anew, after the model was mended.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pipeline.delta_log import UnknownHeadError, head_in_log
from pipeline.export_plan import NO_WISH, Export, ExportMode, ExportResult, Increment, OffsetRange, Wish, plan_increment
from pipeline.job import JobContext, JobReport, Value, run_job, say
from pipeline.topic_model import changed_model, record_model, topic_model
from storage_engine.dead_letter_tables import export_dead_letters_key
from storage_engine.errors import ConfigError, LogError, UsageError
from storage_engine.log.isolation import Isolation
from storage_engine.quantities import counted
from storage_engine.topic.decisions import newest_decided
from storage_engine.topic.groups import EXPORT_KIND, export_consumer, put_positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from storage_engine.topic.state import RecordedModel, TopicState


def export(context: JobContext) -> JobReport:
    """Export what is new and report it."""
    wanted = context.settings.required_export()
    context.topics.state(wanted.topic)  # which says so where there is no such topic
    state = newest_decided(context.storage, context.topics.chain(wanted.topic))
    target = _target(context, state)
    accepted = vars(context.arguments).get("accept_schema", False)
    changed = changed_model(context.settings, state.topic, state.model, target.model, accepted)
    ranges = {
        number: OffsetRange(
            part.log_start_offset, part.last_stable_offset, part.tombstones_end, part.first_dirty_offset or 0
        )
        for number, part in enumerate(state.partitions)
    }

    def register(positions: Mapping[int, int]) -> None:
        name = export_consumer(wanted.table)
        put_positions(context.storage, state, name, EXPORT_KIND, positions, context.clock.now_ms())

    newly_accepted = changed if accepted else None
    if vars(context.arguments).get("replay"):
        return _replay(context, state, target, ranges, newly_accepted)
    wish = _wish(context, state)
    if wish == NO_WISH and (nothing := _nothing_new(context, target, ranges)) is not None:
        register(nothing.increment.before)
        if newly_accepted is not None:
            record_model(context.topics, state, newly_accepted)
        return _report(context, target, nothing, _gaps(nothing.increment))

    from pipeline.exporting import export_increment
    from pipeline.progress import progress_of_tasks
    from pipeline.reading import read_topic
    from pipeline.spark_failures import spark_failures

    spark = context.spark
    with (
        spark_failures(f"export of topic {state.topic}"),
        context.display.work(f"export {state.topic}") as shown,
        progress_of_tasks(spark, shown) as progress,
    ):
        result = export_increment(
            spark,
            target,
            ranges,
            lambda first, end, known: read_topic(spark, context.storage, state, first, end, known, progress),
            register,
            wish,
            wanted.max_dead_letter_share,
            lambda line: say(f"{context.name}: {line}"),
        )
    warnings = _warnings(result, target, any(part.first_dirty_offset for part in state.partitions))
    try:
        if changed is not None:
            record_model(context.topics, state, changed)
        register(result.positions_after)
    except LogError as error:  # the older positions hold back more than need be, never less
        warnings.append(
            f"the export is done, but its positions or the fields of its model could not be put on record: {error}"
        )
    return _report(context, target, result, warnings)


def _target(context: JobContext, state: TopicState) -> Export:
    wanted = context.settings.required_export()
    compact = context.topics.config(state).compact
    mode = ExportMode(wanted.mode) if wanted.mode else ExportMode.UPSERT if compact else ExportMode.APPEND
    asked_by = context.settings.place_of("export.mode") if wanted.mode else f"the cleanup.policy of {state.topic}"
    if wanted.headers and mode is ExportMode.UPSERT:
        raise ConfigError(
            context.settings.place_of("export.headers"),
            f"headers go with the records of an append, and {asked_by} asks for upsert",
            "Leave it out, or export with export.mode append.",
        )
    root = context.storage.uri
    return Export(
        topic=state.topic,
        topic_id=state.topic_id,
        mode=mode,
        model=topic_model(context.settings, state.topic),
        table=f"{root}/{wanted.table}",
        dead_letters=f"{root}/{export_dead_letters_key(state.topic)}",
        asked_by=asked_by,
        headers=wanted.headers,
    )


def _nothing_new(context: JobContext, target: Export, ranges: Mapping[int, OffsetRange]) -> ExportResult | None:
    """The outcome of an export that has nothing to read, decided without Spark; None where Spark is needed."""
    with suppress(UnknownHeadError):
        head = head_in_log(context.storage, context.settings.required_export().table)
        if head is None or head.current is not None:
            increment = plan_increment(target, head, ranges, NO_WISH, dict)
            if not increment.waiting:
                return ExportResult(increment=increment, table_version=head.version if head else None)
    return None


def _replay(
    context: JobContext,
    state: TopicState,
    target: Export,
    ranges: Mapping[int, OffsetRange],
    accepted: RecordedModel | None,
) -> JobReport:
    """accepted: a model whose changes the operator accepts, and which is to be recorded."""
    from pipeline.progress import progress_of_tasks
    from pipeline.reading import read_topic
    from pipeline.replaying import replay
    from pipeline.spark_failures import spark_failures

    spark = context.spark
    with (
        spark_failures(f"replay of topic {state.topic}"),
        context.display.work(f"replay {state.topic}") as shown,
        progress_of_tasks(spark, shown) as progress,
    ):

        def read(first: dict[int, int], end: dict[int, int], known: dict[int, int]) -> DataFrame:
            return read_topic(spark, context.storage, state, first, end, known, progress)

        def log_starts() -> dict[int, int]:
            newest = context.topics.state(state.topic)
            return {number: part.log_start_offset for number, part in enumerate(newest.partitions)}

        result = replay(spark, target, ranges, read, log_starts, lambda line: say(f"{context.name}: {line}"))
    warnings = []
    try:
        if accepted is not None:
            record_model(context.topics, state, accepted)
    except LogError as error:
        warnings.append(f"the replay is done, but the fields of its model could not be put on record: {error}")
    return JobReport(
        summary={
            "topic": state.topic,
            "table": context.settings.required_export().table,
            "table version": result.table_version,
            "dead letters replayed": result.replayed,
            "superseded": result.superseded,
            "gone from the log": result.gone,
            "still open": result.still_open,
            "rows written": result.written,
        },
        warnings=warnings,
    )


def _report(context: JobContext, target: Export, result: ExportResult, warnings: Sequence[str]) -> JobReport:
    return JobReport(
        summary={
            "topic": target.topic,
            "table": context.settings.required_export().table,
            "table version": result.table_version,
            "records": result.records,
            **_outcome(result, target.mode),
        },
        rows=[
            {"partition": number, "from offset": result.positions_before.get(number, 0), "to offset": offset}
            for number, offset in sorted(result.positions_after.items())
        ],
        warnings=warnings,
    )


def _outcome(result: ExportResult, mode: ExportMode) -> dict[str, Value]:
    """What became of the records, in the words of the mode."""
    letters: dict[str, Value] = {"dead letters": result.dead_letters, "dead letters by reason": result.reasons}
    if mode is ExportMode.APPEND:
        return {"rows appended": result.written, **letters}
    return {
        "tombstones": result.tombstones,
        "rows upserted": result.written,
        "rows deleted": result.deleted,
        "rows that became stale": result.became_stale,
        **letters,
    }


def _gaps(increment: Increment) -> list[str]:
    return [
        f"partition {gap.partition}: retention deleted offsets {gap.from_offset} to {gap.to_offset - 1} before they"
        " were exported"
        for gap in increment.gaps
    ] + [
        f"partition {number}: compaction may have removed tombstones before they were exported, so it was read from its"
        " start again"
        for number in increment.reread
    ]


def _warnings(result: ExportResult, export: Export, compacted: bool) -> list[str]:
    warnings = _gaps(result.increment)
    if result.dead_letters:
        warnings.append(
            f"{counted(result.dead_letters, 'record')} did not decode and went to {export.dead_letters}:"
            " `lakelog report` counts them by reason"
        )
    if result.became_stale:
        warnings.append(
            f"{counted(result.became_stale, 'row')} of {export.table} became stale: a newer record of the key does not"
            " decode, and the row stays as it was; its _stale_since says which record that is"
        )
    if result.without_row and compacted:
        warnings.append(
            f"{counted(result.without_row, 'key')} without a row have a record that does not decode: the log was"
            " compacted, so an earlier record that decodes may be gone, from which a table that was exported in time"
            " still has a stale row"
        )
    return warnings


def _wish(context: JobContext, state: TopicState) -> Wish:
    """What the command line asks.

    Raises:
        UsageError: in words that mean nothing.
    """
    arguments = vars(context.arguments)
    accepted = arguments.get("accept_dead_letters")
    time = arguments.get("from_timestamp")
    return Wish(
        from_offsets=_offsets("--from-offset", arguments.get("from_offset") or []),
        from_time=_offsets_at(context, state, _time_ms(time)) if time is not None else {},
        up_to=_offsets("--accept-dead-letters", accepted.split(",")) if accepted is not None else None,
    )


def _time_ms(text: str) -> int:
    """Milliseconds since 1970, from such a number or from ISO 8601 text; without a zone it is UTC."""
    if re.fullmatch(r"[0-9]{1,15}", text):
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            "--from-timestamp", f"found {text!r}", "Use 2026-01-31T12:00:00Z, or milliseconds since 1970."
        ) from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _offsets_at(context: JobContext, state: TopicState, time_ms: int) -> dict[int, int]:
    """By partition, the first offset with a record that is not older; the end where all are."""
    from storage_engine.topic.reader import PartitionReader

    found = {}
    for number, part in enumerate(state.partitions):
        reader = PartitionReader(context.storage, context.topics.chain(state.topic), number, state)
        at = reader.offset_at(time_ms, Isolation.READ_COMMITTED)
        found[number] = part.last_stable_offset if at is None else max(at[0], part.log_start_offset)
    return found


def _offsets(option: str, pairs: Sequence[str]) -> dict[int, int]:
    """Partition to offset, from P:N."""
    found: dict[int, int] = {}
    for pair in pairs:
        match = re.fullmatch(r"\s*([0-9]{1,9}):([0-9]{1,19})\s*", pair)
        if match is None or int(match[1]) in found:
            problem = f"found {pair!r}" if match is None else f"names partition {match[1]} twice"
            raise UsageError(option, problem, "Name partition and offset, such as 0:1200; each partition once.")
        found[int(match[1])] = int(match[2])
    return found


def add_export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from-offset",
        metavar="P:N",
        action="append",
        help="read partition P from offset N on, again or for the first time; may be given for several partitions",
    )
    parser.add_argument(
        "--from-timestamp",
        metavar="TIME",
        help="read each partition from its first record on that is not older: 2026-01-31T12:00:00Z, or milliseconds",
    )
    parser.add_argument(
        "--replay",
        action="store_true",
        help="decode the dead letters of earlier exports anew, and read nothing that is new",
    )
    parser.add_argument(
        "--accept-schema",
        action="store_true",
        help="go on where the topic's model changed so that readers of its older records cannot; it is recorded",
    )
    parser.add_argument(
        "--accept-dead-letters",
        metavar="P:N,...",
        help="export up to these end offsets, which a stopped export printed, however many of the records do not decode",
    )


if __name__ == "__main__":
    sys.exit(run_job("export", __doc__, export, add_export_options))
