"""`lakelog topics`: manages the topics of a root and their settings.

Each change is one version of the topic's state. The number of partitions can grow but never shrink. After a topic is
deleted, its records can no longer be read. The topic's files are deleted by the first maintenance that runs after a
delay of file.delete.delay.ms.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.options import (
    ConfigOption,
    ConfOption,
    DeleteConfigOption,
    RootOption,
    TopicsOption,
    deleted_keys,
    given_overrides,
    open_topics,
    readable_states,
    settle_view,
)
from lakelog.cli.output import write_error, write_line, write_table
from lakelog.cli.topics import reassign
from lakelog.cli.topics.group_transfer import export_groups, import_broker_groups
from storage_engine.errors import ExitStatus, LogError, UsageError
from storage_engine.quantities import counted, shown_moment, shown_number, shown_size
from storage_engine.topic.ingest_reports import shown_report

if TYPE_CHECKING:
    from rich.table import Table

    from lakelog.inspection.describing import TopicDescription
    from storage_engine.topic.kafka.segment_import import ImportedTopic

app = typer.Typer(help="Create, list, describe, alter, delete, export and import topics.", no_args_is_help=True)
app.command("reassign")(reassign.reassign)


class TopicsFormat(StrEnum):
    """The output format of a topic's description."""

    TABLE = "table"
    JSON = "json"


TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]


@app.command("create")
def create(
    topic: TopicArgument,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", metavar="N", help="Number of partitions. Default: the broker setting num.partitions."
        ),
    ] = None,
    config: ConfigOption = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Create a topic."""
    topics = open_topics(root, conf, creates=True, makes_topics=True)
    overrides = given_overrides(config or ())
    state = topics.create(topic, topics.broker.num_partitions if partitions is None else partitions, overrides)
    settle_view(topics, topic)
    write_line(f"created topic {topic} with {counted(len(state.partitions), 'partition')}, topic id {state.topic_id}")


@app.command("list")
def list_(root: RootOption = None, conf: ConfOption = None) -> None:
    """Print the names of all topics, one per line."""
    states, failed = readable_states(open_topics(root, conf), None)
    for name in sorted(state.topic for state in states):
        write_line(name)
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL if states else ExitStatus.ERROR)


@app.command("describe")
def describe(
    topic: TopicArgument,
    form: Annotated[
        TopicsFormat, typer.Option("--format", help="table: for people. json: one document with exact numbers.")
    ] = TopicsFormat.TABLE,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Show a topic's partitions, segments, writer and settings.

    If the report of the topic's ingest cannot be read, the command shows everything else, prints the reason to standard
    error, and ends with the exit status 4.
    """
    topics = open_topics(root, conf)
    state = topics.state(topic)
    from lakelog.inspection import describing

    described = describing.describe(topics, state)
    if form is TopicsFormat.JSON:
        write_line(json.dumps(described.as_json()))
    else:
        write_table(*_summary(described), *_upkeep(described), "")
        write_table(_partition_table(described), "", _segment_table(described), "")
        write_table(_config_table(described))
    if described.ingest_error is not None:
        write_error(described.ingest_error)
        raise typer.Exit(ExitStatus.PARTIAL)


@app.command("alter")
def alter(
    topic: TopicArgument,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", metavar="N", help="New number of partitions, larger than the current number."),
    ] = None,
    config: ConfigOption = None,
    delete_config: DeleteConfigOption = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Add partitions to a topic; set or remove its settings."""
    changes: dict[str, str | None] = dict(given_overrides(config or ()))
    for key in deleted_keys(delete_config or ()):
        if key in changes:
            raise UsageError(
                "--delete-config", f"{key} is given to --config, too", "Specify the key in only one of the two options."
            )
        changes[key] = None
    if partitions is None and not changes:
        raise UsageError(
            "lakelog topics alter", "no change is given", "Give --partitions, --config or --delete-config."
        )
    topics = open_topics(root, conf)
    state = topics.alter(topic, partitions, changes)
    settle_view(topics, topic)
    write_line(f"altered topic {topic}: {counted(len(state.partitions), 'partition')}, {_settings(state.configs)}")


@app.command("delete")
def delete(topic: TopicArgument, root: RootOption = None, conf: ConfOption = None) -> None:
    """Delete a topic and all its records. This cannot be undone."""
    topics = open_topics(root, conf)
    topics.delete(topic)
    settle_view(topics, topic)
    write_line(f"deleted topic {topic}")


@app.command("settle")
def settle(
    topic: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Names of topics. Default: all.")
    ] = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Update the view for Kafka's tools (log/), so that the view shows exactly the committed records.

    Before the view is updated, the command writes the markers of transactions that are decided or have timed out.
    """
    topics = open_topics(root, conf)
    for name in topic or ():
        topics.state(name)
    from lakelog.terminal.progress_display import display_on_stderr
    from storage_engine.storage import needed
    from storage_engine.topic.append.transaction_writer import finish_transactions
    from storage_engine.topic.kafka import view

    unfinished: LogError | None = None
    try:
        finish_transactions(topics, topic or None)
    except LogError as error:
        unfinished = error  # log/ can still be settled
    else_export = "`lakelog topics export` copies topics for Kafka's tools."
    needed(topics.storage.view, topics.storage, "showing topics in log/", else_export)
    with display_on_stderr().work("settle log/") as progress:
        view.settle(topics, topic or None, progress)
    if unfinished is not None:
        raise unfinished


