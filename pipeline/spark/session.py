"""Starts and stops the Spark session of a process: of a job, a test or a notebook.

The settings are in conf/spark-defaults.conf. The levels of Spark's messages are in conf/log4j2.properties. Spark's own
launcher reads both files, because SPARK_CONF_DIR points to conf/. spark-submit.sh sets this variable. If Python was
started directly (pytest, a notebook), `spark_session` sets the variable. So tests run with the same settings as jobs.

A process has one Spark context. The first call of `spark_session` creates this context. Later calls return the same
context, with the application name of the first call. Sessions can read topics with format("lakelog"). For Lakelog's own
jobs, a session can start sooner without it (`complete_session`).

At the end of the process, `end_session` stops Spark, and the JVM ends. `stop_session` first waits until all tasks have
ended. If it did not wait, a running task would fail and print an error about work that is no longer needed. After
SIGTERM, `abandon_session` stops Spark immediately.

Spark's messages on standard error should only be about real problems. So this module removes the causes of three
needless messages. pipeline/spark/spark_jvm.sh starts the JVM without a Java module that causes a warning.
`_LOCAL_SETTINGS` prevent heartbeat errors if the driver is also the only executor. PySpark and py4j print some errors
that they also raise. This module silences them.
"""

import atexit
import logging
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pyarrow as pa
import pyspark
from py4j.java_gateway import JavaClass
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from lakelog.spark.options.worker_variables import set_worker_environment
from pipeline.spark.failures import SPARK_ERRORS
from pipeline.spark.spark_python import spark_python
from pipeline.spark.store_settings import open_stores
from pipeline.spark.termination import TERMINATION

_prepared: WeakSet[SparkSession] = WeakSet()
"""Sessions whose end is arranged, and whose workers have their environment."""
_complete: WeakSet[SparkSession] = WeakSet()
"""Sessions with everything that `complete_session` adds."""
_daemon_starts: dict[str, threading.Thread] = {}
"""By the id of a Spark application: the thread that starts its Python daemon."""

_EXECUTOR_SECONDS = 15.0
"""Longest wait for the start of the Python daemon while no task runs. The application may never get an executor."""
_DAEMON_SECONDS = 300.0
"""Longest wait for the start of the Python daemon in all cases; on a busy machine the start takes a minute."""
_REST_SECONDS = 15.0
"""Longest wait for the end of cancelled tasks."""

CONF_DIR = Path(__file__).resolve().parents[2] / "conf"

_JVM_PROGRAM = Path(__file__).resolve().with_name("spark_jvm.sh")

_LOCAL_SETTINGS = {"spark.executor.heartbeatInterval": "1d", "spark.network.timeout": "7d"}
"""Settings for a driver that is its own executor, unless the user sets them. A driver uses heartbeats to detect that an
executor has died, which is pointless within one process. Without these settings, a driver on a busy machine missed its
own heartbeats for two minutes. The driver then removed itself from its list of executors, could not register again, and
printed a stack trace every ten seconds until its end. Spark requires that the timeout is longer than the interval."""

_UMASK = "spark.hadoop.fs.permissions.umask-mode"

_CONTEXT_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""PySpark's loggers that print an error as kilobytes of JSON before PySpark raises it, if the error has a place in the code."""


def spark_session(app_name: str, root: str = "", *, complete: bool = True) -> SparkSession:
    """The session of this process; it is created if there is none.

    Cluster managers and Spark's UI show `app_name`, unless the user's spark-submit options name the application. The
    settings come from the spark-submit options, then from conf/spark-defaults.conf or the user's SPARK_CONF_DIR. This
    function sets only what these sources leave open (`local_settings`, `umask_setting`).

    Args:
        root: the URI of the job's root, for the credentials of object stores (`open_stores`).
        complete: whether the session has what `complete_session` adds. Lakelog's own jobs do not need it, and start sooner
            without it.
    """
    _prepare_environment()
    with TERMINATION.held_back():  # a JVM that starts prints an error if its Python ends meanwhile
        if SparkContext._active_spark_context is None:  # noqa: SLF001 - any public call would create one
            session = _new_session(app_name)
        else:
            session = SparkSession.builder.getOrCreate()
        context = session.sparkContext
        if session not in _prepared:  # before a signal can end this process
            atexit.register(partial(end_session, session))  # otherwise the JVM ends first, in the middle of its tasks
            TERMINATION.when_asked(partial(abandon_session, session))
            _silence_raised_errors(context)
            set_worker_environment(session)
            _prepared.add(session)
    open_stores(context, root)
    if complete:
        complete_session(session)
    return session


