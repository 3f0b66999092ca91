"""Finds lines on standard error that a job without problems should not print."""

from __future__ import annotations

import re

_ALARM = re.compile(r"\b(ERROR|WARN|WARNING|FATAL|Traceback)\b|\b[A-Za-z]+(Error|Exception)\b")
_OF_THE_JOB = re.compile(r"(lakelog|ingest|export|demo|maintenance|compaction|retention|settle)\b.*: ")
_OF_TESTS = "NOTE: Picked up JDK_JAVA_OPTIONS: "
"""What Java says where the environment has options for it, as that of tests has."""


def printed(stderr: str) -> list[str]:
    """What a job printed on standard error, line by line."""
    return [line for line in stderr.splitlines() if not line.startswith(_OF_TESTS)]


def noise(stderr: str) -> list[str]:
    """The lines that are not a job's own: warnings, errors, tracebacks.

    A job's own line that speaks of one is noise too: where all went well a job has nothing of the kind to tell.
    """
    return [line for line in printed(stderr) if not _is_of_the_job(line)]


def _is_of_the_job(line: str) -> bool:
    return bool(_OF_THE_JOB.match(line)) and not _ALARM.search(line)
