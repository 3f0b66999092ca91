"""What every command takes: where the topics lie, and which broker keys hold.

--root beats LAKELOG_ROOT beats `root` in the file that --conf names. Of that file only `root` and `broker` are read, so
the settings of a job serve here as they are. Without --conf Kafka's own defaults hold. What only reads takes a plain Kafka
log directory, too, by --kafka-dir.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from storage_engine.cli.output import write_error
from storage_engine.errors import ConfigError, LogError, TopicError, UsageError

if TYPE_CHECKING:
    from storage_engine.log.log_reader import LogReader
    from storage_engine.topic.reader import PartitionReader
    from storage_engine.topic.state import TopicState
    from storage_engine.topic.topics import Topics

RootOption = Annotated[
    str | None,
    typer.Option("--root", envvar="LAKELOG_ROOT", metavar="URI", help="Where the topics lie. Else root of --conf."),
]
ConfOption = Annotated[
    Path | None,
    typer.Option("--conf", metavar="FILE", help="YAML settings, of which root and broker count here."),
]
LONG_MAX = 2**63 - 1
"""The largest offset, and the latest time in milliseconds."""
TopicOption = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Name of the topic.")]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be given several times. Default: all."),
]
NowOption = Annotated[
    int | None, typer.Option("--now", metavar="MS", min=0, max=LONG_MAX, help="What time it is, else the clock's.")
]
AnyTopicOption = Annotated[
    str | None,
    typer.Option(
        "--topic", metavar="TOPIC", help="Name of the topic. With --kafka-dir it may be left out: all topics."
    ),
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="KEY=VALUE", help="One of Kafka's keys for topics; may be given several times."),
]
KafkaDirOption = Annotated[
    Path | None,
    typer.Option(
        "--kafka-dir", metavar="DIR",
        help="Instead of --root: a plain Kafka log directory, the folder with the topic-partition folders, as it lies.",
    ),
]  # fmt: skip
PartitionOption = Annotated[int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.")]


def readable_states(topics: Topics, named: list[str] | None) -> tuple[list[TopicState], bool]:
    """The states of the topics of TopicsOption; and whether one cannot be read, which is told on standard error.

    Raises:
        TopicError: one that was named is not there, or has no topic's name.
    """
    if not named:
        states, unreadable = topics.states()
        for error in unreadable.values():
            write_error(error)
        return states, bool(unreadable)
    states, failed = [], False
    for name in dict.fromkeys(named):
        try:
            states.append(topics.state(name))
        except TopicError:
            raise
        except LogError as error:
            write_error(error)
            failed = True
    return states, failed


def open_topics(root: str | None, conf: Path | None, *, creates: bool = False) -> Topics:
    """The topics under the root that the options name.

    Args:
        creates: the command makes a root of what is none yet.

    Raises:
        UsageError: no root is named, or none that can be; or the file is wrong.
        NoRootError: what is named is none.
    """
    from storage_engine.clock import SystemClock
    from storage_engine.config import BrokerConfig
    from storage_engine.record.batch_limit import choose_most_batch_bytes
    from storage_engine.storage.opening import open_storage
    from storage_engine.topic.topics import Topics, check_root

    broker = BrokerConfig()
    if conf is not None:
        from storage_engine.config import shown
        from storage_engine.settings_document import read_broker, read_document

        try:
            document = read_document(conf)
            broker = read_broker(document)
        except ConfigError as error:
            raise UsageError(error.place, error.problem, error.remedy) from None
        named = document.values.get("root")
        if named is not None and not isinstance(named, str):
            raise UsageError(document.place(("root",)), f"expected a path; found {shown(named)}")
        root = root or named
    most = broker.batch_max_uncompressed_bytes
    choose_most_batch_bytes(most if most != BrokerConfig().batch_max_uncompressed_bytes else None)
    if not root:
        raise UsageError("--root", "no root is given, which says where the topics lie", "Give --root or LAKELOG_ROOT.")
    try:
        topics = Topics(open_storage(root), broker, SystemClock())
    except ConfigError as error:
        raise UsageError(error.place, error.problem, error.remedy) from None
    if not creates:
        check_root(topics.storage)
    return topics


def open_readers(
    root: str | None, conf: Path | None, kafka_dir: Path | None, topic: str | None, partition: int | None
) -> Mapping[tuple[str, int], LogReader | PartitionReader]:
    """A reader of each partition that the options name, by topic and number, in order.

    Raises:
        UsageError: the options contradict one another, or no topic is named.
        UnknownTopicError: no such topic or partition.
    """
    if kafka_dir is not None:
        if root is not None and root != os.environ.get("LAKELOG_ROOT"):
            raise UsageError("--kafka-dir", "--root is given, too", "Keep one of the two.")
        return _readers_of_directory(kafka_dir, topic, partition)
    if topic is None:
        raise UsageError("--topic", "no topic is given", "Name one; `lakelog topics list` shows them.")
    topics = open_topics(root, conf)
    count = len(topics.state(topic).partitions)
    from storage_engine.topic.decisions import newest_decided
    from storage_engine.topic.reader import PartitionReader

    chain = topics.chain(topic)
    chosen = _chosen(topic, range(count), partition)
    state = newest_decided(topics.storage, chain)
    return {(topic, number): PartitionReader(topics.storage, chain, number, state) for number in chosen}


def _readers_of_directory(
    path: Path, topic: str | None, partition: int | None
) -> Mapping[tuple[str, int], LogReader | PartitionReader]:
    from storage_engine.log.log_directory import LogDirectory

    directory = LogDirectory(path)
    names = directory.partitions if topic is None else directory.partitions_of(topic)
    if partition is not None:
        _chosen(topic or "of any name", [each.number for each in names], partition)
    readers = {}
    for name in names:
        if partition in (None, name.number):
            found = directory.inspect(name)
            if found.torn:
                write_error(
                    f"{path / name.folder}: the last {found.torn} bytes of the newest .log are no whole batch and are left"
                    " out"
                )
            readers[name.topic, name.number] = directory.reader(found)
    return readers


def _chosen(topic: str, numbers: Sequence[int], partition: int | None) -> Sequence[int]:
    from storage_engine.errors import UnknownTopicError

    if partition is None:
        return numbers
    if partition not in numbers:
        raise UnknownTopicError(
            f"topic {topic}", f"has partitions {min(numbers)} to {max(numbers)}, found --partition {partition}"
        )
    return (partition,)


def settle_view(topics: Topics, *names: str) -> None:
    """Bring log/ up to what a command has committed to these topics.

    The commit stands, whatever becomes of the view: a failure is a warning, and the next settling makes up for it.
    """
    from storage_engine.topic.view import settle

    if not names:
        return
    try:
        settle(topics, names)
    except LogError as error:
        write_error(f"committed, but log/ does not show it yet: {error}")


def given_overrides(arguments: Sequence[str]) -> dict[str, str]:
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
