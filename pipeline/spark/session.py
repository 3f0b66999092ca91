"""The Spark session: one place that makes it, whoever starts Python.

conf/spark-defaults.conf holds the settings, conf/log4j2.properties what Spark says on the terminal. Both are read by
Spark's own launcher, because SPARK_CONF_DIR points at conf/: spark-submit.sh sets it, and for a Python that was
started directly (pytest, a notebook) `spark_session` does. So a test runs with the settings of a job.

In a process there is one Spark context. The first call makes it, later ones return it under its first name. Each session
knows topics as a source, format("lakelog").

At the end of the process `stop_session` lets tasks come to rest before Spark stops: a task in whose middle Spark stops
fails, and says so on standard error, although nobody needs it any more. After SIGTERM `abandon_session` stops Spark at once.

What Spark says on standard error is for people: where it says something for a reason that is no reason here, the reason is
removed. pipeline/spark/spark_jvm.sh starts its JVM without a module that Java warns of. `_LOCAL_SETTINGS` are for a driver that
is its own executor. PySpark's loggers, which print an error that PySpark also raises, are given nowhere to print.
"""

import atexit
import logging
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from weakref import WeakSet

import pyarrow as pa
import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from lakelog.spark.registering import register
from pipeline.spark.failures import SPARK_ERRORS
from pipeline.spark.spark_python import spark_python
from pipeline.spark.termination import TERMINATION

_prepared: WeakSet[SparkSession] = WeakSet()
"""Sessions that were returned before, and need nothing more."""
_daemon_starts: dict[str, threading.Thread] = {}
"""By Spark application of this process: the thread in which its Python daemon is started."""

_EXECUTOR_SECONDS = 15.0
"""So long the start of the Python daemon is waited for where no task runs: an application may be given no executor."""
_DAEMON_SECONDS = 300.0
"""So long at most it is waited for in any case; on a busy machine it takes a minute."""
_REST_SECONDS = 15.0
"""So long at most tasks that were told to end are waited for."""

CONF_DIR = Path(__file__).resolve().parents[2] / "conf"

_JVM = Path(__file__).resolve().with_name("spark_jvm.sh")

_LOCAL_SETTINGS = {"spark.executor.heartbeatInterval": "1d", "spark.network.timeout": "7d"}
"""Of a driver that is its own executor, unless the user sets them. By heartbeats a driver learns that an executor is gone.
A driver that missed its own for two minutes, since its machine was busy, removed itself from its own list, could not enter it
again, and said so with a stack trace every ten seconds, for good. The timeout has to be longer than the interval; between two
parts of one process it finds no failure either."""