def complete_session(session: SparkSession) -> None:
    """Add what programs of users need: format("lakelog") and the functions of MLlib. A second call does nothing."""
    if session in _complete:
        return
    from lakelog.spark.registering import register  # its imports take longer than those of this module

    extension = _jvm(session.sparkContext).org.apache.spark.sql.ml.InternalFunctionRegistration
    if isinstance(extension, JavaClass):  # the JVM has MLlib
        extension().apply(None)
    register(session)
    _complete.add(session)


def _new_session(app_name: str) -> SparkSession:
    """The first session of a new context, without what `complete_session` adds."""
    _start_jvm()
    settings = SparkConf()
    given = dict(settings.getAll())
    if not _named_by_options():
        settings.setAppName(app_name)
    settings.setAll([*local_settings(given).items(), *umask_setting(given).items()])
    with _without_mllib(SparkContext.getOrCreate(settings)):
        return SparkSession.builder.getOrCreate()


@contextmanager
def _without_mllib(context: SparkContext) -> Iterator[None]:
    """A session that is created in this block does not register the functions of MLlib
    (pipeline/spark/jvm/WithoutMllib.java)."""
    jvm = _jvm(context)
    thread = jvm.java.lang.Thread.currentThread()
    loader = thread.getContextClassLoader()
    if loader is not None and isinstance(jvm.lakelog.WithoutMllib, JavaClass):  # not if the JVM has no jar of Lakelog
        thread.setContextClassLoader(jvm.lakelog.WithoutMllib(loader))
    try:
        yield
    finally:
        with suppress(*SPARK_ERRORS, OSError):  # the JVM has ended; the block has raised an error about it
            thread.setContextClassLoader(loader)


def _jvm(context: SparkContext) -> Any:
    """Java's classes, by name."""
    jvm = context._jvm  # noqa: SLF001 - no public access to Java
    assert jvm is not None, "a context that was not stopped has a JVM"
    return jvm


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Import a module in a thread while the block runs. The block starts Spark, which is mostly a wait for the JVM. After
    the block, the caller imports the module again, and gets its errors there."""

    def load() -> None:
        with suppress(Exception):
            import_module(module)

    thread = threading.Thread(target=load, name="imports")
    thread.start()
    try:
        yield
    finally:
        thread.join()


def local_settings(given: Mapping[str, str]) -> dict[str, str]:
    """The settings of a driver that is its own executor; empty if the user gives one of these settings, or if the
    executors are other processes."""
    master = given.get("spark.master", "")
    if not (master == "local" or master.startswith("local[")) or not _LOCAL_SETTINGS.keys().isdisjoint(given):
        return {}
    return _LOCAL_SETTINGS


def umask_setting(given: Mapping[str, str]) -> dict[str, str]:
    """The setting that gives Spark's files the umask of this process; empty if the user gives this setting.

    Hadoop does not use the umask of its process, but a setting, by default 022. Without this function, Spark's files in a
    private root would be readable for everybody, and in a root of a group only their owner could write them.
    """
    if _UMASK in given:
        return {}
    umask = os.umask(0o077)  # the umask can only be read by setting it
    os.umask(umask)
    return {_UMASK: f"{umask:03o}"}


def _start_jvm() -> None:
    """Let PySpark start its JVM with spark_jvm.sh. Does nothing if the JVM is running, or if there is no such program."""
    if SparkContext._gateway is None and os.access(_JVM_PROGRAM, os.X_OK):  # noqa: SLF001 - None until PySpark's first use of the JVM
        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
        gateway = launch_gateway(popen_kwargs={"executable": str(_JVM_PROGRAM)})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - SparkSession.builder accepts no gateway


def stop_session(spark: SparkSession) -> None:
    """Stop Spark after its tasks have ended. The task that starts the Python daemon is awaited, and the other tasks are
    cancelled."""
    context = spark.sparkContext
    if context._jsc is None:  # noqa: SLF001 - nothing else shows that the context was stopped
        return
    with suppress(*SPARK_ERRORS, OSError):  # the JVM has died or is ending, so its tasks end too
        starting = _daemon_starts.get(context.applicationId)
        if starting is not None:
            _await_daemon(context, starting)
        context.cancelAllJobs()
        deadline = time.monotonic() + _REST_SECONDS
        while _has_running_tasks(context) and time.monotonic() < deadline:
            time.sleep(0.05)
    _stop(spark)


def end_session(spark: SparkSession) -> None:
    """Stop Spark, and close the standard input of the JVM. Then the JVM ends while Python ends. Otherwise the JVM would end
    after Python, and programs that read the job's output to its end would wait for the JVM."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - no public access to the process
    stop_session(spark)
    with suppress(*SPARK_ERRORS, OSError):  # the JVM has closed its connections already
        gateway.shutdown()  # type: ignore[union-attr]  # a context that was started has a gateway
        if gateway.proc is not None:  # type: ignore[union-attr]  # None: spark-submit has started this process
            gateway.proc.stdin.close()  # type: ignore[union-attr]


