"""`lakelog read`: prints the records of a topic, one partition after another, and each partition in the order of its
offsets.

The command looks up the start offset of every partition before it prints the first record. If a start offset is outside
its partition, the command ends with an error and prints nothing. Records that are committed while the command runs are
not printed. Standard error shows progress, unless the records themselves are printed to a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.options import (
    LONG_MAX,
    AnyTopicOption,
    ConfOption,
    KafkaDirOption,
    PartitionOption,
    RootOption,
    needed_topic,
    open_readers,
    open_topics,
    topic_readers,
)
from lakelog.cli.output import write, write_table
from lakelog.cli.records.group_reading import GroupReading, check_group_options, group_reading
from lakelog.terminal.progress_display import NoDisplay, display_on_stderr
from storage_engine.errors import UsageError
from storage_engine.log.isolation import Isolation

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_engine.log.log_reader import LogReader
    from storage_engine.topic.readers.reader import PartitionReader

_LINES_AT_ONCE = 20_000
_BYTES_AT_ONCE = 4 * 1024**2
"""Bytes of keys, values and headers whose lines are made together."""
_ROWS_OF_A_TABLE = 200
_SHOWN_CHARACTERS = 60
_LATEST = -1


class ReadFormat(StrEnum):
    """The output format of records."""

    JSONL = "jsonl"
    TABLE = "table"


def read(
    topic: AnyTopicOption = None,
    partition: PartitionOption = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="OFFSET", help="Begin at this offset, earliest (the default) or latest.")
    ] = None,
    from_timestamp: Annotated[
        int | None,
        typer.Option(
            "--from-timestamp", metavar="MS", min=0, max=LONG_MAX,
            help="Begin with the first record at or after this time. Partitions without such a record are skipped.",
        ),
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", metavar="N", min=0, max=LONG_MAX, help="Print at most N records in all.")
    ] = None,
    isolation: Annotated[
        Isolation,
        typer.Option("--isolation", help="read_committed: skip aborted transactions, and stop at the first open transaction."),
    ] = Isolation.READ_COMMITTED,
    form: Annotated[
        ReadFormat,
        typer.Option("--format", help="jsonl: complete records, bytes in base64. table: shortened records, for people."),
    ] = ReadFormat.JSONL,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="GROUP", help="Begin at this group's positions; a new group begins at earliest.")
    ] = None,
    commit: Annotated[
        bool, typer.Option("--commit", help="With --group: store the group's positions after the printed records.")
    ] = False,
    kafka_dir: KafkaDirOption = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """Print the records of a topic, one partition after another.

    With --format jsonl, each record is one line, a JSON object with the fields topic, partition, offset, timestamp
    (milliseconds), timestampType, key and value (base64 or null), headers (a list of [name, base64 or null]) and
    leaderEpoch. `lakelog append` accepts these lines.

    With --group, records that the group has read are not printed. --commit also makes this command the only member of
    the group. The command then stores the group's positions once per second and at the end, each time after the records
    are written to standard output. If the command is killed, the next `lakelog read --group` prints the last records
    again, but skips no record. To commit after a few records, use --max.
    """
    if start is not None and from_timestamp is not None:
        raise UsageError("--from-timestamp", "--from is given, too", "Give only one of the two.")
    check_group_options(group, commit, start, from_timestamp, kafka_dir)
    begin = _parse_start(start)
    if group is not None:
        with group_reading(open_topics(root, conf), needed_topic(topic), group, commits=commit) as reading:
            _print_unread(reading, partition, isolation, most, form)
        return
    readers, _ = open_readers(root, conf, kafka_dir, topic, partition)
    found = {each: _first_offset(reader, begin, from_timestamp, isolation) for each, reader in readers.items()}
    starts = {each: first for each, first in found.items() if first is not None}
    streams = {each: readers[each].read(first, None, isolation) for each, first in starts.items()}
    ends = {each: readers[each].end_offset(isolation) for each in streams}
    _print(topic or str(kafka_dir), streams, starts, ends, most, form)


def _print_unread(
    reading: GroupReading, partition: int | None, isolation: Isolation, most: int | None, form: ReadFormat
) -> None:
    """Print the records that a group has not read, and record them as read."""
    readers = topic_readers(reading.topics, reading.topic, partition)
    starts = reading.first_offsets(readers)
    streams = {
        each: readers[each].read(first, None, isolation, required_from=0, if_lost=reading.if_lost(each[1]))
        for each, first in starts.items()
    }
    ends = {each: readers[each].end_offset(isolation) for each in streams}
    _print(reading.topic, streams, starts, ends, most, form, reading)


def _print(
    name: str,
    streams: Mapping[tuple[str, int], Iterator[pa.RecordBatch]],
    starts: Mapping[tuple[str, int], int],
    ends: Mapping[tuple[str, int], int],
    most: int | None,
    form: ReadFormat,
    reading: GroupReading | None = None,
) -> None:
    """Print records, at most `most`.

    Args:
        name: what the progress display calls the records.
        starts, ends: the offset of the first record of each partition, and the offset after the last.
        reading: the group for which the records are printed.
    """
    printed = _print_lines if form is ReadFormat.JSONL else _print_table
    left = LONG_MAX if most is None else most
    next_offsets = dict(starts)
    display = NoDisplay() if sys.stdout.isatty() else display_on_stderr()
    with display.work(f"read {name}") as progress:
        unread = sum(max(0, ends[each] - next_offsets[each]) for each in ends)
        for each, stream in streams.items():
            while left and (records := next(stream, None)) is not None:
                wanted = records.slice(0, left)
                left -= wanted.num_rows
                begun, next_offsets[each] = next_offsets[each], wanted["offset"][-1].as_py() + 1
                unread -= next_offsets[each] - begun
                printed(*each, wanted)
                if reading is not None:
                    reading.done(each[1], next_offsets[each])
                progress.advance(wanted.num_rows, wanted.nbytes)
                progress.expect(
                    min(left, max(0, unread))
                )  # an upper bound, because compaction may have deleted some records
            unread -= max(0, ends[each] - next_offsets[each])
            if left and reading is not None:
                reading.done(each[1], ends[each])  # after the last record there may be offsets that no reader gets


def _parse_start(text: str | None) -> int | None:
    """The offset in --from; _LATEST for the end, None for the log start offset."""
    if text in (None, "earliest"):
        return None
    if text == "latest":
        return _LATEST
    try:
        offset = int(text or "")
    except ValueError:
        offset = -1
    if not 0 <= offset <= LONG_MAX:
        raise UsageError("--from", f"expected an offset, earliest or latest; found {text!r}")
    return offset


def _first_offset(
    reader: LogReader | PartitionReader, start: int | None, from_timestamp: int | None, isolation: Isolation
) -> int | None:
    """The offset of the first record to print; None if the partition has no record at or after the time in --from."""
    if from_timestamp is not None:
        found = reader.offset_at(from_timestamp, isolation)
        return found[0] if found else None
    if start == _LATEST:
        return reader.end_offset(isolation)
    return reader.partition.log_start_offset if start is None else start


def _print_lines(topic: str, partition: int, records: pa.RecordBatch) -> None:
    """Print records as lines. The lines that are made together need little memory, even if the records are large."""
    import numpy as np

    from lakelog.cli.records.json_lines import format_lines, line_pieces, line_sizes

    ends = np.cumsum(line_sizes(records))
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        end = int(np.searchsorted(ends, before + _BYTES_AT_ONCE, side="right"))
        if end == first:  # one record is larger than that
            end += 1
            for piece in line_pieces(topic, partition, records.slice(first, 1)):
                write(piece)
        else:
            end = min(end, first + _LINES_AT_ONCE)
            write(format_lines(topic, partition, records.slice(first, end - first)))
        first = end


def _print_table(topic: str, partition: int, records: pa.RecordBatch) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from lakelog.cli.records.json_lines import header_lists
    from storage_engine.quantities import shown_moment

    for first in range(0, records.num_rows, _ROWS_OF_A_TABLE):
        page = records.slice(first, _ROWS_OF_A_TABLE)
        table = Table(
            title=f"{topic}, partition {partition}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
        )
        for name in ("offset", "timestamp"):
            table.add_column(name, justify="right", no_wrap=True)
        for name in ("key", "value", "headers"):
            table.add_column(name, no_wrap=True, overflow="ellipsis")
        columns = (page[name].to_pylist() for name in ("offset", "timestamp", "key", "value"))
        for offset, timestamp, key, value, headers in zip(*columns, header_lists(page["headers"]), strict=True):
            pairs = (f"{printable(name.encode())}={printable(content)}" for name, content in headers)
            cells = (str(offset), shown_moment(timestamp), printable(key), printable(value), " ".join(pairs))
            table.add_row(*(Text(cell) for cell in cells))
        write_table(table)


def printable(data: bytes | None) -> str:
    """Bytes as text for people: the start of the text, without characters that a terminal would interpret.

    If the bytes are not UTF-8 text, only their number is shown. Empty bytes are `(empty)`, and a missing value is
    `null`.
    """
    if data is None:
        return "null"
    if not data:
        return "(empty)"
    start = data[: 4 * _SHOWN_CHARACTERS]
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        text = start[: error.start].decode()
        if error.start + 4 <= len(start) or len(start) == len(data):
            return f"({len(data)} bytes)"
    if len(data) == len(start) and len(text) <= _SHOWN_CHARACTERS and text.isprintable():
        return text
    shown = "".join(character if character.isprintable() else "\ufffd" for character in text[:_SHOWN_CHARACTERS])
    more = "" if len(data) == len(start) and len(text) <= _SHOWN_CHARACTERS else f"... ({len(data)} bytes)"
    return shown + more
