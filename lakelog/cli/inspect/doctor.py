"""`lakelog doctor`: tests whether a storage meets the assumptions behind Lakelog's promises, and prints a line for each
check.

With --peer, two hosts test the storage together: the same command runs on both hosts, and the hosts find each other
through a file on the storage. ExitStatus is DONE if there is no problem, else ERROR.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.options import ConfOption, RootOption, open_topics
from lakelog.cli.output import write, write_line
from storage_engine.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from lakelog.doctor.check_report import CheckReport


class DoctorFormat(StrEnum):
    """The output format of findings."""

    TEXT = "text"
    JSONL = "jsonl"


def doctor(
    peer: Annotated[
        Path | None,
        typer.Option(
            "--peer", metavar="FILE",
            help="The name of a new file on this storage. Run the same command on another host at the same time. The"
            " two hosts find each other through this file, and test the storage together.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long to wait for the other host.")
    ] = 120,
    form: Annotated[
        DoctorFormat, typer.Option("--format", help="text: for people. jsonl: one JSON object per check.")
    ] = DoctorFormat.TEXT,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """Test whether a storage meets the assumptions on which Lakelog's promises depend."""
    storage = open_topics(root, conf, creates=True, examines=True).storage
    if peer is not None and not peer.absolute().parent.is_dir():
        raise UsageError(
            "--peer", f"{peer.absolute().parent} is not a directory", "Give the path of a new file on this storage."
        )
    from lakelog.doctor.examination import examine, has_problems

    def report(finding: CheckReport) -> None:
        if form is DoctorFormat.JSONL:
            write(json.dumps(finding.as_json()).encode() + b"\n")
        else:
            write_line(str(finding))

    with _ended_in_order():
        findings = examine(storage, report)
        if peer is not None:
            from lakelog.doctor.peer import examine_with_peer

            print(f"lakelog: waiting for the other host at {peer}, up to {timeout:g} s", file=sys.stderr, flush=True)
            findings += examine_with_peer(storage, peer, timeout, report)
    if has_problems(findings):
        raise typer.Exit(ExitStatus.ERROR)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Turn a signal that ends the process into SystemExit, so that the files of the test are removed."""

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
