"""Finds lines on standard error that a job without problems should not print."""

from __future__ import annotations

import re

_ALARM = re.compile(r"\b(ERROR|WARN|WARNING|FATAL|Traceback)\b|\b[A-Za-z]+(Error|Exception)\b")
_OF_THE_JOB = re.compile(r"(lakelog|ingest|export|demo|maintenance|compaction|retention|settle)\b.*: ")
_OF_TESTS = "NOTE: Picked up JDK_JAVA_OPTIONS: "
"""Java prints this if the environment contains options for Java. The environment of the tests does."""


def printed(stderr: str) -> list[str]:
    """What a job printed on standard error, line by line."""
    return [line for line in stderr.splitlines() if not line.startswith(_OF_TESTS)]


def noise(stderr: str) -> list[str]:
    """The lines that are not a job's own: warnings, errors, tracebacks.

    A line of the job itself is noise, too, if it mentions a warning or an error: a job without problems prints no such
    line.
    """
    return [line for line in printed(stderr) if not _is_of_the_job(line)]


def _is_of_the_job(line: str) -> bool:
    return bool(_OF_THE_JOB.match(line)) and not _ALARM.search(line)
