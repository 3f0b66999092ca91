"""What goes wrong inside Spark, as one of our errors.

An error in a task reaches the driver as the text of a Python traceback, in a Java exception, in one of PySpark's. Of
that the reader needs one line: what our own code said about place, value and remedy, where it was our code; else what
the innermost Java exception says (`No space left on device`), because the outer ones tell only that a job has failed.
Spark quotes values that it could not cast or parse: those are left out, because errors must not show records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from storage_engine.errors import LogError

_OUR_ERROR = re.compile(r"^(?:storage_engine|pipeline|schemas)\.[\w.]+: (.+)$", re.MULTILINE)
_QUOTED_RECORDS = (
    (re.compile(r"\b([Tt]he value) .+? (of the type)"), r"\1 \2"),
    (re.compile(r"(in record parsing): .*"), r"\1"),
    (re.compile(r"(Unrecognized token) '.*?'"), r"\1"),
)
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)


class SparkFailedError(LogError):
    """Spark, or one of its tasks, could not do its part. Nothing of that part was committed."""


@contextmanager
def spark_failures(place: str) -> Iterator[None]:
    """Turn what Spark raises in the block into a SparkFailedError with this place."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise SparkFailedError(place, failure_reason(error), "What was committed stays.") from error


def failure_reason(error: PySparkException | Py4JError) -> str:
    """The one line that tells what went wrong."""
    text = str(error)
    if isinstance(error, Py4JJavaError):
        text = f"{error.java_exception.getMessage()}\n{text}"
    ours = _OUR_ERROR.findall(text)
    causes = _CAUSE.findall(text)
    reason = ours[-1] if ours else causes[-1] if causes else text.strip().split("\n")[0]
    for quoted, left_out in _QUOTED_RECORDS:
        reason = quoted.sub(left_out, reason)
    return reason.split(" SQLSTATE")[0].strip().rstrip(".")
