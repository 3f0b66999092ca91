"""Runs as `lakelog-python`, the Python program of Spark, and starts the quiet daemon instead of `-m pyspark.daemon`.

The setting spark.python.daemon.module applies only to the daemon that runs tasks. To plan a read of a Python data
source, Spark starts other daemons, always as `python -m pyspark.daemon`. So pipeline/spark/session.py gives Spark this
program instead of Python. With other arguments, the program behaves like the Python that is installed in the same
directory. The archive for executors has a program of the same name (scripts/executor_archive.py).

Spark puts zip files with a copy of PySpark first on the import path of its Python processes. Python keeps no compiled
code of modules in a zip file, so each process would compile PySpark again, which takes a second. This program removes
these zip files if PySpark itself is installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

NAME = "lakelog-python"

_DAEMON = ["-m", "pyspark.daemon"]
_QUIET_DAEMON = ["-m", "pipeline.spark.quiet_daemon"]


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:2] == _DAEMON:
        arguments[:2] = _QUIET_DAEMON
    if path := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = without_copies(path, sys.path)
    os.execv(sys.executable, [sys.executable, *arguments])


def without_copies(path: str, installed: Sequence[str]) -> str:
    """A PYTHONPATH without the files of a PySpark that is installed.

    Args:
        path: the PYTHONPATH.
        installed: the directories in which Python looks for packages.
    """
    packages = tuple(
        os.path.realpath(f"{each}/pyspark") + os.sep
        for each in installed
        if Path(each, "pyspark/__init__.py").is_file()
    )
    # A link can lead to the environment, so one file can have two paths.
    return os.pathsep.join(each for each in path.split(os.pathsep) if not os.path.realpath(each).startswith(packages))


def spark_python() -> str:
    """The path of lakelog-python beside the running Python; the path of this Python if lakelog-python is not installed."""
    program = Path(sys.executable).with_name(NAME)
    return str(program) if os.access(program, os.X_OK) else sys.executable
