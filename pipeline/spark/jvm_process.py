"""Finds out whether the JVM that this process started has ended, and how. Does not import Spark.

If spark-submit has started Python (--deploy-mode cluster), Python is a child of the JVM, and these functions find no JVM.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from subprocess import Popen, TimeoutExpired

from storage_engine.errors import LogError

_END_SECONDS = 2.0
"""Longest wait for the end of a JVM that does not answer. A killed process closes its connections before it has ended."""


class JvmEndedError(LogError):
    """Spark's JVM has ended during a job. Whether its last commit succeeded is not known. The next run finds out."""


def error_of_ended_jvm(error: BaseException) -> JvmEndedError | None:
    """The error to show instead of an error of Spark, if Spark's JVM has ended; otherwise None.

    PySpark does not start another JVM in this process.
    """
    process = _jvm_process()
    if process is None or not _is_of_spark(error):
        return None
    if _is_of_connection(error):
        with suppress(TimeoutExpired):
            process.wait(_END_SECONDS)
    status = process.poll()
    if status is None:
        return None
    remedy = "Nothing that was committed is lost: start the job again."
    if status == -signal.SIGKILL:
        return JvmEndedError(
            "Spark",
            "its JVM was ended by SIGKILL",
            f"{remedy} If memory is scarce, the kernel ends processes in this way.",
        )
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"has ended with status {status}"
    return JvmEndedError("Spark", f"its JVM {how}", f"{remedy} Java's own messages say why the JVM has ended.")


def _jvm_process() -> Popen[bytes] | None:
    """The process that PySpark has started; None if it has started none."""
    pyspark = sys.modules.get("pyspark")
    gateway = pyspark.SparkContext._gateway if pyspark is not None else None  # noqa: SLF001 - there is no public access
    return getattr(gateway, "proc", None)


def _is_of_spark(error: BaseException | None) -> bool:
    """Whether the error, or one of the errors that led to it, comes from PySpark or from a closed connection."""
    return any(
        isinstance(each, ConnectionError) or type(each).__module__.startswith(("py4j.", "pyspark."))
        for each in _chain(error)
    )


def _is_of_connection(error: BaseException | None) -> bool:
    """Whether the JVM may have closed the connection. If Java has thrown an exception, the JVM has answered."""
    return any(
        isinstance(each, ConnectionError) or type(each).__name__ in {"Py4JNetworkError", "Py4JError"}
        for each in _chain(error)
    )


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error, and the errors that led to it."""
    found = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
