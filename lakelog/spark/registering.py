"""Registers format("lakelog") in a Spark session, so that the session can read and write topics."""

from __future__ import annotations

from importlib.util import find_spec
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession
from pyspark.sql.udf import _wrap_function

from lakelog.spark.data_source import LakelogSource
from lakelog.spark.options.source_options import SESSION_ROOT
from lakelog.spark.options.worker_variables import set_worker_environment

_registered: WeakKeyDictionary[SparkSession, dict[str, str]] = WeakKeyDictionary()
"""For each session that has the source, the environment variables with which the source was registered."""


def register(spark: SparkSession) -> None:
    """Let a Spark session read and write topics with `format("lakelog")`, in batch queries and in streams.

    The default of the option `root` is LAKELOG_ROOT or the session's spark.lakelog.root. This function reads the
    default when it is called. If you change the default, call this function again. Spark then warns that the source is
    replaced. If the default has not changed, a second call has no effect. Executors need the packages lakelog and
    storage_engine.
    """
    variables = set_worker_environment(spark)
    if _registered.get(spark) == variables:
        return
    # Spark itself finds the source of an installed wheel, and warns if a second source is registered. But Spark does
    # not pass spark.lakelog.root to the source that it has found.
    if find_spec("pyspark_lakelog") is None or spark.conf.get(SESSION_ROOT, None):
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
