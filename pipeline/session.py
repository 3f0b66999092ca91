"""The Spark session: one place that makes it, whoever starts Python.

conf/spark-defaults.conf holds the settings, conf/log4j2.properties what Spark says on the terminal. Both are read by
Spark's own launcher, because SPARK_CONF_DIR points at conf/: spark-submit.sh sets it, and for a Python that was
started directly (pytest, a notebook) `spark_session` does. So a test runs with the settings of a job.

In a process there is one Spark context. The first call makes it, later ones return it under its first name. Each session
knows topics as a source, format("lakelog").
"""

import atexit
import os
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

import pyarrow as pa
from pyspark.sql import SparkSession

from pipeline.lakelog_source import LakelogSource

_prepared: WeakSet[SparkSession] = WeakSet()
"""Sessions that know topics as a source: Spark warns of one that is told twice."""
_with_daemon: set[str] = set()
"""Spark applications of this process whose Python daemon was started."""

CONF_DIR = Path(__file__).resolve().parent.parent / "conf"


def spark_session(app_name: str) -> SparkSession:
    """The session of this process, made where there is none.

    `app_name` is what cluster managers and Spark's UI show, unless the user's own spark-submit options name the
    application. Every setting comes from the JVM's configuration (the options, then conf/spark-defaults.conf or the
    user's SPARK_CONF_DIR); none is set here, where it would win over the user's.
    """
    _prepare_environment()
    builder = SparkSession.builder
    if not _named_by_options():
        builder = builder.appName(app_name)
    session = builder.getOrCreate()
    if session not in _prepared:
        _prepared.add(session)
        session.dataSource.register(LakelogSource)
        atexit.register(session.stop)  # else the JVM leaves first, and idle Python workers complain about broken pipes
    return session


def start_python_daemon(spark: SparkSession) -> None:
    """Let Spark start its Python daemon now, beside what the driver does next, and not with the first task.

    The daemon imports for some seconds before it forks the first worker (pipeline/python_daemon.py), and stays for as
    long as the application: a second call does nothing. If this does not work, nothing is lost: the first task starts
    it, and says what is wrong.
    """
    application = spark.sparkContext.applicationId
    if application in _with_daemon:
        return
    _with_daemon.add(application)

    def touch() -> None:
        with suppress(Exception):
            spark.range(1).mapInArrow(_unchanged, "id bigint").collect()

    threading.Thread(target=touch, name="python-daemon", daemon=True).start()


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _prepare_environment() -> None:
    """Say where settings and Python are, as spark-submit.sh does. Only the JVM's start reads it: it is too late after.

    Without PYSPARK_PYTHON Spark takes the `python3` of PATH for its workers, which may be of another version.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if CONF_DIR.is_dir():  # not so where only the packages are installed
        os.environ.setdefault("SPARK_CONF_DIR", str(CONF_DIR))


def _named_by_options() -> bool:
    options = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    return any(option.split("=")[0] == "--name" or option.startswith("spark.app.name=") for option in options)
