"""`lakelog consumers`: who has registered to read a topic, how far each has read, and what that holds back.

An export registers itself. One that is gone for good, because its table is, holds tombstones back for consumer.max.hold.ms
each, and segments where retention.respect.consumers is set, until it is forgotten.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from storage_engine.cli.options import ConfOption, RootOption, TopicOption, TopicsOption, open_topics, readable_states
from storage_engine.cli.output import write_error, write_line, write_table
from storage_engine.errors import ExitStatus, LogError
from storage_engine.quantities import counted, shown_moment, shown_number, shown_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_engine.topic.groups import Consumer
    from storage_engine.topic.state import TopicState
    from storage_engine.topic.topics import Topics

app = typer.Typer(help="List and forget the registered consumers of topics.", no_args_is_help=True)


class Format(StrEnum):
    """How consumers are told of."""

    TABLE = "table"
    JSONL = "jsonl"


@dataclass(frozen=True)
class _Reading:
    """A consumer on one partition."""

    topic: str
    partition: int
    consumer: str
    kind: str
    offset: int
    lag: int
    updated_ms: int
    held_segments: int
    held_bytes: int
    held_until_ms: int | None


@app.command("list")
def list_(
    topic: TopicsOption = None,
    form: Annotated[
        Format, typer.Option("--format", help="table: for people. jsonl: one JSON object per consumer and partition.")
    ] = Format.TABLE,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Tell how far each consumer has read each partition.

    By how many offsets it lags, since when it stands there, and which segments it keeps from being deleted now, where
    retention.respect.consumers is set. Tombstones from its offset on stay longer in any case.
    """
    topics = open_topics(root, conf)
    from storage_engine.topic.groups import read_consumers

    readings: list[_Reading] = []
    damaged: list[LogError] = []
    states, failed = readable_states(topics, topic)
    for state in states:
        consumers = read_consumers(topics.storage, state)
        damaged += consumers.damaged
        for consumer in consumers.known:
            readings += _read_by(topics, state, consumer)
    if form is Format.JSONL:
        for reading in readings:
            write_line(json.dumps(asdict(reading), separators=(",", ":")))
    elif readings:
        _write_readings(readings)
    for error in damaged:
        write_error(error)
    if failed or damaged:
        raise typer.Exit(ExitStatus.PARTIAL)


@app.command("forget")
def forget(
    consumer: Annotated[
        str, typer.Argument(metavar="CONSUMER", help="As list prints it, or the path of a damaged file.")
    ],
    topic: TopicOption,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Let a consumer hold nothing back any more. One that lives on registers again when it next runs."""
    topics = open_topics(root, conf)
    from storage_engine.topic import groups
    from storage_engine.topic_name import check_topic_name

    groups.forget(topics.storage, check_topic_name(topic), consumer)
    write_line(f"topic {topic}: forgot {consumer}")


def _read_by(topics: Topics, state: TopicState, consumer: Consumer) -> Iterable[_Reading]:
    from storage_engine.log.holds import Holds
    from storage_engine.log.retention import decide_retention

    config, now_ms = topics.config(state), topics.clock.now_ms()
    for number, part in enumerate(state.partitions):
        position = consumer.positions.get(number, 0)
        held = decide_retention(part, config, now_ms, Holds({consumer.name: position})).held
        yield _Reading(
            topic=state.topic,
            partition=number,
            consumer=consumer.name,
            kind=consumer.kind,
            offset=position,
            lag=max(0, part.last_stable_offset - max(position, part.log_start_offset)),
            updated_ms=consumer.updated_ms,
            held_segments=len(held.deletions) if held else 0,
            held_bytes=held.bytes if held else 0,
            held_until_ms=held.until_ms if held else None,
        )


def _write_readings(readings: Iterable[_Reading]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("topic", "consumer", "kind", "partition", "offset", "lag", "since", "holds back"):
        table.add_column(
            column, justify="right" if column in ("partition", "offset", "lag") else "left", overflow="fold"
        )
    for each in readings:
        held = "-"
        if each.held_until_ms is not None:
            size = f"{counted(each.held_segments, 'segment')}, {shown_size(each.held_bytes)}"
            held = f"{size}, until {shown_moment(each.held_until_ms)}"
        table.add_row(
            each.topic, each.consumer, each.kind, str(each.partition), shown_number(each.offset),
            shown_number(each.lag), shown_moment(each.updated_ms), held,
        )  # fmt: skip
    write_table(table)
