"""`lakelog append`: JSON lines from standard input into a topic, all of them as one commit or none.

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
from collections.abc import Iterator

from storage_engine.cli.options import ConfOption, PartitionOption, RootOption, TopicOption, open_topics, settle_view
from storage_engine.cli.output import write_line
from storage_engine.errors import InvalidRecordError
from storage_engine.progress_display import display_on_stderr

_CHUNK_BYTES = 8 * 1024**2
"""Of input at a time, and the rest of the last line."""


def append(
    topic: TopicOption, partition: PartitionOption = None, root: RootOption = None, conf: ConfOption = None
) -> None:
    """Append JSON lines from standard input as one commit.

    A line is an object with key and value (base64 or null) and, where wanted, headers (a list of [name, base64 or
    null]) and timestamp (milliseconds; default: now). Lines that `lakelog read` printed can be appended; their topic,
    partition, offset, timestampType and leaderEpoch count for nothing. The key decides the partition, as in Kafka,
    unless --partition is given; records without a key all go to one.
    """
    topics = open_topics(root, conf)
    state = topics.state(topic)
    from storage_engine.cli.record_lines import longest_line, parse_lines, place_of
    from storage_engine.topic.appending import Append

    config = topics.config(state)
    first_number = 1
    with (
        display_on_stderr().work(f"append to {topic}") as progress,
        Append(topics.storage, topics.chain(topic), config, topics.clock, partition) as batch,
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
