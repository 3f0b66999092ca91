"""`lakelog offsets`: prints the result of Kafka's ListOffsets as kafka-get-offsets (GetOffsetShell) does, with its options.

Each partition has one line, topic:partition:offset. A partition has no line if it has no record at or after the given
time, or if none of its records has a timestamp. The lines are sorted by `topic-partition` as text, as in Kafka's tool:
orders-10 comes before orders-2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.kafka_tools.partition_filter import PartitionFilter, is_plain, partition_filter
from lakelog.cli.options import (
    LONG_MAX,
    ConfOption,
    KafkaDirOption,
    PartitionOption,
    RootOption,
    open_readers,
    open_topics,
    topic_readers,
)
from lakelog.cli.output import write_error, write_line
from storage_engine.errors import ExitStatus, LogError, UsageError
from storage_engine.log.isolation import Isolation
from storage_engine.topic_name import is_topic_name

if TYPE_CHECKING:
    from storage_engine.log.log_reader import LogReader
    from storage_engine.topic.readers.reader import PartitionReader
    from storage_engine.topic.topics import Topics

_EARLIEST = -2
_EARLIEST_LOCAL = -4
_OF_TIERED_STORAGE = (-5, -6)
_WORDS = {
    "latest": -1, "earliest": _EARLIEST, "max-timestamp": -3, "earliest-local": _EARLIEST_LOCAL, "latest-tiered": -5,
    "earliest-pending-upload": -6,
}  # fmt: skip
TopicRegexOption = Annotated[
    str | None,
    typer.Option(
        "--topic",
        metavar="REGEX",
        help="Name of a topic, or a regular expression that matches the whole name. A comma means `or`. Default: all.",
    ),
]
TopicPartitionsOption = Annotated[
    str | None,
    typer.Option(
        "--topic-partitions",
        metavar="RULE,...",
        help=(
            "The partitions, instead of --topic and --partitions. A rule is TOPICS:PARTITIONS, TOPICS or :PARTITIONS."
            " TOPICS is a regular expression. PARTITIONS is N, FROM-TO (TO is excluded), FROM- or -TO."
        ),
    ),
]
TimeOption = Annotated[
    str,
    typer.Option(
        "--time",
        metavar="TIME",
        help=(
            "-1 or latest, -2 or earliest, -3 or max-timestamp. Or a time in milliseconds since 1970: the"
            " result is then the offset of the first record at or after this time. Kafka's -4 to -6 are"
            " accepted, too."
        ),
    ),
]


def offsets(
    topic: TopicRegexOption = None,
    partition: PartitionOption = None,
    partitions: Annotated[
        str | None, typer.Option("--partitions", metavar="N,...", help="Only these partitions. Default: all.")
    ] = None,
    topic_partitions: TopicPartitionsOption = None,
    exclude_internal_topics: Annotated[
        bool, typer.Option("--exclude-internal-topics", help="Leave out topics of Kafka itself, such as __consumer_offsets.")
    ] = False,
    time: TimeOption = "latest",
    isolation: Annotated[
        Isolation, typer.Option(
            "--isolation",
            help="read_committed: latest is the last stable offset, at which the oldest open transaction begins.")
    ] = Isolation.READ_UNCOMMITTED,
    kafka_dir: KafkaDirOption = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """For each partition, print the offset for a time, as topic:partition:offset.

    If the state of a topic cannot be read, the command prints the topic's name to standard error, and ends with exit
    status 4. The exit status is also 4 if an index or a checkpoint of a Kafka directory proves that records were lost; the
    error names their offsets.
    """
    wanted = _parse_time(time)
    if partition is not None and partitions is not None:
        raise UsageError("--partitions", "--partition is given, too", "Give only one of the two.")
    numbers = str(partition) if partition is not None else partitions
    chosen = partition_filter(topic, numbers, topic_partitions, without_internal=exclude_internal_topics)
    if kafka_dir is not None:
        only = topic if topic is not None and is_plain(topic) else None
        readers: Mapping[tuple[str, int], LogReader | PartitionReader]
        readers, is_partial = open_readers(root, conf, kafka_dir, only, partition)
    else:
        readers, is_partial = _readers(open_topics(root, conf), chosen, topic, partition)
    for name, number in chosen.chosen(readers):
        found = None if wanted in _OF_TIERED_STORAGE else readers[name, number].offset_at(wanted, isolation)
        if found is not None:
            write_line(f"{name}:{number}:{found[0]}")
    if is_partial:
        raise typer.Exit(ExitStatus.PARTIAL)


def _readers(
    topics: Topics, chosen: PartitionFilter, topic: str | None, partition: int | None
) -> tuple[Mapping[tuple[str, int], PartitionReader], bool]:
    """A reader of each partition of the wanted topics, and whether a wanted topic cannot be read. Prints the name of each
    unreadable topic to standard error. If a topic has exactly the name in --topic, only this topic is wanted.

    Raises:
        LogError: no topic can be read, or the option --topic is the name of a topic that does not exist.
    """
    plain = topic if topic is not None and is_plain(topic) else None
    if plain is not None and is_topic_name(plain) and topics.find(plain) is not None:
        return topic_readers(topics, plain, partition), False
    readers: dict[tuple[str, int], PartitionReader] = {}
    errors = []
    for name in topics.names(with_deleted=True):
        try:
            if chosen.is_topic_wanted(name) and topics.find(name) is not None:
                readers |= topic_readers(topics, name, None)
        except LogError as error:
            errors.append(error)
    if not readers and errors:
        raise errors[0]
    for each in errors:
        write_error(each)
    if not readers and plain is not None:
        topics.state(plain)  # raises the error that other commands raise
    return readers, bool(errors)


def _parse_time(text: str) -> int:
    try:
        time = _WORDS[text] if text in _WORDS else int(text)
    except ValueError:
        time = min(_WORDS.values()) - 1
    if not min(_WORDS.values()) <= time <= LONG_MAX:
        raise UsageError(
            "--time", f"found {text!r}",
            "Use -1 or latest, -2 or earliest, -3 or max-timestamp, or milliseconds since 1970.",
        )  # fmt: skip
    return _EARLIEST if time == _EARLIEST_LOCAL else time
