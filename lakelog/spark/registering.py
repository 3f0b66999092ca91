"""Registers format("lakelog") in a Spark session, so that the session can read and write topics."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaClass
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.udf import _wrap_function

from lakelog.spark.data_source import LakelogSource
from lakelog.spark.options.source_options import SESSION_ROOT, worker_environment
from storage_engine.record.batch_limit import VARIABLE, most_batch_bytes

_ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(128 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""Environment variables for the C library of Spark's Python workers. A worker reads megabytes, frees them and reads the
next ones. With these values, the worker uses the same memory again. With the C library's own values, the worker returns
the memory to the operating system each time, and needs a fifth more processor time."""
_registered: WeakKeyDictionary[SparkSession, dict[str, str]] = WeakKeyDictionary()
"""For each session that has the source, the environment variables with which the source was registered."""
_variables: WeakKeyDictionary[SparkContext, Collection[str]] = WeakKeyDictionary()
"""The names of the variables that the last registration put into the environment, which all sessions share."""


def register(spark: SparkSession) -> None:
    """Let a Spark session read and write topics with `format("lakelog")`, in batch queries and in streams.

    The default of the option `root` is LAKELOG_ROOT or the session's spark.lakelog.root. This function reads the
    default when it is called. If you change the default, call this function again. Spark then warns that the source is
    replaced. If the default has not changed, a second call has no effect. Executors need the packages lakelog and
    storage_engine.
    """
    session_root = spark.conf.get(SESSION_ROOT, None)
    variables = {VARIABLE: str(most_batch_bytes()), **worker_environment(session_root)}
    if _registered.get(spark) == variables:
        return
    environment = spark.sparkContext.environment  # of Spark's Python workers
    for name in _variables.get(spark.sparkContext, ()):
        environment.pop(name, None)
    environment.update(variables)
    _variables[spark.sparkContext] = variables.keys()
    for name, value in _ALLOCATOR.items():
        environment.setdefault(name, value)
    # Spark itself finds the source of an installed wheel, and warns if a second source is registered. But Spark does
    # not pass session_root to the source that it has found.
    if find_spec("pyspark_lakelog") is None or session_root:
        _register_source(spark)
    _registered[spark] = variables


def _register_source(spark: SparkSession) -> None:
    """Register the Python source, also if the JVM already has a class for format("lakelog").

    This class (pipeline/spark/jvm/ColumnarSource.java) reads the Python source in columns. Spark's own function refuses
    a Python source with the name of a class of the JVM.
    """
    jvm = spark._jvm  # noqa: SLF001 - nothing else shows the classes of the JVM
    if jvm is None or not isinstance(jvm.lakelog.ColumnarSource, JavaClass):
        spark.dataSource.register(LakelogSource)
        return
    sources = jvm.org.apache.spark.sql.execution.datasources.v2.python
    wrapped = _wrap_function(spark.sparkContext, LakelogSource)
    manager = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001
    manager.registerDataSource(LakelogSource.name(), sources.UserDefinedPythonDataSource(wrapped))
