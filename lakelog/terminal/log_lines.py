"""Prints the lines of a job on standard error, as text or as JSON (`--log-format`).

    text    ingest orders: batch 41: 26,849 records in 1.2 s
    json    {"time":"2026-01-31T12:00:00.000Z","job":"ingest","name":"orders","level":"info","message":"batch 41: ..."}

A line of JSON has these fields:

    time      when the line was printed, in UTC
    job       the name of the job
    name      the name of the ingest or of the export; only in lines that belong to one of them
    level     info, warning or error
    message   the text, without the names and without the words `warning` and `failed`

Every line is one write, so the lines of several threads do not mix. If nobody can read standard error, the job continues
without the lines.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from lakelog.terminal.standard_streams import write_error_line
from lakelog.terminal.text import shown_line
from storage_engine.clock import SystemClock
from storage_engine.quantities import iso_moment


class LogFormat(StrEnum):
    """The form of a job's own lines."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The level of a line of JSON."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class LogLines:
    """Prints the lines of a job, or of a named part of the job.

    job: the name of the job.
    form: text or JSON.
    name: the name of the ingest or of the export; empty for lines of the whole job.
    """

    job: str
    form: LogFormat = LogFormat.TEXT
    name: str = ""

    def info(self, message: str) -> None:
        """Print what happens."""
        self._say(message, message, LogLevel.INFO)

    def warning(self, message: str) -> None:
        """Print something that the operator should know. The text begins with `warning`."""
        self._say(f"warning: {message}", message, LogLevel.WARNING)

    def waiting(self, message: str) -> None:
        """Print why the job waits. The level is `warning`, but the text does not say so."""
        self._say(message, message, LogLevel.WARNING)

    def failed(self, message: str) -> None:
        """Print that a part of the work failed, and that other parts continue. The text begins with `failed`."""
        self._say(f"failed: {message}", message, LogLevel.ERROR)

    def error(self, message: str) -> None:
        """Print the error that ends the job."""
        self._say(message, message, LogLevel.ERROR)

    def progress(self, line: str) -> str:
        """A line of progress. The text does not begin with the name of the job."""
        return shown_line(line) if self.form is LogFormat.TEXT else self.record(LogLevel.INFO, line)

    def record(self, level: LogLevel, message: str) -> str:
        """A line of JSON. JSON has escapes for all characters that a terminal would interpret."""
        time = iso_moment(SystemClock().now_ms())
        name = {"name": self.name} if self.name else {}
        document = {"time": time, "job": self.job, **name, "level": level, "message": message}
        return json.dumps(document, separators=(",", ":"))

    def _say(self, text: str, message: str, level: LogLevel) -> None:
        label = f"{self.job} {self.name}" if self.name else self.job
        is_text = self.form is LogFormat.TEXT
        line = shown_line(f"{label}: {text}") if is_text else self.record(level, message)
        write_error_line(line)
