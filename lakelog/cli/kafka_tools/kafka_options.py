"""Lists the options of Kafka's tools (Kafka 4.3.1), and refuses those that a command of lakelog does not have.

The tables in docs/CLI.md are made from the lists. `accepting` returns the class of a command that has a list. If a user
types an option of Kafka's tool that the command does not have, the command ends with the reason from the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from typer.core import TyperCommand

from lakelog.cli.kafka_tools.tool_options import (
    CONFIGS,
    CONSUMER_PERF_TEST,
    DELETE_RECORDS,
    DUMP_LOG,
    GET_OFFSETS,
    LOG_DIRS,
    PRODUCER_PERF_TEST,
)
from storage_engine.errors import UsageError


@dataclass(frozen=True)
class KafkaOption:
    """An option of one of Kafka's tools.

    name: as it is typed.
    ours: what to type instead of it; empty if the command refuses the option.
    note: what differs; for a refused option the reason, and what to do.
    """

    name: str
    ours: str
    note: str


@dataclass(frozen=True)
class KafkaTool:
    """One of Kafka's tools.

    script: the name of Kafka's script, without .sh.
    command: the words of our command, after `lakelog`.
    note: what differs with any options.
    """

    script: str
    command: str
    note: str
    options: tuple[KafkaOption, ...]

    @property
    def refused(self) -> dict[str, str]:
        """The reasons for refused options, by option."""
        return {option.name: option.note for option in self.options if not option.ours}


def _tool(script: str, command: str, note: str, rows: Sequence[tuple[str, str, str]]) -> KafkaTool:
    return KafkaTool(script, command, note, tuple(KafkaOption(*row) for row in rows))


TOOLS = (
    _tool(
        "kafka-dump-log", "dump",
        "If a file cannot be read completely, Kafka's tool stops. Lakelog prints the readable part and continues with the"
        " next file. Kafka's tool trims an index that a broker preallocated. Lakelog changes no file. Lakelog also prints"
        " checkpoints, and escapes characters that a terminal would interpret.",
        DUMP_LOG,
    ),
    _tool(
        "kafka-get-offsets", "offsets",
        "In a root, --time leaves out segments whose records were all deleted. --time -3 names the remaining record with"
        " the largest timestamp, and prints no line for a partition without records. A broker counts these segments, and"
        " can print the offset of a deleted record, until retention deletes the segments. A broker also ends the search for"
        " a time in a segment without timestamps that was changed after this time, and finds nothing there. In a root, the"
        " search goes on.",
        GET_OFFSETS,
    ),
    _tool(
        "kafka-configs", "configs",
        "Lakelog refuses keys that have no effect in Lakelog. --describe prints synonyms for the places where Lakelog"
        " stores settings.",
        CONFIGS,
    ),
    _tool(
        "kafka-delete-records", "delete-records",
        "If the offset of a partition is refused, the command still deletes the records of the other partitions, as"
        " Kafka's tool does. The exit status is then 4. Kafka's tool ends with 0.",
        DELETE_RECORDS,
    ),
    _tool(
        "kafka-log-dirs", "log-dirs",
        "A root is shown as broker 0 with one directory. With --kafka-dir, the id of the broker is the node.id in"
        " meta.properties. A partition that a broker was moving to the directory has the offsetLag -1, because the partition's"
        " current directory is not read.",
        LOG_DIRS,
    ),
    _tool(
        "kafka-producer-perf-test", "perf produce",
        "The latency of a record is the time until its append is committed, or is a part of the open transaction. An append has"
        " many records.",
        PRODUCER_PERF_TEST,
    ),
    _tool(
        "kafka-consumer-perf-test", "perf consume",
        "The command reads without a group, one partition after another. The figure rebalance.time.ms is the time for"
        " reading the topic's state. The command ends at the end of the topic, and does not wait for more records.",
        CONSUMER_PERF_TEST,
    ),
)  # fmt: skip
"""All tools, in the order of the table."""


def accepting(command: str) -> type[TyperCommand]:
    """The class of a command that refuses the options in the list of this command.

    Args:
        command: the words after `lakelog`.
    """
    (tool,) = (each for each in TOOLS if each.command == command)
    refused = tool.refused

    class KafkaToolCommand(TyperCommand):
        def parse_args(self, ctx: Any, args: Any) -> Any:
            for word in args:
                name = word.partition("=")[0]
                if name in refused:
                    raise UsageError(f"{name} of {tool.script}", "is not supported", refused[name])
            return super().parse_args(ctx, args)

    return KafkaToolCommand