@app.command("export")
def export(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A local directory that is empty or does not exist yet.")
    ],
    topic: TopicsOption = None,
    keep_epochs: Annotated[
        bool,
        typer.Option(
            "--keep-epochs",
            help=(
                "Export the batches with their leader epochs. Default: all batches get epoch 0, as a new cluster"
                " expects."
            ),
        ),
    ] = False,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Copy topics to a plain Kafka log directory, for a broker that has these topics.

    To let a broker serve the topics: create the topics on the broker, and stop the broker. Replace the files of the
    broker's partitions with the exported files, but keep the broker's own partition.metadata. Start the broker.
    `lakelog topics import` brings back the records that the broker appends. The file consumer-offsets.csv contains the
    positions of the groups, for kafka-consumer-groups --reset-offsets --from-file.
    """
    topics = open_topics(root, conf)
    from lakelog.terminal.progress_display import display_on_stderr
    from storage_engine.storage.storage_opening import new_directory
    from storage_engine.topic.kafka.kafka_export import export_topics

    if topics.storage.root is not None:
        root_path = topics.storage.root.resolve()
        if Path(os.path.realpath(directory)).is_relative_to(root_path):
            raise UsageError(str(directory), f"is inside the root {root_path}", "Choose a directory outside the root.")
    states, failed = readable_states(topics, topic)
    names = [state.topic for state in states] if topic else sorted(state.topic for state in states)
    with display_on_stderr().work("export") as progress, new_directory(directory) as folder:
        exported = export_topics(topics, names, folder, keep_epochs=keep_epochs, progress=progress)
        failed |= not export_groups(topics, exported, folder)
    for state in exported:
        size = sum(part.size for part in state.partitions)
        write_line(f"exported topic {state.topic}: {counted(len(state.partitions), 'partition')}, {shown_size(size)}")
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)


@app.command("import")
def import_(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder that contains the topic-partition folders.")
    ],
    topic: TopicsOption = None,
    config: ConfigOption = None,
    move: Annotated[
        bool,
        typer.Option(
            "--move", help="Move the files instead of copying them. Both directories must be on one file system."
        ),
    ] = False,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Import topics from a plain Kafka log directory that no broker is using now.

    A topic that does not exist in the root is imported completely. A Kafka log directory contains no topic settings:
    give the settings with --config. If a topic was exported from the root into this directory, the import takes only
    the records that a broker appended after the export. The offsets that groups committed in __consumer_offsets become
    the positions of these groups. Groups that the topic in the root already has do not change.
    """
    overrides = given_overrides(config or ())
    topics = open_topics(root, conf, creates=True, makes_topics=True)
    from lakelog.terminal.progress_display import display_on_stderr
    from storage_engine.kafka_dir.log_directory import LogDirectory
    from storage_engine.topic.kafka.kafka_import import import_topic, skipped_folders, topics_in

    source = LogDirectory(directory)
    if not topic:
        for name in skipped_folders(source):
            write_error(f"{directory / name}: not imported: it is not a partition of an imported topic")
    failures: list[LogError] = []
    arrived = []
    names = list(dict.fromkeys(topic)) if topic else topics_in(source)
    for name in names:
        try:
            with display_on_stderr().work(f"import {name}") as progress:
                imported = import_topic(topics, source, name, overrides, move=move, progress=progress)
        except LogError as error:
            failures.append(error)
            continue
        arrived.append(imported.state)
        topics.keep_broker_settings()  # the creation of a topic stores them, but perhaps no topic was created here
        settle_view(topics, name)
        for line in _arrivals(imported):
            write_line(line)
        for number, part in enumerate(imported.partitions):
            if part.torn:
                write_error(
                    f"{directory / name}-{number}: the last {part.torn} bytes of the newest .log are not a complete"
                    " batch and were not imported"
                )
    if failures and len(failures) == len(names):
        raise failures[0]
    failures += import_broker_groups(topics, source, arrived)
    for failure in failures:
        write_error(failure)
    if failures:
        raise typer.Exit(ExitStatus.PARTIAL)


