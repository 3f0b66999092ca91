"""`lakelog log-dirs`: prints the sizes of the partitions of a root, or of a Kafka log directory, as kafka-log-dirs does.

A size is the number of bytes in all .log files. For a root, only committed bytes count. A root is shown as broker 0
with one directory. The partitions are in the same order as in Kafka's tool: the order of a Java HashMap. If a broker was
moving a partition to a Kafka directory, the partition is shown as a future one. Its lag is -1, as in Kafka's tool if the
current partition cannot be read: this partition is in another directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from lakelog.cli.options import ConfOption, KafkaDirOption, RootOption, open_topics, refuse_options_of_roots
from lakelog.cli.output import write, write_error, write_line
from storage_engine.errors import ExitStatus, UsageError

_BROKER_OF_A_ROOT = 0
_METADATA = "__cluster_metadata"
_UNKNOWN_LAG = -1


class _Replica(NamedTuple):
    """A partition in the directory.

    size: in bytes.
    is_future: whether a broker is moving the partition to the directory.
    """

    size: int
    is_future: bool = False


def log_dirs(
    describe: Annotated[bool, typer.Option("--describe", help="This option is required, as in Kafka's tool.")] = False,
    topic_list: Annotated[
        str, typer.Option("--topic-list", metavar="TOPIC,...", help="Only these topics. Default: all.")
    ] = "",
    broker_list: Annotated[
        str, typer.Option("--broker-list", metavar="ID,...", help="The id of the broker. Default: the only broker.")
    ] = "",
    kafka_dir: KafkaDirOption = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """Print the size of each partition as JSON, as kafka-log-dirs does."""
    if not describe:
        raise UsageError("lakelog log-dirs", "--describe is not given", "Give --describe: there is no other action.")
    wanted = {name for name in topic_list.split(",") if name}
    is_partial = False
    if kafka_dir is not None:
        refuse_options_of_roots(root, conf=conf)
        broker, place, replicas = _of_directory(kafka_dir)
    else:
        topics = open_topics(root, conf)
        states, unreadable = topics.states()
        for error in unreadable.values():
            write_error(error)
        is_partial = bool(unreadable)
        broker, place = _BROKER_OF_A_ROOT, topics.storage.uri
        replicas = {
            (state.topic, number): _Replica(sum(segment.size for segment in part.segments))
            for state in states
            for number, part in enumerate(state.partitions)
        }
    _check_brokers(broker_list, broker)
    found = {name: replica for name, replica in replicas.items() if not wanted or name[0] in wanted}
    write_line("Querying brokers for log directories information")
    write_line(f"Received log directory information from brokers {broker}")
    text = json.dumps(_document(broker, place, found), separators=(",", ":"), ensure_ascii=False)
    write(f"{text}\n".encode(errors="replace"))
    if is_partial:
        raise typer.Exit(ExitStatus.PARTIAL)


def _of_directory(path: Path) -> tuple[int, str, dict[tuple[str, int], _Replica]]:
    """The id of the broker, the directory, and its partitions."""
    from storage_engine.errors import NotFoundError
    from storage_engine.kafka_dir.log_directory import LogDirectory, future_partition_of, partition_of
    from storage_engine.log.checkpoint import META_PROPERTIES, decode_meta_properties
    from storage_engine.log.filenames import LOG

    directory = LogDirectory(path)
    found = None
    with suppress(NotFoundError):
        data = directory.storage.read(META_PROPERTIES)
        found = decode_meta_properties(data, f"{directory.path}/{META_PROPERTIES}").node_id
    broker = _BROKER_OF_A_ROOT if found is None else found
    replicas: dict[tuple[str, int], _Replica] = {}
    for folder in sorted(each.name for each in directory.storage.entries("") if each.is_folder):
        current, future = partition_of(folder), future_partition_of(folder)
        name = current or future
        if name is not None and name.topic != _METADATA:
            size = sum(entry.size for entry in directory.storage.entries(folder) if entry.name.endswith(LOG))
            replicas.setdefault(name, _Replica(size, is_future=current is None))
    return broker, str(directory.path), replicas


def _check_brokers(text: str, broker: int) -> None:
    asked = [each for each in text.split(",") if each]
    others = [each for each in asked if each != str(broker)]
    if others:
        raise UsageError(
            "--broker-list", f"the brokers {','.join(others)} do not exist", f"The only broker here is {broker}."
        )


def _document(broker: int, place: str, replicas: Mapping[tuple[str, int], _Replica]) -> dict[str, Any]:
    """What kafka-log-dirs prints, with the fields in the order of Kafka's tool."""
    from lakelog.dump.java_text import java_partition_order

    partitions = []
    for topic, number in java_partition_order(replicas):
        size, is_future = replicas[topic, number]
        lag = _UNKNOWN_LAG if is_future else 0
        partitions.append({"partition": f"{topic}-{number}", "size": size, "offsetLag": lag, "isFuture": is_future})
    directory = {"partitions": partitions, "error": None, "logDir": place}
    return {"brokers": [{"broker": broker, "logDirs": [directory]}], "version": 1}
