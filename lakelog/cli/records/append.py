"""`lakelog append`: appends JSON lines from standard input to a topic, as one commit. Either all lines are appended or
none.

With --transactional each line names its topic, and read_committed readers see all the records at the same time.

Lines are read, checked, encoded and staged some megabytes at a time, so memory does not limit the number of lines.
Staged records are invisible before the commit: after a bad line, or a kill at any moment, the topic is unchanged.
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

from lakelog.cli.options import ConfOption, RootOption, open_topics, settle_view
from lakelog.cli.output import write_line, write_missing_markers
from lakelog.terminal.progress_display import display_on_stderr
from storage_engine.errors import InvalidRecordError, UsageError

if TYPE_CHECKING:
    from storage_engine.topic.topics import Topics

_CHUNK_BYTES = 8 * 1024**2
"""How many bytes of the input are read at a time. The last line of each piece is read to its end."""


def append(
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", help="Name of the topic. Not allowed together with --transactional."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            metavar="N",
            min=0,
            help="All records go to this partition. Default: the key determines the partition.",
        ),
    ] = None,
    transactional: Annotated[
        bool,
        typer.Option(
            "--transactional",
            help="Append to several topics in one transaction; each line names its topic. The transaction may be"
            " aborted after 15 minutes.",
        ),
    ] = False,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Append JSON lines from standard input as one commit.

    A line is a JSON object. The object must have the fields key and value (base64 or null). The object may have the
    fields headers (a list of [name, base64 or null]) and timestamp (milliseconds; default: now). You can append the
    lines that `lakelog read` printed: the fields topic, partition, offset, timestampType and leaderEpoch are ignored.
    --partition gives the partition of all records. Without --partition, the key of a record determines its partition,
    as in Kafka. Records without a key all go to one partition.
    """
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
    from lakelog.cli.records.json_lines import longest_line, parse_lines, place_of
    from storage_engine.topic.append.appending import Append

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
        offsets = batch.offsets(committed)
    settle_view(topics, topic)
    for number, given in offsets.items():
        write_line(f"partition {number}: {len(given)} records, offsets {given.start} to {given.stop - 1}")
    write_line(f"appended {committed.records} records to topic {topic}")


def _append_transaction(topics: Topics) -> None:
    import pyarrow as pa

    from lakelog.cli.records.json_lines import longest_line, parse_lines, place_of
    from storage_engine.topic.append.transaction_writer import TransactionWriter

    configs = [topics.config(state) for state in topics.states()[0]]
    longest = max(map(longest_line, configs or [topics.broker.topic_defaults]))
    first_number = 1
    counts: Counter[str] = Counter()
    try:
        with display_on_stderr().work("append in a transaction") as progress, TransactionWriter(topics) as transaction:
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
            write_missing_markers(transaction.commit())
    finally:  # the records and markers of an aborted transaction are in the log, too
        settle_view(topics, *counts)
    for topic in counts:
        write_line(f"appended {counts[topic]} records to topic {topic}")


def _chunks(longest: int) -> Iterator[list[bytes]]:
    """The lines of standard input, some megabytes at a time.

    Raises:
        InvalidRecordError: a line has more than `longest` bytes.
        OSError: there is no standard input.
    """
    from lakelog.cli.records.json_lines import place_of

    if sys.__stdin__ is None:  # the process was started with standard input closed
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    lines: list[bytes] = []
    size = 0
    for number in itertools.count(1):
        line = sys.stdin.buffer.readline(longest + 1)
        if len(line) > longest:
            raise InvalidRecordError(
                place_of(number), f"is longer than {longest} bytes, the longest line for a record of this topic",
                "Nothing was appended. Put each record on its own line, or raise max.message.bytes.",
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
    """How many bytes of standard input are not read yet, if standard input is a regular file; else None."""
    if sys.__stdin__ is None:
        return None
    try:
        status = os.fstat(sys.stdin.fileno())
    except OSError:  # standard input has no file descriptor
        return None
    return max(0, status.st_size - sys.stdin.buffer.tell()) if stat.S_ISREG(status.st_mode) else None