_CONTEXT_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Of PySpark: where an error names a place in SQL or Python, it prints it as some kilobytes of JSON before it raises it."""


def spark_session(app_name: str) -> SparkSession:
    """The session of this process, made where there is none.

    `app_name` is what cluster managers and Spark's UI show, unless the user's own spark-submit options name the
    application. Every setting comes from the JVM's configuration (the options, then conf/spark-defaults.conf or the
    user's SPARK_CONF_DIR). Only what that leaves open is set here (`local_settings`).
    """
    _prepare_environment()
    with TERMINATION.held_back():  # a JVM whose Python has gone while it starts prints why it cannot go on
        builder = SparkSession.builder
        if not _named_by_options():
            builder = builder.appName(app_name)
        if SparkContext._active_spark_context is None:  # noqa: SLF001 - nothing else tells, without making one
            _start_jvm()
            for key, value in local_settings(dict(SparkConf().getAll())).items():
                builder = builder.config(key, value)
        session = builder.getOrCreate()
    if session not in _prepared:
        _prepared.add(session)
        register(session)
        atexit.register(partial(stop_session, session))  # else the JVM leaves first, in the middle of what it does
        TERMINATION.when_asked(partial(abandon_session, session))
        for name in _CONTEXT_LOGGERS:
            PySparkLogger.getLogger(name).handlers = [logging.NullHandler()]
    return session


def local_settings(given: Mapping[str, str]) -> dict[str, str]:
    """The settings of a driver that is its own executor; none if one of them is given, or executors are elsewhere."""
    master = given.get("spark.master", "")
    if not (master == "local" or master.startswith("local[")) or not _LOCAL_SETTINGS.keys().isdisjoint(given):
        return {}
    return _LOCAL_SETTINGS


def _start_jvm() -> None:
    """Let PySpark start its JVM by our program; where there is one already, or no such program, nothing is different."""
    if SparkContext._gateway is None and os.access(_JVM, os.X_OK):  # noqa: SLF001 - PySpark starts it on first use only
        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
        gateway = launch_gateway(popen_kwargs={"executable": str(_JVM)})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - a SparkContext of ours would take no builder


def stop_session(spark: SparkSession) -> None:
    """Stop Spark when its tasks are at rest: the one that starts the Python daemon has ended, all others were told to."""
    context = spark.sparkContext
    if context._jsc is None:  # noqa: SLF001 - nothing else tells that it was stopped
        return
    with suppress(*SPARK_ERRORS, OSError):  # the JVM has died or is dying, and with it its tasks
        starting = _daemon_starts.get(context.applicationId)
        if starting is not None:
            _await_daemon(context, starting)
        context.cancelAllJobs()
        deadline = time.monotonic() + _REST_SECONDS
        while _has_running_tasks(context) and time.monotonic() < deadline:
            time.sleep(0.05)
    spark.stop()


def abandon_session(spark: SparkSession) -> None:
    """Stop Spark at once, in the middle of its tasks; not to be called by a thread that may be in a call to the JVM.

    What the JVM prints from here on is that work ended in its middle, which is what was asked. So it prints nothing.
    """
    context = spark.sparkContext
    if context._jsc is not None:  # noqa: SLF001 - nothing else tells that it was stopped
        with suppress(*SPARK_ERRORS, OSError):  # the JVM is gone
            java = context._gateway.jvm.java  # type: ignore[union-attr]  # noqa: SLF001 - the way to Java
            context.setLogLevel("OFF")
            java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
            context.cancelAllJobs()
            spark.stop()


def _await_daemon(context: SparkContext, starting: threading.Thread) -> None:
    """Wait until the task that starts the Python daemon has ended, if it has begun or soon begins."""
    began = time.monotonic()
    while starting.is_alive() and time.monotonic() < began + _DAEMON_SECONDS:
        starting.join(0.1)
        if time.monotonic() > began + _EXECUTOR_SECONDS and not _has_running_tasks(context):
            return


def _has_running_tasks(context: SparkContext) -> bool:
    """Whether any executor has a task, also one of a job that has ended without it."""
    jvm_context = context._jsc  # noqa: SLF001 - PySpark's own status tracker does not tell of executors
    assert jvm_context is not None, "a context that was not stopped has a JVM"
    return any(executor.numRunningTasks() for executor in jvm_context.sc().statusTracker().getExecutorInfos())


def start_python_daemon(spark: SparkSession) -> None:
    """Let Spark start its Python daemon now, beside what the driver does next, and not with the first task.

    The daemon imports for some seconds before it forks the first worker (pipeline/python_daemon.py), and stays for as
    long as the application: a second call does nothing. If this does not work, nothing is lost: the first task starts
    it, and says what is wrong.
    """
    application = spark.sparkContext.applicationId
    if application in _daemon_starts:
        return

    def touch() -> None:
        with suppress(Exception):
            spark.range(1).mapInArrow(_unchanged, "id bigint").collect()

    _daemon_starts[application] = thread = threading.Thread(target=touch, name="python-daemon", daemon=True)
    thread.start()


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _prepare_environment() -> None:
    """Say where settings and Python are, as spark-submit.sh does. Only the JVM's start reads it: it is too late after.

    Without PYSPARK_PYTHON Spark takes the `python3` of PATH for its workers, which may be of another version. Where it
    names another Python than the one that runs now, that one is used as it is.
    """
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if os.environ.get(name, sys.executable) == sys.executable:
            os.environ[name] = spark_python()
    if CONF_DIR.is_dir():  # not so where only the packages are installed
        os.environ.setdefault("SPARK_CONF_DIR", str(CONF_DIR))


def _named_by_options() -> bool:
    options = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    return any(option.split("=")[0] == "--name" or option.startswith("spark.app.name=") for option in options)
