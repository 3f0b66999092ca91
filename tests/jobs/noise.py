"""What a job prints on standard error that it should not where all went well."""

from __future__ import annotations

import re

_ALARM = re.compile(r"\b(ERROR|WARN|WARNING|FATAL|Traceback)\b|\b[A-Za-z]+(Error|Exception)\b")
_OF_THE_JOB = re.compile(r"(lakelog|ingest|export|demo|maintenance|compaction|retention|settle)\b.*: ")
_OF_EVERY_JVM = ("NOTE: Picked up JDK_JAVA_OPTIONS: ", "WARNING: Using incubator modules: jdk.incubator.vector")


def noise(stderr: str) -> list[str]:
    """The lines that are neither a job's own nor what each start of Java says: warnings, errors, tracebacks.

    A job's own line that speaks of one is noise too: where all went well a job has nothing of the kind to tell.
    """
    return [line for line in stderr.splitlines() if not line.startswith(_OF_EVERY_JVM) and not _is_of_the_job(line)]


def _is_of_the_job(line: str) -> bool:
    return bool(_OF_THE_JOB.match(line)) and not _ALARM.search(line)
