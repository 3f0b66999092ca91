"""Bring a Delta table up to its topic, incrementally and exactly once.

    ./spark-submit.sh export --conf conf/flights.yaml

Reads what the topic of the section `export` has got since the last run, of transactions the committed ones. A compacted
topic is upserted: the table holds the latest value of each key, and a tombstone deletes its row. Any other topic is
appended, record by record. Values are decoded by the topic's model in schemas/; what cannot be decoded goes to
tables/dead_letters/export/<topic>/.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from pipeline.exporting import Export, ExportMode, OffsetRange, export_increment
from pipeline.job import JobContext, JobReport, run_job
from pipeline.progress import progress_of_tasks
from pipeline.reading import read_topic
from pipeline.settings import Settings
from pipeline.spark_failures import spark_failures
from schemas.event_model import EventModel
from schemas.registry import UnknownSchemaError, model, names
from storage_engine.dead_letter_tables import export_dead_letters_key
from storage_engine.errors import ConfigError, LogError
from storage_engine.topic.decisions import newest_decided
from storage_engine.topic.groups import put_positions


def export(context: JobContext) -> JobReport:
    """Export what is new and report it."""
    wanted = context.settings.required_export()
    context.topics.state(wanted.topic)  # which says so where there is no such topic
    state = newest_decided(context.storage, context.topics.chain(wanted.topic))
    compact = context.topics.config(state).compact
    mode = ExportMode(wanted.mode) if wanted.mode else ExportMode.UPSERT if compact else ExportMode.APPEND
    root = context.storage.uri
    target = Export(
        topic=state.topic,
        topic_id=state.topic_id,
        mode=mode,
        model=_model(context.settings, state.topic),
        table=f"{root}/{wanted.table}",
        dead_letters=f"{root}/{export_dead_letters_key(state.topic)}",
    )
    ranges = {
        number: OffsetRange(part.log_start_offset, part.last_stable_offset, part.tombstones_end)
        for number, part in enumerate(state.partitions)
    }

    def register(positions: Mapping[int, int]) -> None:
        name = f"export {wanted.table}"
        put_positions(context.storage, state, name, "delta export", positions, context.clock.now_ms())

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
        )
    warnings = [
        f"partition {gap.partition}: retention deleted offsets {gap.from_offset} to {gap.to_offset - 1} before they"
        " were exported"
        for gap in result.gaps
    ] + [
        f"partition {number}: compaction may have removed tombstones before they were exported, so it was read from its"
        " start again"
        for number in result.reread
    ]
    try:
        register(result.positions_after)
    except LogError as error:  # the older positions hold back more than need be, never less
        warnings.append(f"the export is done, but its positions could not be put on record: {error}")
    return JobReport(
        summary={
            "topic": state.topic,
            "table": wanted.table,
            "table version": result.table_version,
            "records": result.records,
            "rows upserted": result.upserted,
            "rows deleted": result.deleted,
            "dead letters": result.dead_letters,
        },
        rows=[
            {"partition": number, "from offset": result.positions_before.get(number, 0), "to offset": offset}
            for number, offset in sorted(result.positions_after.items())
        ],
        warnings=warnings,
    )


def _model(settings: Settings, topic: str) -> type[EventModel] | None:
    definition = settings.topics.get(topic)
    if definition is None or definition.schema is None:
        return None
    try:
        return model(definition.schema)
    except UnknownSchemaError as error:
        place = settings.place_of(f"topics.{topic}.schema")
        raise ConfigError(
            place, f"found {definition.schema!r}, no model in schemas/", f"There are {', '.join(names())}."
        ) from error


if __name__ == "__main__":
    sys.exit(run_job("export", __doc__, export))
