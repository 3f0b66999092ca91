"""`lakelog dump`: the files of a Kafka log as Kafka's own tool (kafka-dump-log) prints them.

It takes paths, not topics: a view under log/, a plain Kafka directory, what an export wrote. What does not fit together
(gaps between offsets, index entries that miss their batch) is told on standard error at the end, as there. Only what a
terminal would act on in a key, a value or a header is not printed as there, but as an escape; --format jsonl has the bytes.

A file that is damaged, missing or none of a log's is named on standard error behind what could be printed of it, and the
others are printed all the same: the command then ends with PARTIAL, or ERROR where there was no other.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from storage_engine.cli.output import write, write_error
from storage_engine.errors import ExitStatus, LogError
from storage_engine.terminal_text import shown_json, shown_lines


class Format(StrEnum):
    """How entries are printed."""

    TEXT = "text"
    JSONL = "jsonl"


def dump(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Files .log, .index, .timeindex, .txnindex, .snapshot, checkpoints, partition.metadata, meta.properties.",
        ),
    ],
    print_data_log: Annotated[
        bool, typer.Option("--print-data-log", help="Print the records of a .log with their keys and values.")
    ] = False,
    deep_iteration: Annotated[
        bool, typer.Option("--deep-iteration", help="Print the records of a .log, without keys and values.")
    ] = False,
    form: Annotated[
        Format, typer.Option("--format", help="text: as Kafka's tool. jsonl: an object for each entry, bytes in base64.")
    ] = Format.TEXT,
) -> None:  # fmt: skip
    """Print the files of a log as Kafka's dump tool does."""
    from storage_engine.dump import DumpedFile, Findings, Wanted, dump_file

    wanted = Wanted(print_data_log or deep_iteration, print_data_log, form is Format.JSONL)
    shown = shown_json if form is Format.JSONL else shown_lines
    findings = Findings()
    failures = 0
    for name in files:
        try:
            for lines in dump_file(DumpedFile.of(name), wanted, findings):
                write(shown(lines.decode(errors="replace")).encode())
        except LogError as error:
            failures += 1
            write_error(error)
    for told in findings.text():
        print(shown_lines(told), file=sys.stderr)
    if failures:
        raise typer.Exit(ExitStatus.PARTIAL if failures < len(files) else ExitStatus.ERROR)
