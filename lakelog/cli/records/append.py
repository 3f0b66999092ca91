"""`lakelog append`: appends JSON lines from standard input to a topic, as one commit. Either all lines are appended or
none.

With --transactional each line names its topic, and read_committed readers see all the records at the same time.

Lines are read, checked, encoded and staged some megabytes at a time, so memory does not limit the number of lines.
Staged records are invisible before the commit: after a bad line, or a kill at any moment, the topic is unchanged.

With --kafka-dir, the lines are appended to a plain Kafka log directory (append_to_directory.py).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.options import (
    ConfigOption,
    ConfOption,
    KafkaDirOption,
    RootOption,
    given_overrides,
    open_topics,
    refuse_config_of_roots,
    refuse_options_of_roots,
    settle_view,
)
from lakelog.cli.output import write_line, write_missing_markers
from lakelog.terminal.progress_display import display_on_stderr
from storage_engine.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from storage_engine.topic.topics import Topics


_PartitionOption = Annotated[
    int | None,
    typer.Option(
        "--partition",
        metavar="N",
        min=0,
        help="All records go to this partition. Default: the key determines the partition.",
    ),
]
_TransactionalOption = Annotated[
    bool,
    typer.Option(
        "--transactional",
        help="Append to several topics in one transaction; each line names its topic. The transaction may be"
        " aborted after 15 minutes.",
    ),
]


def append(
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", help="Name of the topic. Not allowed together with --transactional."),
    ] = None,
    partition: _PartitionOption = None,
    transactional: _TransactionalOption = False,
    kafka_dir: KafkaDirOption = None,
    config: ConfigOption = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Append JSON lines from standard input as one commit.

    A line is a JSON object. The object must have the fields key and value (base64 or null). The object may have the
    fields headers (a list of [name, base64 or null]) and timestamp (milliseconds; default: now). You can append the
    lines that `lakelog read` printed: the fields topic, partition, offset, timestampType and leaderEpoch are ignored.
    --partition gives the partition of all records. Without --partition, the key of a record determines its partition,
    as in Kafka. Records without a key all go to one partition.

    With --kafka-dir, the records are appended to existing partitions of a plain Kafka log directory, in which no broker
    runs. All lines are read and checked before the first record is appended. The topic's settings are those in the folder
    __cluster_metadata-0 of the directory, and those of --config on top; else Kafka's defaults. After a crash, the
    partitions are recovered first. A partition that may have replicas on other nodes, and an internal topic, are refused.
    If records were lost by damage, the exit status is 4.
    """
    if kafka_dir is not None:
        refuse_options_of_roots(root, conf=conf, transactional=transactional)
        _append_to_directory(kafka_dir, topic, partition, config or [])
        return
    refuse_config_of_roots(config)
    if topic is None and not transactional:
        raise UsageError(
            "--topic", "no topic is given", "Give --topic, or give --transactional if each line names its topic."
        )
    if transactional and (topic is not None or partition is not None):
        given = "--topic" if topic is not None else "--partition"
        raise UsageError(given, "--transactional is given, too", "Give only one of the two: each line names its topic.")
    topics = open_topics(root, conf)
    if topic is None:
        _append_transaction(topics)
    else:
        _append_to(topics, topic, partition)


def _append_to(topics: Topics, topic: str, partition: int | None) -> None:
    state = topics.state(topic)
    from lakelog.cli.records.input_lines import input_bytes, line_chunks
    from lakelog.cli.records.json_lines import longest_line, parse_lines, place_of
    from storage_engine.topic.append.appending import Append

    config = topics.config(state)
    first_number = 1
    with (
        display_on_stderr().work(f"append to {topic}") as progress,
        Append(topics.storage, topics.chain(topic), config, topics.clock, partition, state=state) as batch,
    ):
        progress.expect(size=input_bytes())
        for lines in line_chunks(longest_line(config)):
            parsed = parse_lines(lines, first_number, topics.clock.now_ms())
            numbers = parsed.line_numbers
            batch.stage(parsed.records, lambda row, numbers=numbers: place_of(numbers[row]))  # type: ignore[misc]
            first_number += len(lines)
            progress.advance(parsed.records.num_rows, sum(map(len, lines)))
        committed = batch.commit()
        offsets = batch.offsets(committed)
    settle_view(topics, topic)
    for number, given in offsets.items():
        write_line(f"partition {number}: {len(given)} records, offsets {given.start} to {given.stop - 1}")
    write_line(f"appended {committed.records} records to topic {topic}")


def _append_to_directory(path: Path, topic: str | None, partition: int | None, config: list[str]) -> None:
    if topic is None:
        raise UsageError("--topic", "no topic is given", "Give --topic: with --kafka-dir, all lines have one topic.")
    from lakelog.cli.records.append_to_directory import append_to_directory

    if append_to_directory(path, topic, partition, given_overrides(config)):
        raise typer.Exit(ExitStatus.PARTIAL)


def _append_transaction(topics: Topics) -> None:
    import pyarrow as pa

    from lakelog.cli.records.input_lines import input_bytes, line_chunks
    from lakelog.cli.records.json_lines import longest_line, parse_lines, place_of
    from storage_engine.topic.append.transaction_writer import TransactionWriter

    configs = [topics.config(state) for state in topics.states()[0]]
    longest = max(map(longest_line, configs or [topics.broker.topic_defaults]))
    first_number = 1
    counts: Counter[str] = Counter()
    try:
        with display_on_stderr().work("append in a transaction") as progress, TransactionWriter(topics) as transaction:
            progress.expect(size=input_bytes())
            for lines in line_chunks(longest):
                parsed = parse_lines(lines, first_number, topics.clock.now_ms(), each_names_topic=True)
                for topic in dict.fromkeys(parsed.topics):
                    rows = [row for row, named in enumerate(parsed.topics) if named == topic]
                    numbers = [parsed.line_numbers[row] for row in rows]
                    records = parsed.records.take(pa.array(rows))
                    counts[topic] += len(rows)
                    transaction.append(topic, records, name_row=lambda row, numbers=numbers: place_of(numbers[row]))  # type: ignore[misc]
                first_number += len(lines)
                progress.advance(parsed.records.num_rows, sum(map(len, lines)))
            write_missing_markers(transaction.commit())
    finally:  # the records and markers of an aborted transaction are in the log, too
        settle_view(topics, *counts)
    for topic in counts:
        write_line(f"appended {counts[topic]} records to topic {topic}")
