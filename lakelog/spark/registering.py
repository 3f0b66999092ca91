"""Makes topics known to a Spark session as a source and sink, format("lakelog")."""

from __future__ import annotations

from importlib.util import find_spec
from weakref import WeakSet

from pyspark.sql import SparkSession

from lakelog.spark.options.source_options import SESSION_ROOT, worker_environment
from lakelog.spark.source import LakelogSource
from storage_engine.record.batch_limit import VARIABLE, most_batch_bytes

_registered: WeakSet[SparkSession] = WeakSet()
"""The sessions that have the source. Spark warns if a source is registered twice."""


def register(spark: SparkSession) -> None:
    """Let a session read and write topics with `format("lakelog")`, in batches and streams.

    Reads and writes without the option `root` use LAKELOG_ROOT or the session's spark.lakelog.root, with their values at
    the time of this call.
    Executors need the packages lakelog and storage_engine. A second call changes nothing.
    """
    if spark not in _registered:
        environment = spark.sparkContext.environment  # of Spark's Python workers
        environment[VARIABLE] = str(most_batch_bytes())
        environment.update(worker_environment(spark.conf.get(SESSION_ROOT, None)))
        if find_spec("pyspark_lakelog") is None:  # Spark finds the source of a wheel itself, and warns of a second one
            spark.dataSource.register(LakelogSource)
        _registered.add(spark)
