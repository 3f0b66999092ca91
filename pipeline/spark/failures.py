"""Turns failures inside Spark into Lakelog's errors.

An error in a task reaches the driver as the text of a Python traceback, inside a Java exception, inside a PySpark
exception. The operator needs one line of this text. The line must not contain data, because some people are allowed to
read the logs, but not the data. But Spark quotes the values that it could not cast or parse. So if a task fails while
it works on rows, the operator gets the first of the following lines that is found:

    the text of an error of Lakelog, which never contains data
    the message of the file system, such as `No space left on device`
    Spark's name for the error (capitals in brackets), and the file that was being read
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from storage_engine.errors import LogError

SPARK_ERRORS = (PySparkException, Py4JError)
"""The Python classes of Spark's errors. Some errors stay Java errors, mainly those from a callback."""

_OUR_ERROR = re.compile(r"^(?:storage_engine|pipeline|schemas)(?:\.\w+)*\.\w+Error: (.+)$", re.MULTILINE)
_WORTH_WAITING = re.compile(
    r"^storage_engine\.errors\.(?:StorageFullError|StorageUnavailableError|AmbiguousPutError): (.+)$", re.MULTILINE
)
_CAUSE = re.compile(r"^(?:Caused by)?: ([\w.$]+)(?:: (.+))?$", re.MULTILINE)
_FILE_SYSTEM = ("java.io.", "java.net.", "java.nio.", "org.apache.hadoop.")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
_PYTHON_DID_NOT_START = "at org.apache.spark.api.python.PythonWorkerFactory."
_STREAM_FAILED = re.compile(r"^\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")
_OF_KAFKA = ("org.apache.kafka.", "kafka.")
_QUOTED = re.compile(r"['\"].*['\"]", re.DOTALL)
_FILE = re.compile(r"while reading file (\S+?)\.?(?:\s|$)")


class SparkFailedError(LogError):
    """Spark or one of its tasks failed. Nothing of the failed work was committed."""


@contextmanager
def spark_failures(place: str) -> Iterator[None]:
    """Turn an error of Spark in the block into a SparkFailedError with this place."""
    try:
        yield
    except SPARK_ERRORS as error:
        if (missing := missing_python(error)) is not None:
            raise SparkFailedError(place, missing, "Nothing that was committed is lost.") from error
        raise SparkFailedError(place, failure_reason(error), "Nothing that was committed is lost.") from error


def failure_reason(error: BaseException) -> str:
    """The reason of an error in work on rows, in one line without data of the rows."""
    text = _text(error)
    causes = _CAUSE.findall(text)
    if isinstance(error, AnalysisException) or _OUR_ERROR.search(text):
        return planning_reason(error)
    condition, file = _CONDITION.search(text), _FILE.search(text)
    if causes and causes[-1][0].startswith(_FILE_SYSTEM) and causes[-1][1]:
        what = str(causes[-1][1]).strip().rstrip(".")
    else:
        what = condition[1] if condition else causes[-1][0] if causes else type(error).__name__
    return f"{what} in {file[1]}" if file and file[1] not in what else what


def missing_python(error: BaseException) -> str | None:
    """Why executors cannot run Lakelog's Python, and what to do; None if the error has another cause.

    Executors start Python with `-m pipeline.python_daemon`. If the module is not installed, Spark reports this for one
    task. For other tasks Spark throws a different error, for example a NullPointerException, in the class that starts
    Python.
    """
    text = _text(error)
    module, program = _NO_MODULE.search(text), _NO_PROGRAM.search(text)
    if module is None and _PYTHON_DID_NOT_START not in text:
        return None
    if module is not None:
        what = f"it has no module {module[1]}"
    else:
        what = f"there is no program {program[1]}" if program else "Spark's own log has details"
    return (
        f"the executors cannot start Python with Lakelog's packages: {what}. Run ./spark-submit.sh --ship, which sends the"
        " packages to the executors, or install the packages on every host (docs/CLUSTER.md)"
    )


def stream_reason(error: BaseException) -> str:
    """Why a stream ended outside of its micro-batches, in one line. If Spark cannot create Kafka's client, Spark does not
    say why. So for an error of Kafka's client, the line also has the innermost message of Kafka, and the message of its
    cause, without quoted values."""
    reason = _STREAM_FAILED.sub("", planning_reason(error))
    cause = getattr(error, "_origin", None)
    chain: list[tuple[bool, str]] = []
    while cause is not None:
        is_kafkas = str(cause.getClass().getName()).startswith(_OF_KAFKA)
        chain.append((is_kafkas, without_quoted(str(cause.getMessage() or ""))))
        cause = cause.getCause()
    of_kafka = [place for place, (is_kafkas, _) in enumerate(chain) if is_kafkas]
    if of_kafka:
        told = chain[of_kafka[-1] : of_kafka[-1] + 2]
    else:
        told = chain[-1:] if "kafka" in reason.lower() else []
    for _, said in told:
        if said and said not in reason:
            reason = f"{reason}: {said}"
    return reason


def without_quoted(text: str) -> str:
    """A message in one line, without the text from its first to its last quotation mark. The quoted value may itself
    contain quotation marks, so nothing between the two is kept.
    """
    return " ".join(_QUOTED.sub("...", text).split()).rstrip(".")


def raised_in_query(error: BaseException, text: str) -> bool:
    """Whether the error comes from SQL's raise_error with this text."""
    return f"[USER_RAISED_EXCEPTION] {text}" in _text(error)


def storage_failure(error: BaseException) -> str | None:
    """A task's error text about a storage that is full or unreachable; None if the error has another cause."""
    found = _WORTH_WAITING.findall(_text(error))
    return str(found[-1]).strip().rstrip(".") if found else None


def planning_reason(error: BaseException) -> str:
    """The reason of an error that happened before a row was read, in one line: an error of Lakelog, or Spark's message."""
    text = _text(error)
    ours = _OUR_ERROR.findall(text)
    first = ours[-1] if ours else text.strip().split("\n")[0]
    return first.split(" SQLSTATE")[0].strip().rstrip(".")


def _text(error: BaseException) -> str:
    if isinstance(error, Py4JJavaError):
        return f"{error.java_exception.getMessage()}\n{error}"
    if isinstance(error, PySparkException):
        message = ""
        with suppress(Py4JError):  # Spark looks up the message by a name, and does not know the names of Delta
            message = error.getMessage() or ""
        return f"{message}\n{error}".strip()
    return str(error)
