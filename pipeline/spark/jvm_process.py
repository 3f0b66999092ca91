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
    """The error to show instead of the error of a lost connection, if Spark's JVM has ended; otherwise None. PySpark does not
    start another JVM in this process."""
    process = _jvm_process()
    if process is None or not _has_lost_connection(error):
        return None
    with suppress(TimeoutExpired):
        process.wait(_END_SECONDS)
    status = process.returncode
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


def _has_lost_connection(error: BaseException | None) -> bool:
    """Whether the error, or one of the errors that led to it, is about a lost connection. A Py4JError that is of no subclass
    stands for such an error. If Java has thrown an exception, the JVM has answered."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, ConnectionError) or type(error).__name__ in {"Py4JNetworkError", "Py4JError"}:
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False
