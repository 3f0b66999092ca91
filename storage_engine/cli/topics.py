"""`lakelog topics`: what topics there are and how they are set.

Each change is one version of the topic's state. The partition count can grow and never shrinks; deleting removes the
records at once and the files after file.delete.delay.ms, when maintenance runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from storage_engine.cli import reassign
from storage_engine.cli.options import ConfOption, RootOption, open_topics, settle_view
from storage_engine.cli.output import write_line, write_table
from storage_engine.errors import ConfigError, UsageError
from storage_engine.quantities import counted, shown_moment, shown_number

if TYPE_CHECKING:
    from rich.table import Table

    from storage_engine.config import BrokerConfig
    from storage_engine.topic.state import TopicState

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)
app.command("reassign")(reassign.reassign)


class Format(StrEnum):
    """How a topic is described."""

    TABLE = "table"
    JSON = "json"


TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="KEY=VALUE", help="One of Kafka's keys for topics; may be given several times."),
]


@app.command("create")
def create(
    topic: TopicArgument,
    partitions: Annotated[
        int | None, typer.Option("--partitions", metavar="N", help="How many. Default: num.partitions of the broker.")
    ] = None,
    config: ConfigOption = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Create a topic."""
    topics = open_topics(root, conf)
    overrides = _overrides(config or ())
    state = topics.create(topic, topics.broker.num_partitions if partitions is None else partitions, overrides)
    settle_view(topics, topic)
    write_line(f"created topic {topic} with {counted(len(state.partitions), 'partition')}, topic id {state.topic_id}")


@app.command("list")
def list_(root: RootOption = None, conf: ConfOption = None) -> None:
    """Print the names of all topics, one a line."""
    for name in sorted(open_topics(root, conf).names()):
        write_line(name)


@app.command("describe")
def describe(
    topic: TopicArgument,
    form: Annotated[
        Format, typer.Option("--format", help="table: for people. json: one document, with every number as it is.")
    ] = Format.TABLE,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Show a topic's partitions, segments, writer and settings."""
    topics = open_topics(root, conf)
    state = topics.state(topic)
    if form is Format.JSON:
        write_line(json.dumps(_document(state, topics.broker)))
        return
    write_table(*_summary(state), "", _partition_table(state), "", _segment_table(state), "")
    write_table(_config_table(state, topics.broker))


@app.command("alter")
def alter(
    topic: TopicArgument,
    partitions: Annotated[
        int | None, typer.Option("--partitions", metavar="N", help="More partitions than there are now.")
    ] = None,
    config: ConfigOption = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="KEY", help="Go back to the default; may be given several times."),
    ] = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Add partitions, set or remove settings."""
    changes: dict[str, str | None] = dict(_overrides(config or ()))
    for key in _known_keys(delete_config or ()):
        if key in changes:
            raise UsageError("--delete-config", f"{key} is given to --config, too", "Keep one of the two.")
        changes[key] = None
    if partitions is None and not changes:
        raise UsageError(
            "lakelog topics alter", "nothing is to be changed", "Give --partitions, --config or --delete-config."
        )
    topics = open_topics(root, conf)
    state = topics.alter(topic, partitions, changes)
    settle_view(topics, topic)
    write_line(f"altered topic {topic}: {counted(len(state.partitions), 'partition')}, {_settings(state.configs)}")


@app.command("delete")
def delete(topic: TopicArgument, root: RootOption = None, conf: ConfOption = None) -> None:
    """Delete a topic and all its records. There is no way back."""
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
    """Make log/, the view for Kafka's tools, show exactly what is committed."""
    topics = open_topics(root, conf)
    for name in topic or ():
        topics.state(name)
    from storage_engine.progress_display import display_on_stderr
    from storage_engine.topic import view

    with display_on_stderr().work("settle log/") as progress:
        view.settle(topics, topic or None, progress)


def _overrides(arguments: Sequence[str]) -> dict[str, str]:
    """The values of --config by Kafka's name of the key, checked one by one."""
    from storage_engine.config import topic_key

    overrides: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError("--config", f"expected KEY=VALUE; found {argument!r}", "For example retention.ms=3600000.")
        place = f"--config {key}"
        try:
            declared = topic_key(key, value, place)
            declared.parse(value, place)
        except ConfigError as error:
            raise UsageError(error.place, error.problem, error.remedy) from None
        if declared.key in overrides:
            raise UsageError(place, f"{declared.key} is given twice", "Keep one of the two.")
        overrides[declared.key] = value
    return overrides


