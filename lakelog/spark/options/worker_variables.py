"""Sets the environment variables of Spark's Python workers."""

from __future__ import annotations

from collections.abc import Collection
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakelog.spark.options.source_options import SESSION_ROOT, worker_environment
from storage_engine.record.batch_limit import VARIABLE, most_batch_bytes

_ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(128 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""Environment variables for the C library of Spark's Python workers. A worker reads megabytes, frees them and reads the
next ones. With these values, the worker uses the same memory again. With the C library's own values, the worker returns
the memory to the operating system each time, and needs a fifth more processor time."""
_variables: WeakKeyDictionary[SparkContext, Collection[str]] = WeakKeyDictionary()
"""The names of the variables that the last call put into the environment, which all sessions share."""


def set_worker_environment(spark: SparkSession) -> dict[str, str]:
    """Let the Python workers that start from now on read and write topics. The variables of the last call that are no longer
    needed are removed. Returns the variables, without those for the C library."""
    variables = {VARIABLE: str(most_batch_bytes()), **worker_environment(spark.conf.get(SESSION_ROOT, None))}
    context = spark.sparkContext
    environment = context.environment
    for name in set(_variables.get(context, ())) - variables.keys():
        environment.pop(name, None)
    environment.update(variables)
    _variables[context] = variables.keys()
    for name, value in _ALLOCATOR.items():
        environment.setdefault(name, value)
    return variables
