"""`lakelog-python`: the Python that Spark starts, with a daemon whose workers end without a word where the JVM has left.

spark.python.daemon.module names the daemon of tasks only. To plan a read of a Python data source Spark starts more of
them, one for each step, always as `python -m pyspark.daemon`. So Spark is given this program for its Python
(pipeline/spark/session.py): it is the Python that it stands beside, but for that one module.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

NAME = "lakelog-python"

_DAEMON = ["-m", "pyspark.daemon"]
_QUIET_DAEMON = ["-m", "pipeline.spark.quiet_daemon"]


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:2] == _DAEMON:
        arguments[:2] = _QUIET_DAEMON
    os.execv(sys.executable, [sys.executable, *arguments])


def spark_python() -> str:
    """The program beside the Python that runs now; that Python itself where the packages lie there without it."""
    program = Path(sys.executable).with_name(NAME)
    return str(program) if os.access(program, os.X_OK) else sys.executable
