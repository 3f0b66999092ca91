"""Reads the request for one run of an export: the section `export` of the settings, and the command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lakelog.dead_letter_tables import export_dead_letters_key
from lakelog.delta_options import unfit_for_deltalake
from pipeline.delta.export_plan import Export, ExportBounds, ExportMode
from pipeline.delta.layout_columns import as_partitioned, unfit_cluster, unfit_partition
from pipeline.delta.table_properties import TableLayout, can_read_deletion_vectors
from pipeline.jdbc.target_tables import letters_table
from pipeline.job import JobContext
from pipeline.topic_model import topic_schemas
from storage_engine.errors import ConfigError, UsageError
from storage_engine.log.isolation import Isolation
from storage_engine.quantities import parse_moment

if TYPE_CHECKING:
    from storage_engine.topic.chain.topic_state import TopicState


OPTIONS_OF_ONE_EXPORT = {
    "--from-offset": "from_offset",
    "--from-timestamp": "from_timestamp",
    "--replay": "replay",
    "--rebuild": "rebuild",
    "--accept-lost-rows": "accept_lost_rows",
    "--accept-schema": "accept_schema",
    "--accept-dead-letters": "accept_dead_letters",
}
"""The options that are for one run of one export, with their names in the parsed command line."""


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """The options of the job `export`."""
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        help="run only this export of the section `exports`; the option may be given several times",
    )
    parser.add_argument(
        "--from-offset",
        metavar="P:N",
        action="append",
        help="begin at offset N in partition P; the option may be given for several partitions",
    )
    parser.add_argument(
        "--from-timestamp",
        metavar="TIME",
        help="read each partition from its first record at or after this time: 2026-01-31T12:00:00Z, or milliseconds since 1970",
    )
    parser.add_argument(
        "--replay",
        action="store_true",
        help="decode the dead letters of earlier exports again, and export no new records",
    )
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="make the table again from the whole log, with the columns and the mode of the settings, in one commit",
    )
    parser.add_argument(
        "--accept-lost-rows",
        metavar="N",
        type=int,
        help="allow --rebuild to lose up to N rows whose records are no longer in the log; use the number from the error of"
        " the refused rebuild",
    )
    parser.add_argument(
        "--accept-schema",
        action="store_true",
        help="accept a change of the topic's model that breaks older records or their readers, and record the new model",
    )
    parser.add_argument(
        "--accept-dead-letters",
        metavar="P:N,...",
        help="export only the records below these end offsets, and accept all dead letters among them; use the offsets"
        " that a stopped export has printed",
    )


def wanted_export(context: JobContext, state: TopicState) -> Export:
    """The topic and table of the section `export`.

    Raises:
        ConfigError: settings of the section contradict each other.
    """
    wanted = context.settings.required_export()
    compact = context.topics.config(state).compact
    mode = ExportMode(wanted.mode) if wanted.mode else ExportMode.UPSERT if compact else ExportMode.APPEND
    asked_by = context.settings.place_of("export.mode") if wanted.mode else f"the cleanup.policy of {state.topic}"
    if wanted.headers and mode is ExportMode.UPSERT:
        raise ConfigError(
            context.settings.place_of("export.headers"),
            f"headers are exported only in the modes append and changelog, but {asked_by} asks for upsert",
            f"Remove the setting {context.settings.export_section}.headers, or set"
            f" {context.settings.export_section}.mode to append.",
        )
    root = context.storage.uri
    table, dead_letters = f"{root}/{wanted.table}", f"{root}/{export_dead_letters_key(state.topic)}"
    if wanted.jdbc is not None:
        mode, asked_by = ExportMode.UPSERT, context.settings.place_of("export.jdbc")
        table, dead_letters = str(wanted.jdbc.target()), letters_table(wanted.jdbc.target())
    unfit = unfit_for_deltalake(table) if wanted.jdbc is None else None
    if unfit:
        raise ConfigError(
            context.settings.place_of("export.table"),
            f"the path {table} has {unfit!r}, and the library deltalake cannot read such paths"
            + (" in HDFS" if table.startswith("hdfs://") else ""),
            "Use only ASCII letters, digits and the characters - . _ ~ / in the paths of the root and of the table.",
        )
    schemas = topic_schemas(context.settings, state.topic)
    if wanted.extra and schemas.values is None:
        raise ConfigError(
            context.settings.place_of("export.extra"),
            f"found extra: true, but topic {state.topic} has no schema, so no field is known or unknown",
            f"Name a schema in topics.{state.topic}.schema, or remove the setting"
            f" {context.settings.export_section}.extra.",
        )
    deletion_vectors = None
    if wanted.readers is not None and mode is ExportMode.UPSERT:
        deletion_vectors = can_read_deletion_vectors(wanted.readers)
    export = Export(
        topic=state.topic,
        topic_id=state.topic_id,
        mode=mode,
        schema=schemas.values and replace(schemas.values, has_extra=wanted.extra),
        key_schema=schemas.keys,
        table=table,
        dead_letters=dead_letters,
        asked_by=asked_by,
        section=context.settings.export_section,
        headers=wanted.headers,
        digest=wanted.digest and wanted.jdbc is None,
        layout=TableLayout(
            deletion_vectors, wanted.partition_by, wanted.cluster_by, "polars" in (wanted.readers or ())
        ),
    )
    _check_columns(context, export)
    return as_partitioned(export, wanted.partition_by) if wanted.partition_by else export


def _check_columns(context: JobContext, export: Export) -> None:
    """Check that the table can be partitioned and clustered by the columns of the settings.

    Raises:
        ConfigError: a column is unknown, or unsuitable.
    """
    layout = export.layout
    partition_by = [("partition.by", name, unfit_partition(export, name)) for name in layout.partitions]
    cluster_by = [("cluster.by", name, unfit_cluster(export, name)) for name in layout.cluster_by or ()]
    for setting, name, problem in (*partition_by, *cluster_by):
        if problem is not None:
            raise ConfigError(
                context.settings.place_of(f"export.{setting}"), f"the column {name} {problem}", "Name another column."
            )


def bounds_of(context: JobContext, state: TopicState) -> ExportBounds:
    """The options of the command line for this run.

    Raises:
        UsageError: an option cannot be parsed.
    """
    arguments = vars(context.arguments)
    accepted = arguments.get("accept_dead_letters")
    time = arguments.get("from_timestamp")
    return ExportBounds(
        from_offsets=_offsets("--from-offset", arguments.get("from_offset") or []),
        from_time=_offsets_at(context, state, _time_ms(time)) if time is not None else {},
        up_to=_offsets("--accept-dead-letters", accepted.split(",")) if accepted is not None else None,
    )


def check_options(context: JobContext) -> None:
    """Check that the options of the command line do not contradict one another.

    Raises:
        UsageError: they do not.
    """
    given: Mapping[str, object] = vars(context.arguments)
    if context.settings.required_export().jdbc is not None:
        for option in (each for each in ("--replay", "--rebuild") if given.get(OPTIONS_OF_ONE_EXPORT[each])):
            raise UsageError(
                option,
                "is only for Delta tables, but the export writes into a database",
                "To export records again, for example after the model was corrected, use --from-offset P:N.",
            )
    lost = given.get("accept_lost_rows")
    bounds = ("--from-offset", "--from-timestamp")
    for kind, reads, others in (
        ("--rebuild", "the whole log", (*bounds, "--replay")),
        ("--replay", "the dead letters of earlier exports", (*bounds, "--accept-dead-letters")),
    ):
        ignored = [each for each in others if given.get(OPTIONS_OF_ONE_EXPORT[each]) not in (None, False)]
        if given.get(OPTIONS_OF_ONE_EXPORT[kind]) and ignored:
            raise UsageError(ignored[0], f"cannot be used with {kind}, which reads {reads}", f"Leave out {ignored[0]}.")
    if given.get("rebuild"):
        if isinstance(lost, int) and lost < 0:
            raise UsageError("--accept-lost-rows", f"found {lost}", "Give a number of rows.")
    elif lost is not None:
        raise UsageError("--accept-lost-rows", "is only for --rebuild", "Add --rebuild, or leave out this option.")


def _time_ms(text: str) -> int:
    """Milliseconds since 1970, from a number of milliseconds or from ISO 8601 text; text without a zone is UTC."""
    if re.fullmatch(r"[0-9]{1,15}", text):
        return int(text)
    try:
        return parse_moment(text)
    except ValueError:
        raise UsageError(
            "--from-timestamp", f"found {text!r}", "Use 2026-01-31T12:00:00Z, or milliseconds since 1970."
        ) from None


def _offsets_at(context: JobContext, state: TopicState, time_ms: int) -> dict[int, int]:
    """By partition, the offset of the first record at or after this time; the end offset if all records are older."""
    from storage_engine.topic.readers.reader import PartitionReader

    found = {}
    for number, part in enumerate(state.partitions):
        reader = PartitionReader(context.storage, context.topics.chain(state.topic), number, state)
        at = reader.offset_at(max(0, time_ms), Isolation.READ_COMMITTED)  # a negative time has a special meaning
        found[number] = part.last_stable_offset if at is None else max(at[0], part.log_start_offset)
    return found


def _offsets(option: str, pairs: Sequence[str]) -> dict[int, int]:
    """The offsets by partition, from texts of the form P:N."""
    found: dict[int, int] = {}
    for pair in pairs:
        match = re.fullmatch(r"\s*([0-9]{1,9}):([0-9]{1,19})\s*", pair)
        if match is None or int(match[1]) in found:
            problem = f"found {pair!r}" if match is None else f"names partition {match[1]} twice"
            raise UsageError(
                option, problem, "Give a partition and an offset, such as 0:1200. Give each partition only once."
            )
        found[int(match[1])] = int(match[2])
    return found
