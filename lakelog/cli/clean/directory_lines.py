"""Prints the lines of `lakelog log-manager` and `lakelog recover`: what was loaded, done and closed in log directories. Also
has the option that both commands have.

Each line gives the time, the directory or the partition, and the action. With --log-format json, each line is a JSON
object. If standard output cannot be written, the work continues without the lines. No line contains a part of a record.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.output import try_line, write_error
from lakelog.terminal.log_lines import LogFormat, LogLevel, LogLines
from storage_engine.errors import LogError
from storage_engine.kafka_dir.recovery_report import CutReason
from storage_engine.quantities import counted

if TYPE_CHECKING:
    from storage_engine.kafka_dir.open_directory import OpenDirectory

TruncateOption = Annotated[
    bool,
    typer.Option(
        "--truncate-at-damage",
        help="After a crash, end a log at its first damaged byte, as Kafka does. Default: cut out only the damaged bytes.",
    ),
]


class DirectoryLines:
    """Prints each report as a line. Errors as text begin with `lakelog`, as those of every command. Several threads may
    use it.

    failures: how many errors were reported with `failed`.
    """

    def __init__(self, job: str, form: LogFormat = LogFormat.TEXT) -> None:
        """
        Args:
            job: the name of the command, for JSON.
        """
        self._guard = threading.Lock()
        self._log = LogLines(job, form)
        self.failures = 0
        self._lost_lines = False

    def did(self, place: str, what: str) -> None:
        """Print what was done."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = f"{now} {place}: {what}"
        if self._log.form is LogFormat.JSON:
            line = self._log.record(LogLevel.INFO, f"{place}: {what}")
        with self._guard:
            problem = try_line(line)
            if problem is not None and not self._lost_lines:
                self._lost_lines = True
                self._warn(f"standard output cannot be written ({problem}); the work continues without these lines")

    def _warn(self, message: str) -> None:
        if self._log.form is LogFormat.JSON:
            self._log.warning(message)
        else:
            write_error(message)

    def failed(self, error: LogError) -> None:
        """Print what could not be done."""
        with self._guard:
            self.failures += 1
            self.error(error)

    def error(self, error: LogError) -> None:
        """Print an error."""
        if self._log.form is LogFormat.JSON:
            self._log.error(str(error))
        else:
            write_error(error)


def say_loaded(directories: Iterable[OpenDirectory], lines: DirectoryLines) -> None:
    """Print how each directory was closed, and what the loading of each log found and repaired."""
    for directory in directories:
        state = "closed cleanly" if directory.clean else "not closed cleanly"
        lines.did(directory.path, f"opened, was {state}, has {counted(len(directory.logs), 'open log')}")
        for name in directory.aside:
            lines.did(f"{directory.path}/{name}", "not opened: a broker has set this folder aside")
        for partition, log in sorted(directory.logs.items()):
            report = log.report
            parts = [f"loaded, offsets {log.log_start_offset} to {log.log_end_offset}"]
            parts += [f"read {counted(len(report.recovered), 'segment')} completely"] if report.recovered else []
            parts += [f"rebuilt {', '.join(report.rebuilt)}"] if report.rebuilt else []
            parts += [f"removed {', '.join(report.removed)}"] if report.removed else []
            lines.did(f"{directory.path}/{partition.folder}", "; ".join(parts))
            for cut in report.cuts:
                if cut.fate is CutReason.TORN_TAIL:
                    lines.did(directory.path, str(cut))
            for loss in report.losses:
                lines.error(loss.error_in(directory.path))


def say_closed(directories: Iterable[OpenDirectory], lines: DirectoryLines) -> None:
    """Print for each directory whether the next start of a broker needs a recovery."""
    for directory in directories:
        reason = "wrote .kafka_cleanshutdown" if directory.vouches else (
            "did not write .kafka_cleanshutdown, because some logs were not opened after the crash; the broker will recover"
            " these logs"
        )  # fmt: skip
        lines.did(directory.path, f"closed, {reason}")