def _known_keys(arguments: Sequence[str]) -> Iterator[str]:
    from storage_engine.config import topic_key

    for argument in arguments:
        try:
            yield topic_key(argument, None, f"--delete-config {argument}").key
        except ConfigError as error:
            raise UsageError(error.place, error.problem, error.remedy) from None


def _settings(configs: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in configs.items()) or "no settings of its own"


def _summary(state: TopicState) -> Iterator[str]:
    writer = state.writer
    yield f"topic            {state.topic}"
    yield f"topic id         {state.topic_id}"
    yield f"state            version {state.version}, {shown_moment(state.written_ms)}: {state.change}"
    if writer.query is None:
        yield f"writer           none, epoch {writer.epoch}"
    else:
        yield (
            f"writer           query {writer.query}, epoch {writer.epoch}, on {writer.host} (process {writer.pid})"
            f" since {shown_moment(writer.since_ms)}"
        )
    for query, batch in state.queries.items():
        yield f"last batch       {batch.batch_id} of query {query}"
    if state.dropped:
        yield f"waiting          {len(state.dropped)} dropped segments for their deletion"


def _table(title: str, *columns: str, left: tuple[str, ...] = ()) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", overflow="fold")
    return table


def _partition_table(state: TopicState) -> Table:
    table = _table(
        "partitions", "partition", "log start", "high watermark", "first dirty", "leader epoch", "segments", "bytes",
        "largest timestamp", left=("largest timestamp",),
    )  # fmt: skip
    for number, part in enumerate(state.partitions):
        dirty = "-" if part.first_dirty_offset is None else shown_number(part.first_dirty_offset)
        table.add_row(
            str(number), shown_number(part.log_start_offset), shown_number(part.high_watermark), dirty,
            shown_number(part.epoch_at(part.high_watermark)), shown_number(len(part.segments)), shown_number(part.size),
            shown_moment(part.largest_timestamp),
        )  # fmt: skip
    return table


def _segment_table(state: TopicState) -> Table:
    table = _table(
        "segments", "partition", "base offset", "end offset", "leader epoch", "bytes", "largest timestamp", "file", "",
        left=("largest timestamp", "file", ""),
    )  # fmt: skip
    for number, part in enumerate(state.partitions):
        for segment in part.segments:
            table.add_row(
                str(number), shown_number(segment.base_offset), shown_number(segment.end_offset),
                shown_number(part.epoch_at(segment.base_offset)), shown_number(segment.size),
                shown_moment(segment.largest_timestamp),
                segment.name, "active" if segment is part.active_segment else "",
            )  # fmt: skip
    return table


def _config_table(state: TopicState, broker: BrokerConfig) -> Table:
    table = _table("settings that are not Kafka's defaults", "key", "value", "from", left=("key", "value", "from"))
    for key, value, source in _settings_of(state, broker):
        table.add_row(key, value, source)
    return table


def _settings_of(state: TopicState, broker: BrokerConfig) -> Iterator[tuple[str, str, str]]:
    """Key, value and where it comes from: the topic's own settings, and what the broker's keys change for all topics."""
    from storage_engine.config import TOPIC_KEYS, TopicConfig, as_text

    kafka = TopicConfig()
    for key, declared in TOPIC_KEYS.items():
        value = getattr(broker.topic_defaults, declared.name)
        if key in state.configs:
            yield key, state.configs[key], "topic"
        elif value != getattr(kafka, declared.name):
            yield key, as_text(value), "broker"


def _document(state: TopicState, broker: BrokerConfig) -> dict[str, object]:
    """The same for programs: offsets and bytes as numbers, times in milliseconds."""
    partitions = [
        {
            "partition": number,
            "log_start_offset": part.log_start_offset,
            "high_watermark": part.high_watermark,
            "first_dirty_offset": part.first_dirty_offset,
            "size": part.size,
            "largest_timestamp": part.largest_timestamp,
            "leader_epochs": [epoch._asdict() for epoch in part.leader_epochs],
            "segments": [segment._asdict() for segment in part.segments],
        }
        for number, part in enumerate(state.partitions)
    ]
    settings = [{"key": key, "value": value, "from": source} for key, value, source in _settings_of(state, broker)]
    summary = state.model_dump(include={"topic", "topic_id", "version", "written_ms", "change", "writer", "queries"})
    dropped = [each._asdict() for each in state.dropped]
    return summary | {"settings": settings, "partitions": partitions, "dropped": dropped}
