"""What every command takes: where the topics lie, and which broker keys hold.

--root beats LAKELOG_ROOT beats `root` in the file that --conf names. Of that file only `root` and `broker` are read, so
the settings of a job serve here as they are. The broker's keys of the file act over those that the root keeps, and these
over Kafka's defaults. What only reads takes a plain Kafka log directory, too, by --kafka-dir.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from storage_engine.cli.output import write_error
from storage_engine.config import ConfigKey, shown, topic_key
from storage_engine.errors import ConfigError, CorruptionError, LogError, TopicError, UsageError

if TYPE_CHECKING:
    from storage_engine.log.log_reader import LogReader
    from storage_engine.storage import Storage
    from storage_engine.topic.broker_settings import BrokerSettings
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
DeleteConfigOption = Annotated[
    list[str] | None,
    typer.Option("--delete-config", metavar="KEY", help="Go back to the default; may be given several times."),
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


def open_topics(
    root: str | None, conf: Path | None, *, creates: bool = False, makes_topics: bool = False, examines: bool = False
) -> Topics:
    """The topics under the root that the options name, with the broker's settings that hold there.

    Args:
        creates: what is named may be no root yet.
        makes_topics: the command may make topics: a root that keeps no settings of the broker takes the file's over.
        examines: the command tells itself what is damaged; Kafka's defaults serve where the root's settings are.

    Raises:
        UsageError: no root is named, or none that can be; or the file is wrong.
        NoRootError: what is named is none.
        CorruptionError: the broker's settings that the root keeps are damaged.
    """
    from storage_engine.clock import SystemClock
    from storage_engine.config import BrokerConfig
    from storage_engine.record.batch_limit import choose_most_batch_bytes
    from storage_engine.topic.topics import Topics

    is_damaged = False
    try:
        storage, settings = open_root(root, conf, creates=creates, makes_topics=makes_topics)
    except CorruptionError:
        if not examines:
            raise
        storage, settings = open_root(root, conf, creates=creates, kept=False)
        is_damaged = True
    try:
        broker = BrokerConfig.from_mapping(settings.in_force)
    except ConfigError as error:
        raise UsageError(error.place, error.problem, error.remedy) from None
    choose_most_batch_bytes(broker.batch_max_uncompressed_bytes)
    for difference in () if is_damaged else settings.differences():
        write_error(difference)
    return Topics(storage, broker, SystemClock(), settings.to_keep)


def open_root(
    root: str | None, conf: Path | None, *, creates: bool = False, makes_topics: bool = False, kept: bool = True
) -> tuple[Storage, BrokerSettings]:
    """The root that the options name, and where the broker's settings of this run come from. Otherwise as open_topics.

    Args:
        kept: read what the root keeps of them, too.
    """
    from storage_engine.config import BROKER_KEYS, as_text
    from storage_engine.record.batch_limit import KEY, VARIABLE
    from storage_engine.storage.opening import open_storage
    from storage_engine.topic.broker_settings import BrokerSettings, read_broker_settings
    from storage_engine.topic.topics import check_root

    section: dict[str, str] = {}
    places: dict[str, str] = {}
    told: dict[str, str] = {}
    try:
        if conf is not None:
            from storage_engine.settings_document import read_broker, read_broker_section, read_document

            document = read_document(conf)
            read_broker(document)
            section = read_broker_section(document)
            places = {key: document.place(("broker", key)) for key in section}
            named = document.values.get("root")
            if named is not None and not isinstance(named, str):
                raise ConfigError(document.place(("root",)), f"expected a path; found {shown(named)}")
            root = root or named
        if value := os.environ.get(VARIABLE):  # the one key that processes without settings take from there, too
            places[KEY] = f"environment variable {VARIABLE}"
            told[KEY] = as_text(BROKER_KEYS[KEY].parse(value, places[KEY]))
        if not root:
            raise ConfigError(
                "--root", "no root is given, which says where the topics lie", "Give --root or LAKELOG_ROOT."
            )
        storage = open_storage(root)
    except ConfigError as error:
        raise UsageError(error.place, error.problem, error.remedy) from None
    if not creates:
        check_root(storage)
    settings = BrokerSettings(
        kept=read_broker_settings(storage) if kept else None,
        section=section,
        told=section | told,
        places=places,
        makes_topics=makes_topics,
    )
    return storage, settings


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


def deleted_keys(
    arguments: Sequence[str], declaration: Callable[[str, object, str], ConfigKey] = topic_key
) -> list[str]:
    """Kafka's names of the keys of --delete-config.

    Args:
        declaration: gives the declaration of a topic's key, or of a broker's.
    """
    try:
        return [declaration(argument, None, f"--delete-config {argument}").key for argument in arguments]
    except ConfigError as error:
        raise UsageError(error.place, error.problem, error.remedy) from None


def given_overrides(
    arguments: Sequence[str],
    declaration: Callable[[str, object, str], ConfigKey] = topic_key,
    example: str = "retention.ms=3600000",
) -> dict[str, str]:
    """The values of --config by Kafka's name of the key, checked one by one.

    Args:
        declaration: gives the declaration of a topic's key, or of a broker's.
    """
    overrides: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError("--config", f"expected KEY=VALUE; found {argument!r}", f"For example {example}.")
        place = f"--config {key}"
        try:
            declared = declaration(key, value, place)
            declared.parse(value, place)
        except ConfigError as error:
            raise UsageError(error.place, error.problem, error.remedy) from None
        if declared.key in overrides:
            raise UsageError(place, f"{declared.key} is given twice", "Keep one of the two.")
        overrides[declared.key] = value
    return overrides
