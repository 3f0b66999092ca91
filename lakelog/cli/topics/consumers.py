"""`lakelog consumers`: prints each registered consumer of a topic, with its positions and with the data that is kept
for it.

An export registers itself. If the table of an export is deleted, the export remains a consumer until `forget` removes
it. Cleaning keeps the tombstones that a consumer has not read. With retention.respect.consumers, cleaning also keeps
the segments that a consumer has not read. Cleaning keeps such tombstones and segments for at most consumer.max.hold.ms.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.options import ConfOption, RootOption, TopicOption, TopicsOption, open_topics, readable_states
from lakelog.cli.output import write_error, write_line, write_table
from storage_engine.errors import ExitStatus, LogError
from storage_engine.quantities import counted, shown_moment, shown_number, shown_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage_engine.topic.chain.topic_state import TopicState
    from storage_engine.topic.readers.consumer_files import Consumer
    from storage_engine.topic.topics import Topics

app = typer.Typer(help="List and remove the registered consumers of topics.", no_args_is_help=True)


class ConsumersFormat(StrEnum):
    """The output format of consumers."""

    TABLE = "table"
    JSONL = "jsonl"


@dataclass(frozen=True)
class _ConsumerPosition:
    """How far one consumer has read one partition, and the data of this partition that is kept for the consumer."""

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
        ConsumersFormat,
        typer.Option("--format", help="table: for people. jsonl: one JSON object per consumer and partition."),
    ] = ConsumersFormat.TABLE,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """For each consumer and partition, print the offset up to which the consumer has read.

    Each line also has the consumer's lag in offsets, the time at which the consumer's positions last changed, and the
    segments that are kept only for this consumer. Segments are kept for a consumer only if the topic has the setting
    retention.respect.consumers=true. In every topic, tombstones at and after the consumer's offset are kept longer.
    """
    topics = open_topics(root, conf)
    from storage_engine.topic.readers.consumer_files import read_consumers

    readings: list[_ConsumerPosition] = []
    damaged: list[LogError] = []
    states, failed = readable_states(topics, topic)
    for state in states:
        consumers = read_consumers(topics.storage, state)
        damaged += consumers.damaged
        for consumer in consumers.known:
            readings += _read_by(topics, state, consumer)
    if form is ConsumersFormat.JSONL:
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
        str,
        typer.Argument(
            metavar="CONSUMER",
            help="The consumer's name as `lakelog consumers list` prints it, or the path of a damaged file.",
        ),
    ],
    topic: TopicOption,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Remove a consumer, so that no data is kept for it any more. If the consumer runs again, it is registered
    again."""
    topics = open_topics(root, conf)
    from storage_engine.topic.readers import consumer_files
    from storage_engine.topic_name import check_topic_name

    consumer_files.forget(topics.storage, check_topic_name(topic), consumer)
    write_line(f"topic {topic}: removed consumer {consumer}")


def _read_by(topics: Topics, state: TopicState, consumer: Consumer) -> Iterable[_ConsumerPosition]:
    from storage_engine.log.holds import Holds
    from storage_engine.log.segment_retention import decide_retention

    config, now_ms = topics.config(state), topics.clock.now_ms()
    for number, part in enumerate(state.partitions):
        position = consumer.positions.get(number, 0)
        held = decide_retention(
            part, config, now_ms, Holds({consumer.name: position} if consumer.holds_back else {})
        ).held
        yield _ConsumerPosition(
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


def _write_readings(readings: Iterable[_ConsumerPosition]) -> None:
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
