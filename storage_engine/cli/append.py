"""`lakelog append`: JSON lines from standard input into a topic, all of them as one commit or none.

With --transactional each line names its topic, and all of them become visible at once to readers of committed records.

Lines are read, checked, encoded and staged some megabytes at a time, so that the number of lines is limited by storage
and not by memory. What is staged counts for nothing before the commit: a bad line, or a kill at any moment, leaves the
topic as it was.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from storage_engine.cli.options import ConfOption, PartitionOption, RootOption, open_topics, settle_view
from storage_engine.cli.output import write_error, write_line
from storage_engine.errors import InvalidRecordError, UsageError
from storage_engine.progress_display import display_on_stderr

if TYPE_CHECKING:
    from storage_engine.topic.topics import Topics

_CHUNK_BYTES = 8 * 1024**2
"""Of input at a time, and the rest of the last line."""


def append(
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Name of the topic; else --transactional.")
    ] = None,
    partition: PartitionOption = None,
    transactional: Annotated[
        bool,
        typer.Option(
            "--transactional",
            help="Append to the topics that the lines name, in one transaction. After 15 minutes others may abort it.",
        ),
    ] = False,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Append JSON lines from standard input as one commit.

    A line is an object with key and value (base64 or null) and, where wanted, headers (a list of [name, base64 or
    null]) and timestamp (milliseconds; default: now). Lines that `lakelog read` printed can be appended; their topic,
    partition, offset, timestampType and leaderEpoch count for nothing. The key decides the partition, as in Kafka,
    unless --partition is given; records without a key all go to one.
    """
    if topic is None and not transactional:
        raise UsageError("--topic", "no topic is given", "Give --topic, or --transactional where each line names one.")
    if transactional and (topic is not None or partition is not None):
        given = "--topic" if topic is not None else "--partition"
        raise UsageError(given, "--transactional is given, too", "Keep one of the two: each line names its topic.")
    topics = open_topics(root, conf)
    if topic is None:
        _append_transaction(topics)
    else:
        _append_to(topics, topic, partition)


def _append_to(topics: Topics, topic: str, partition: int | None) -> None:
    state = topics.state(topic)
    from storage_engine.cli.record_lines import longest_line, parse_lines, place_of
    from storage_engine.topic.appending import Append

    config = topics.config(state)
    first_number = 1
    with (
        display_on_stderr().work(f"append to {topic}") as progress,
        Append(topics.storage, topics.chain(topic), config, topics.clock, partition, state=state) as batch,
    ):
        progress.expect(size=_input_bytes())
        for lines in _chunks(longest_line(config)):
            parsed = parse_lines(lines, first_number, topics.clock.now_ms())
            numbers = parsed.line_numbers
            batch.stage(parsed.records, lambda row, numbers=numbers: place_of(numbers[row]))  # type: ignore[misc]
            first_number += len(lines)
            progress.advance(parsed.records.num_rows, sum(map(len, lines)))
        committed = batch.commit()
        counts = {number: sum(run.record_count for run in runs) for number, runs in sorted(batch.runs.items())}
    settle_view(topics, topic)
    for number, count in counts.items():
        end = committed.state.partitions[number].high_watermark
        write_line(f"partition {number}: {count} records, offsets {end - count} to {end - 1}")
    write_line(f"appended {committed.records} records to topic {topic}")


def _append_transaction(topics: Topics) -> None:
    import pyarrow as pa

    from storage_engine.cli.record_lines import longest_line, parse_lines, place_of
    from storage_engine.topic.transactions import Transaction

    configs = [topics.config(state) for state in topics.states()[0]]
    longest = max(map(longest_line, configs or [topics.broker.topic_defaults]))
    first_number = 1
    counts: Counter[str] = Counter()
    try:
        with display_on_stderr().work("append in a transaction") as progress, Transaction(topics) as transaction:
            progress.expect(size=_input_bytes())
            for lines in _chunks(longest):
                parsed = parse_lines(lines, first_number, topics.clock.now_ms(), each_names_topic=True)
                for topic in dict.fromkeys(parsed.topics):
                    rows = [row for row, named in enumerate(parsed.topics) if named == topic]
                    numbers = [parsed.line_numbers[row] for row in rows]
                    records = parsed.records.take(pa.array(rows))
                    counts[topic] += len(rows)
                    transaction.append(topic, records, name_row=lambda row, numbers=numbers: place_of(numbers[row]))  # type: ignore[misc]
                first_number += len(lines)
                progress.advance(parsed.records.num_rows, sum(map(len, lines)))
            for problem in transaction.commit():
                write_error(f"committed; `lakelog transactions finish` has to make up for: {problem}")
    finally:  # what is rolled back is in the log, too, with its markers
        settle_view(topics, *counts)
    for topic in counts:
        write_line(f"appended {counts[topic]} records to topic {topic}")


def _chunks(longest: int) -> Iterator[list[bytes]]:
    """The lines of standard input, some megabytes at a time.

    Raises:
        InvalidRecordError: a line has more than `longest` bytes.
        OSError: there is no standard input.
    """
    from storage_engine.cli.record_lines import place_of

    if sys.__stdin__ is None:  # closed by whoever started the process
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    lines: list[bytes] = []
    size = 0
    for number in itertools.count(1):
        line = sys.stdin.buffer.readline(longest + 1)
        if len(line) > longest:
            raise InvalidRecordError(
                place_of(number), f"is longer than {longest} bytes, as no record of this topic can be",
                "Nothing was appended. Give each record a line, or raise max.message.bytes.",
            )  # fmt: skip
        if line:
            lines.append(line)
            size += len(line)
        if lines and (not line or size >= _CHUNK_BYTES):
            yield lines
            lines, size = [], 0
        if not line:
            return


def _input_bytes() -> int | None:
    """What is left to read of a regular file; None where standard input does not tell."""
    if sys.__stdin__ is None:
        return None
    try:
        status = os.fstat(sys.stdin.fileno())
    except OSError:  # no file at all
        return None
    return max(0, status.st_size - sys.stdin.buffer.tell()) if stat.S_ISREG(status.st_mode) else None
