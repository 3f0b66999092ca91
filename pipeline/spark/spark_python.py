"""Runs as `lakelog-python`, the Python program of Spark, and starts the quiet daemon instead of `-m pyspark.daemon`.

The setting spark.python.daemon.module applies only to the daemon that runs tasks. To plan a read of a Python data
source, Spark starts other daemons, always as `python -m pyspark.daemon`. So pipeline/spark/session.py gives Spark this
program instead of Python. With all other arguments, the program behaves like the Python that is installed in the same
directory. The archive for executors has a program of the same name (scripts/executor_archive.py).
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
    """The path of lakelog-python beside the running Python; the path of this Python if lakelog-python is not installed."""
    program = Path(sys.executable).with_name(NAME)
    return str(program) if os.access(program, os.X_OK) else sys.executable