def _arrivals(imported: ImportedTopic) -> Iterator[str]:
    done = "imported topic" if imported.is_new else "found no new records of topic"
    for number, part in enumerate(imported.partitions):
        if part.end_offset > part.first_offset:
            yield f"partition {number}: offsets {part.first_offset} to {part.end_offset - 1}, {shown_size(part.size)}"
            done = "imported topic" if imported.is_new else "imported the new records of topic"
    yield f"{done} {imported.state.topic}: {counted(len(imported.partitions), 'partition')}"


def _settings(configs: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in configs.items()) or "no settings of its own"


def _summary(topic: TopicDescription) -> Iterator[str]:
    writer = topic.writer
    yield f"topic            {topic.topic}"
    yield f"topic id         {topic.topic_id}"
    yield f"state            version {topic.version}, {shown_moment(topic.written_ms)}: {topic.change}"
    if writer.query is None:
        yield f"writer           none, epoch {writer.epoch}"
    else:
        yield (
            f"writer           query {writer.query}, epoch {writer.epoch}, on {writer.host} (process {writer.pid})"
            f" since {shown_moment(writer.since_ms)}"
        )
    if topic.ingest is not None:
        yield f"ingest           {shown_report(topic.ingest)}; reported {shown_moment(topic.ingest.updated_ms)}"
    if topic.ingest_error is not None:
        yield "ingest           its report cannot be read"
    for query, batch in topic.queries.items():
        yield f"last batch       {batch.batch_id if batch.batch_id >= 0 else 'none'} of query {query}"
    for source, positions in topic.positions.items():
        yield f"positions        of {counted(len(positions), 'partition')} of source {source}"
    for number, part in enumerate(topic.partitions):
        if part.last_stable_offset < part.high_watermark:
            yield f"open transaction from offset {shown_number(part.last_stable_offset)} of partition {number} on"
    if topic.dropped:
        yield f"waiting          {len(topic.dropped)} dropped segments will be deleted"


def _upkeep(topic: TopicDescription) -> Iterator[str]:
    yield f"versions         {shown_number(topic.versions_kept)} kept; `lakelog state history` shows all versions"
    yield f"sweep floor      version {topic.sweep_floor}"
    if topic.unswept_files:
        size = shown_size(topic.unswept_bytes)
        yield (
            f"unswept          {counted(topic.unswept_files, 'file')} that no version names, {size}: a running job is"
            " writing them, or a crashed job left them"
        )


def _table(title: str, *columns: str, left: tuple[str, ...] = ()) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", overflow="fold")
    return table


def _partition_table(topic: TopicDescription) -> Table:
    table = _table(
        "partitions", "partition", "log start", "high watermark", "first dirty", "leader epoch", "segments", "bytes",
        "largest timestamp", left=("largest timestamp",),
    )  # fmt: skip
    for number, part in enumerate(topic.partitions):
        dirty = "-" if part.first_dirty_offset is None else shown_number(part.first_dirty_offset)
        table.add_row(
            str(number), shown_number(part.log_start_offset), shown_number(part.high_watermark), dirty,
            shown_number(part.epoch_at(part.high_watermark)), shown_number(len(part.segments)), shown_number(part.size),
            shown_moment(part.largest_timestamp),
        )  # fmt: skip
    return table


def _segment_table(topic: TopicDescription) -> Table:
    table = _table(
        "segments", "partition", "base offset", "end offset", "leader epoch", "bytes", "largest timestamp", "file", "",
        left=("largest timestamp", "file", ""),
    )  # fmt: skip
    for number, part in enumerate(topic.partitions):
        for segment in part.segments:
            table.add_row(
                str(number), shown_number(segment.base_offset), shown_number(segment.end_offset),
                shown_number(part.epoch_at(segment.base_offset)), shown_number(segment.size),
                shown_moment(segment.largest_timestamp),
                segment.name, "active" if segment is part.active_segment else "",
            )  # fmt: skip
    return table


def _config_table(topic: TopicDescription) -> Table:
    table = _table("settings that are not Kafka's defaults", "key", "value", "from", left=("key", "value", "from"))
    for each in topic.settings:
        table.add_row(each.key, each.value, each.source)
    return table
