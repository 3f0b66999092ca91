"""`lakelog offsets`: Kafka's ListOffsets, printed as kafka-get-offsets (GetOffsetShell) prints it.

One line topic:partition:offset for each partition. A partition that has no such offset (no record is as late as the
timestamp, no record has a timestamp) has no line. Lines stand in the order of their `topic-partition` as text, as
Kafka's tool sorts them: orders-10 before orders-2.
"""

from __future__ import annotations

from typing import Annotated

import typer

from storage_engine.cli.options import (
    ConfOption,
    PartitionOption,
    RootOption,
    TopicOption,
    chosen_partitions,
    open_topics,
)
from storage_engine.cli.output import write_line
from storage_engine.errors import UsageError
from storage_engine.log.isolation import Isolation

_WORDS = {"latest": -1, "earliest": -2, "max-timestamp": -3}
_LONG_MAX = 2**63 - 1


def offsets(
    topic: TopicOption,
    partition: PartitionOption = None,
    time: Annotated[
        str,
        typer.Option(
            "--time", metavar="TIME",
            help="-1 or latest, -2 or earliest, -3 or max-timestamp; else a time in milliseconds: the first record that"
            " is not older.",
        ),
    ] = "latest",
    isolation: Annotated[
        Isolation,
        typer.Option("--isolation", help="read_committed: nothing behind the last stable offset, which is then the latest."),
    ] = Isolation.READ_UNCOMMITTED,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """Print offsets by time, one topic:partition:offset a line."""
    wanted = _parse_time(time)
    topics = open_topics(root, conf)
    state = topics.state(topic)
    chosen = chosen_partitions(topic, len(state.partitions), partition)
    from storage_engine.topic.decisions import newest_decided
    from storage_engine.topic.reader import PartitionReader

    chain = topics.chain(topic)
    decided = newest_decided(topics.storage, chain)
    for number in sorted(chosen, key=str):
        found = PartitionReader(topics.storage, chain, number, decided).offset_at(wanted, isolation)
        if found is not None:
            write_line(f"{topic}:{number}:{found[0]}")


def _parse_time(text: str) -> int:
    try:
        time = _WORDS[text] if text in _WORDS else int(text)
    except ValueError:
        time = -4
    if not -3 <= time <= _LONG_MAX:
        raise UsageError(
            "--time", f"found {text!r}",
            "Use -1 or latest, -2 or earliest, -3 or max-timestamp, or milliseconds since 1970.",
        )  # fmt: skip
    return time
