"""The options that several commands have: the place of the topics, and the broker settings that apply.

--root overrides LAKELOG_ROOT, and LAKELOG_ROOT overrides `root` in the file of --conf. Only `root` and `broker` are
read from that file, so a job's settings file can be used unchanged. The broker's keys in the file override the root's
stored settings, and the stored settings override Kafka's defaults. If a command only reads, it also accepts a plain
Kafka log directory with --kafka-dir.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.output import write_error
from storage_engine.config import ConfigKey, topic_key
from storage_engine.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from storage_engine.log.log_reader import LogReader
    from storage_engine.storage import Storage
    from storage_engine.topic.broker_settings import BrokerSettings
    from storage_engine.topic.chain.topic_state import TopicState
    from storage_engine.topic.readers.reader import PartitionReader
    from storage_engine.topic.topics import Topics

RootOption = Annotated[
    str | None,
    typer.Option(
        "--root",
        envvar="LAKELOG_ROOT",
        metavar="URI",
        help="The root: the directory that contains all topics. Default: the key root in the file of --conf.",
    ),
]
ConfOption = Annotated[
    Path | None,
    typer.Option(
        "--conf",
        metavar="FILE",
        help="A YAML settings file. The command reads only the key root and the section broker.",
    ),
]
LONG_MAX = 2**63 - 1
"""The largest possible offset, and the largest possible time in milliseconds."""
TopicOption = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Name of the topic.")]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be given several times. Default: all."),
]
NowOption = Annotated[
    int | None,
    typer.Option(
        "--now",
        metavar="MS",
        min=0,
        max=LONG_MAX,
        help="Decide as if this were the current time, in milliseconds since 1970. Default: now.",
    ),
]
AnyTopicOption = Annotated[
    str | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="Name of the topic. With --kafka-dir, the default is all topics. Without --kafka-dir, the name is"
        " required.",
    ),
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config", metavar="KEY=VALUE", help="A topic setting, with Kafka's key; may be given several times."
    ),
]
DeleteConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--delete-config", metavar="KEY", help="Set this key back to its default; may be given several times."
    ),
]
KafkaDirOption = Annotated[
    Path | None,
    typer.Option(
        "--kafka-dir", metavar="DIR",
        help="A plain Kafka log directory, instead of --root. The directory contains the topic-partition folders.",
    ),
]  # fmt: skip
PartitionOption = Annotated[
    int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition. Default: all.")
]


def readable_states(topics: Topics, named: list[str] | None) -> tuple[list[TopicState], bool]:
    """The states of the topics of TopicsOption, and whether a state could not be read. Standard error names each
    unreadable state.

    Raises:
        TopicError: a named topic does not exist, or the name is not a valid topic name.
    """
    from lakelog.inspection import states

    found, errors = states.readable_states(topics, named or None)
    for error in errors:
        write_error(error)
    return found, bool(errors)


def open_topics(
    root: str | None, conf: Path | None, *, creates: bool = False, makes_topics: bool = False, examines: bool = False
) -> Topics:
    """The topics under the root that the options name. The other arguments are those of opening.open_topics.

    Raises:
        UsageError: no root is named, the root cannot be used, or the settings file is wrong.
    """
    from lakelog import opening

    return opening.open_topics(root, conf, write_error, creates=creates, makes_topics=makes_topics, examines=examines)


def open_root(root: str | None, conf: Path | None, *, kept: bool = True) -> tuple[Storage, BrokerSettings]:
    """The root that the options name, and the sources of this run's broker settings. Raises the errors of open_topics.

    Args:
        kept: also read the root's stored settings.
    """
    from lakelog import opening

    return opening.open_root(root, conf, kept=kept)


def open_readers(
    root: str | None, conf: Path | None, kafka_dir: Path | None, topic: str | None, partition: int | None
) -> tuple[Mapping[tuple[str, int], LogReader | PartitionReader], bool]:
    """A reader of each partition that the options name, by topic and partition number, in that order; and whether one of
    these partitions has lost records. Each loss is printed to standard error.

    Raises:
        UsageError: the options contradict one another, or no topic is named.
        UnknownTopicError: no such topic or partition.
    """
    if kafka_dir is not None:
        if root is not None and root != os.environ.get("LAKELOG_ROOT"):
            raise UsageError("--kafka-dir", "--root is given, too", "Give only one of the two.")
        return _readers_of_directory(kafka_dir, topic, partition)
    name = needed_topic(topic)
    return topic_readers(open_topics(root, conf), name, partition), False


def refuse_options_of_roots(root: str | None, **given: object) -> None:
    """Refuse the options that only a root has, in a command that was given --kafka-dir.

    Args:
        root: the value of --root. LAKELOG_ROOT is ignored.
        given: the values of the other options, by their names with underscores.

    Raises:
        UsageError: an option has a value.
    """
    values = {"root": root if root != os.environ.get("LAKELOG_ROOT") else None, **given}
    for name, value in values.items():
        if value is not None and value is not False:
            raise UsageError(
                f"--{name.replace('_', '-')}", "is given with --kafka-dir",
                "Remove one of the two: only a root has this option.",
            )  # fmt: skip


def refuse_config_of_roots(config: list[str] | None) -> None:
    """Refuse --config in a command that was not given --kafka-dir.

    Raises:
        UsageError: --config has a value.
    """
    if config:
        raise UsageError(
            "--config", "is given without --kafka-dir", "Use `lakelog topics alter` to change a topic's settings."
        )


def needed_topic(topic: str | None) -> str:
    """The topic of AnyTopicOption, for a command that reads one topic of a root.

    Raises:
        UsageError: no topic is named.
    """
    if topic is None:
        raise UsageError("--topic", "no topic is given", "Name a topic; `lakelog topics list` prints all names.")
    return topic


def topic_readers(topics: Topics, topic: str, partition: int | None) -> Mapping[tuple[str, int], PartitionReader]:
    """A reader of each partition of a topic, or a reader of one partition. All readers begin with the same state.

    Raises:
        UnknownTopicError: no such topic or partition.
    """
    count = len(topics.state(topic).partitions)
    from storage_engine.topic.chain.transaction_files import newest_decided
    from storage_engine.topic.readers.reader import PartitionReader

    chain = topics.chain(topic)
    chosen = _chosen(topic, range(count), partition)
    state = newest_decided(topics.storage, chain)
    return {(topic, number): PartitionReader(topics.storage, chain, number, state) for number in chosen}


def _readers_of_directory(
    path: Path, topic: str | None, partition: int | None
) -> tuple[Mapping[tuple[str, int], LogReader | PartitionReader], bool]:
    from storage_engine.kafka_dir.log_directory import LogDirectory
    from storage_engine.kafka_dir.recovery_report import lost_in

    directory = LogDirectory(path)
    names = directory.partitions if topic is None else directory.partitions_of(topic)
    if partition is not None:
        _chosen(topic or "of any name", [each.number for each in names], partition)
    readers, is_lossy = {}, False
    for name in names:
        if partition in (None, name.number):
            found = directory.inspect(name)
            if found.torn:
                write_error(
                    f"{path / name.folder}: the last {found.torn} bytes of the newest .log are not a complete batch"
                    " and are ignored"
                )
            for loss in lost_in(directory, [found]):
                write_error(loss)
                is_lossy = True
            readers[name.topic, name.number] = directory.reader(found)
    return readers, is_lossy


def _chosen(topic: str, numbers: Sequence[int], partition: int | None) -> Sequence[int]:
    from storage_engine.errors import UnknownTopicError

    if partition is None:
        return numbers
    if partition not in numbers:
        raise UnknownTopicError(
            f"topic {topic}", f"has partitions {min(numbers)} to {max(numbers)}, but --partition is {partition}"
        )
    return (partition,)


def settle_view(topics: Topics, *names: str) -> None:
    """Make log/ show what a command has committed to these topics."""
    from storage_engine.topic.kafka.view import settle_committed

    if names:
        settle_committed(topics, names, write_error)


def deleted_keys(
    arguments: Sequence[str], declaration: Callable[[str, object, str], ConfigKey] = topic_key
) -> list[str]:
    """Kafka's names of the keys of --delete-config.

    Args:
        declaration: returns the declaration of a topic's key, or of a broker's key.
    """
    try:
        return [declaration(argument, None, f"--delete-config {argument}").key for argument in arguments]
    except ConfigError as error:
        raise UsageError(error.place, error.problem, error.remedy) from None


def given_overrides(
    arguments: Sequence[str],
    declaration: Callable[[str, object, str], ConfigKey] = topic_key,
    example: str = "retention.ms=3600000",
    option: str = "--config",
) -> dict[str, str]:
    """The values of an option such as --config, by Kafka's name of the key. Each value is checked.

    Args:
        declaration: returns the declaration of a topic's key, or of a broker's key.
    """
    overrides: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError(option, f"expected KEY=VALUE; found {argument!r}", f"For example {example}.")
        place = f"{option} {key}"
        try:
            declared = declaration(key, value, place)
            declared.parse(value, place)
        except ConfigError as error:
            raise UsageError(error.place, error.problem, error.remedy) from None
        if declared.key in overrides:
            raise UsageError(place, f"{declared.key} is given twice", "Give the key only once.")
        overrides[declared.key] = value
    return overrides


_ADDRESS = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*):(?P<port>[0-9]{1,5})")
"""HOST:PORT, [IPV6]:PORT or :PORT."""


def listen_address(text: str, example: str, option: str = "--listen") -> tuple[str, int]:
    """The host and the port of HOST:PORT, [IPV6]:PORT or :PORT. Without a host, the address is that of all networks.

    Args:
        text: the value of the option.
        example: an address for the error message.
        option: the name of the option.

    Raises:
        UsageError: the text is not an address.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 0xFFFF:
        raise UsageError(option, f"expected HOST:PORT; found {text!r}", f"For example {example}.")
    host = found["host"].strip("[]")
    try:
        host.encode("idna")
    except UnicodeError:
        raise UsageError(option, f"expected HOST:PORT; {host!r} cannot be a host", f"For example {example}.") from None
    return host or "0.0.0.0", int(found["port"])
