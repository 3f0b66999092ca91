"""`lakelog offsets`: prints the result of Kafka's ListOffsets in the form of kafka-get-offsets (GetOffsetShell).

Each partition has one line, topic:partition:offset. A partition has no line if it has no record at or after the given
time, or if none of its records has a timestamp. The lines are sorted by `topic-partition` as text, as in Kafka's tool:
orders-10 comes before orders-2.
"""

from __future__ import annotations

from typing import Annotated

import typer

from lakelog.cli.options import (
    LONG_MAX,
    AnyTopicOption,
    ConfOption,
    KafkaDirOption,
    PartitionOption,
    RootOption,
    open_readers,
)
from lakelog.cli.output import write_line
from storage_engine.errors import UsageError
from storage_engine.log.isolation import Isolation

_WORDS = {"latest": -1, "earliest": -2, "max-timestamp": -3}


def offsets(
    topic: AnyTopicOption = None,
    partition: PartitionOption = None,
    time: Annotated[
        str,
        typer.Option(
            "--time", metavar="TIME",
            help=(
                "-1 or latest, -2 or earliest, -3 or max-timestamp. Or a time in milliseconds since 1970: the"
                " result is then the offset of the first record at or after this time."
            ),
        ),
    ] = "latest",
    isolation: Annotated[
        Isolation, typer.Option(
            "--isolation", help="read_committed: latest is the offset at which the oldest open transaction begins.")
    ] = Isolation.READ_UNCOMMITTED,
    kafka_dir: KafkaDirOption = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """Print each partition's offset for a time, as topic:partition:offset."""
    wanted = _parse_time(time)
    readers = open_readers(root, conf, kafka_dir, topic, partition)
    for name, number in sorted(readers, key=lambda each: (each[0], str(each[1]))):
        found = readers[name, number].offset_at(wanted, isolation)
        if found is not None:
            write_line(f"{name}:{number}:{found[0]}")


def _parse_time(text: str) -> int:
    try:
        time = _WORDS[text] if text in _WORDS else int(text)
    except ValueError:
        time = -4
    if not -3 <= time <= LONG_MAX:
        raise UsageError(
            "--time", f"found {text!r}",
            "Use -1 or latest, -2 or earliest, -3 or max-timestamp, or milliseconds since 1970.",
        )  # fmt: skip
    return time
