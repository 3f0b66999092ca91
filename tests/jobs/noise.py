"""What a job prints on standard error that it should not where all went well."""

from __future__ import annotations

import re

_OF_THE_JOB = re.compile(r"(lakelog|ingest|export|demo|maintenance|compaction|retention|settle)\b.*: ")
_OF_EVERY_JVM = ("NOTE: Picked up JDK_JAVA_OPTIONS: ", "WARNING: Using incubator modules: jdk.incubator.vector")


def noise(stderr: str) -> list[str]:
    """The lines that are neither a job's own nor what each start of Java says: warnings, errors, tracebacks."""
    return [line for line in stderr.splitlines() if not (_OF_THE_JOB.match(line) or line.startswith(_OF_EVERY_JVM))]
