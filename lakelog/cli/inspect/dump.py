"""`lakelog dump`: prints the files of a Kafka log as Kafka's own tool (kafka-dump-log) does.

The command takes paths, not topics: files of the view under log/, of a plain Kafka directory, or of an export. As in
Kafka's tool, contradictions are printed to standard error at the end: gaps between offsets, and index entries that do
not match their batch. There is one difference: in a key, a value or a header, characters that a terminal would
interpret are printed as escapes. --format jsonl prints all bytes.

If a file is damaged, its readable part is printed. If a file is damaged, is missing or does not belong to a log, its
name is printed to standard error, and the command continues with the next file. In these cases, the exit status is
PARTIAL, or ERROR if no file could be printed completely.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from lakelog.cli.output import write, write_error
from lakelog.terminal.text import shown_json, shown_lines
from storage_engine.errors import ExitStatus, LogError


class DumpFormat(StrEnum):
    """The output format of entries."""

    TEXT = "text"
    JSONL = "jsonl"


def dump(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="A .log, .index, .timeindex, .txnindex, .snapshot, checkpoint, partition.metadata or meta.properties.",
        ),
    ],
    print_data_log: Annotated[
        bool, typer.Option("--print-data-log", help="Print the records of a .log with their keys and values.")
    ] = False,
    deep_iteration: Annotated[
        bool, typer.Option("--deep-iteration", help="Print the records of a .log, without keys and values.")
    ] = False,
    offsets_decoder: Annotated[
        bool,
        typer.Option("--offsets-decoder", help="Print the records of a .log that belongs to the topic __consumer_offsets."),
    ] = False,
    form: Annotated[
        DumpFormat, typer.Option("--format", help="text: like Kafka's tool. jsonl: one JSON object per entry, bytes in base64.")
    ] = DumpFormat.TEXT,
) -> None:  # fmt: skip
    """Print the files of a log as Kafka's dump tool does.

    --offsets-decoder prints the groups of a broker: the committed offsets, the members and their assignments.
    """
    from lakelog.dump import DumpedFile, DumpOptions, Mismatches, dump_file

    contents = print_data_log or offsets_decoder
    wanted = DumpOptions(contents or deep_iteration, contents, form is DumpFormat.JSONL, offsets_decoder)
    shown = shown_json if form is DumpFormat.JSONL else shown_lines
    findings = Mismatches()
    failures = 0
    for name in files:
        try:
            for lines in dump_file(DumpedFile.of(name), wanted, findings):
                write(shown(lines.decode(errors="replace")).encode())
        except LogError as error:
            failures += 1
            write_error(error)
    for text in findings.text():
        print(shown_lines(text), file=sys.stderr)
    if failures:
        raise typer.Exit(ExitStatus.PARTIAL if failures < len(files) else ExitStatus.ERROR)
