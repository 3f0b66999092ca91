"""`lakelog verify`: reads the files of a log directory or a root, checks every invariant, and prints what is wrong.

Each finding is one line, or one JSON object. A summary follows. With --format jsonl the summary is printed to standard
error.

    DONE      nothing is wrong; there may be notes
    PARTIAL   there are problems
    ERROR     something could not be read at all

With --repair, the exit status depends on the problems that remain after the repair. The status is also PARTIAL if the
repair had to remove batches.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.options import ConfOption, PartitionOption, RootOption, open_topics
from lakelog.cli.output import write, write_error, write_line
from lakelog.terminal.progress_display import display_on_stderr
from storage_engine.errors import ExitStatus, UsageError
from storage_engine.quantities import counted, shown_number, shown_size

if TYPE_CHECKING:
    from lakelog.inspection.verifying import Verification
    from storage_engine.verify.findings import Finding


class VerifyFormat(StrEnum):
    """The output format of findings."""

    TEXT = "text"
    JSONL = "jsonl"


def verify(
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic. Default: all.")
    ] = None,
    partition: PartitionOption = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also decompress and decode every record. Default: only CRCs and headers are checked.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Restore damaged files if other files show their correct content: indexes, snapshots, checkpoints, the"
            " view of a root, and documents of a topic's state. With --kafka-dir, damaged bytes are cut out of the .log"
            " files and saved in .corrupt files beside them.",
        ),
    ] = False,
    form: Annotated[
        VerifyFormat, typer.Option("--format", help="text: for people. jsonl: one JSON object per finding.")
    ] = VerifyFormat.TEXT,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", metavar="N", min=1, max=1024,
            help="How many partitions to check at once. Default: one per core.",
        ),
    ] = None,
    kafka_dir: Annotated[
        list[Path] | None,
        typer.Option(
            "--kafka-dir", metavar="DIR",
            help="A plain Kafka log directory, instead of --root. If a broker has several log.dirs, give all of them.",
        ),
    ] = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """Check every invariant of a log directory or a root, and print what is wrong and where."""
    from lakelog.inspection.verifying import Scope, verify_directories, verify_root
    from storage_engine.verify.segment_check import Options

    scope = Scope(topic, partition, threads, repair)
    if kafka_dir:
        if root is not None and root != os.environ.get("LAKELOG_ROOT"):
            raise UsageError("--kafka-dir", "--root is given, too", "Give only one of the two.")
        with display_on_stderr().work("verify") as progress:
            done = verify_directories(kafka_dir, scope, Options(deep=deep, progress=progress))
    else:
        topics = open_topics(root, conf, creates=True, examines=True)  # a directory that is not a root is a finding
        with display_on_stderr().work("verify") as progress:
            done = verify_root(topics, scope, Options(deep=deep, progress=progress))
    _print(done, form)
    _finish(done, form)


def _print(done: Verification, form: VerifyFormat) -> None:
    """Print each finding and whether it was repaired, then the findings that appeared during the repair."""
    before, remaining = set(done.found), set(done.left)
    lines = [(finding, _GONE[_is_loss(finding)] if finding not in remaining else "") for finding in done.found]
    lines += [(finding, "") for finding in done.left if finding not in before]
    for finding, gone in lines:
        if form is VerifyFormat.JSONL:
            write(json.dumps(finding.as_json() | {"repaired": bool(gone)}).encode() + b"\n")
        else:
            # A repaired finding needs no remedy.
            write_line(f"{gone}{replace(finding, meaning='') if gone == _GONE[False] else finding}")
    for each in done.restored:
        if form is VerifyFormat.JSONL:
            write(json.dumps(each.as_json()).encode() + b"\n")
        else:
            write_line(str(each))


_GONE = {False: "repaired: ", True: "cut out: "}


def _is_loss(finding: Finding) -> bool:
    """Whether a repair can only cut out the damaged bytes."""
    return finding.kind in ("corrupt", "torn")


def _finish(done: Verification, form: VerifyFormat) -> None:
    from storage_engine.verify.findings import Kind, problems

    write_summary = write_line if form is VerifyFormat.TEXT else write_error
    wrong, remaining = problems(done.found), problems(done.left)
    summary = f"{counted(done.segments, 'segment')}, {shown_size(done.bytes)}"
    summary += f", {shown_number(done.batches)} {'batch' if done.batches == 1 else 'batches'}"
    if done.unreadable:
        summary += f", without topic {', '.join(done.unreadable)}"
    summary += f": {_counts(wrong) if wrong else 'nothing is wrong'}"
    if notes := len(done.found) - len(wrong):
        summary += f", {counted(notes, 'note')}"
    if remaining != wrong:
        summary += f"; after the repair: {_counts(remaining) if remaining else 'nothing is wrong'}"
    write_summary(summary)
    if any(finding.kind is Kind.UNREADABLE for finding in remaining):
        raise typer.Exit(ExitStatus.ERROR)
    # A torn tail was never durable. But the records of a damaged batch are lost, even if the rest has been repaired.
    is_cut = any(finding.kind is Kind.CORRUPT for finding in wrong)
    is_loss = any(each.is_loss for each in done.restored)
    if not remaining and is_cut:
        write_summary(
            f"exit status {ExitStatus.PARTIAL}: damaged committed batches were removed, and their records are lost"
        )
    if not remaining and is_loss:
        write_summary(
            f"exit status {ExitStatus.PARTIAL}: the newest version of a state was rebuilt; other changes of the"
            " lost version are unknown"
        )
    if remaining or is_cut or is_loss:
        raise typer.Exit(ExitStatus.PARTIAL)


def _counts(findings: Iterable[Finding]) -> str:
    by_kind: dict[str, int] = {}
    for finding in findings:
        by_kind[finding.kind] = by_kind.get(finding.kind, 0) + 1
    kinds = ", ".join(f"{count} {kind}" for kind, count in by_kind.items())
    return f"{counted(sum(by_kind.values()), 'problem')} ({kinds})"