def abandon_session(spark: SparkSession) -> None:
    """Stop Spark immediately, without waiting for its tasks. Do not call this from a thread that may be in a call to the JVM.

    From here on the JVM could only print that tasks were interrupted, which is intended. So its output is silenced.
    """
    context = spark.sparkContext
    if context._jsc is not None:  # noqa: SLF001 - nothing else shows that the context was stopped
        with suppress(*SPARK_ERRORS, OSError):  # the JVM has ended already
            java = context._gateway.jvm.java  # type: ignore[union-attr]  # noqa: SLF001 - no public access to Java
            context.setLogLevel("OFF")
            java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
            context.cancelAllJobs()
            _stop(spark)


def _stop(spark: SparkSession) -> None:
    """Stop Spark, but do not wait for PySpark's thread that receives the updates of accumulators. It checks only once a
    second whether it should end. If the JVM has ended, there is nothing to stop."""
    context = spark.sparkContext
    receiver, context._accumulatorServer = context._accumulatorServer, None  # type: ignore[assignment]  # noqa: SLF001
    with suppress(*SPARK_ERRORS, OSError):
        spark.stop()
    if receiver is not None:  # None: another thread stops Spark
        receiver.server_shutdown = True
        if isinstance(receiver.server_address, str):
            Path(receiver.server_address).unlink(missing_ok=True)


def _silence_raised_errors(context: SparkContext) -> None:
    """Let PySpark and py4j not print errors that they also raise, and errors of a connection that the JVM has closed."""
    for name in _CONTEXT_LOGGERS:
        PySparkLogger.getLogger(name).handlers = [logging.NullHandler()]
    py4j = logging.getLogger("py4j")
    py4j.handlers, py4j.propagate = [logging.NullHandler()], False
    logging.getLogger().addFilter(_is_not_of_py4j)
    receiver = context._accumulatorServer  # noqa: SLF001 - no public access to the updates of accumulators
    print_error = receiver.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exception(), (EOFError, ConnectionError)):
            print_error(request, address)

    receiver.handle_error = handle_error  # type: ignore[assignment, method-assign]


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """A filter for the root logger, on which py4j prints errors of its connections."""
    return Path(record.pathname).parent.name != "py4j"


def _await_daemon(context: SparkContext, starting: threading.Thread) -> None:
    """Wait until the task that starts the Python daemon has ended. Stop waiting if the task does not begin soon."""
    began = time.monotonic()
    while starting.is_alive() and time.monotonic() < began + _DAEMON_SECONDS:
        starting.join(0.1)
        if time.monotonic() > began + _EXECUTOR_SECONDS and not _has_running_tasks(context):
            return


def _has_running_tasks(context: SparkContext) -> bool:
    """Whether any executor runs a task. Tasks of a job that has already ended are included."""
    jvm_context = context._jsc  # noqa: SLF001 - PySpark's status tracker has no executors
    assert jvm_context is not None, "a context that was not stopped has a JVM"
    return any(executor.numRunningTasks() for executor in jvm_context.sc().statusTracker().getExecutorInfos())


def start_python_daemon(spark: SparkSession) -> None:
    """Start Spark's Python daemon in the background, before the first task needs it.

    The daemon's imports take some seconds before it forks the first worker (pipeline/python_daemon.py). The daemon runs
    until the application ends, so a second call does nothing. A failure here is ignored: the first task starts the
    daemon again and reports the error.
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
    """Set the environment variables of Spark's configuration and Python, as spark-submit.sh does.

    The variables must be set before the JVM starts, because Spark reads them only at that time. Without PYSPARK_PYTHON,
    Spark would run its workers with the `python3` of PATH, which may be of another version. If PYSPARK_PYTHON names a
    Python that is not the running one, the variable is not changed.
    """
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if os.environ.get(name, sys.executable) == sys.executable:
            os.environ[name] = spark_python()
    if CONF_DIR.is_dir():  # missing if only the packages are installed
        os.environ.setdefault("SPARK_CONF_DIR", str(CONF_DIR))


def _named_by_options() -> bool:
    options = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    return any(option.split("=")[0] == "--name" or option.startswith("spark.app.name=") for option in options)
