"""Tells whether the JVM that this process started has ended. Does not import Spark."""

from __future__ import annotations

import sys


def is_jvm_dead() -> bool:
    """Whether this process has started a JVM that no longer runs. PySpark does not start another one in this process."""
    pyspark = sys.modules.get("pyspark")
    gateway = pyspark.SparkContext._gateway if pyspark is not None else None  # noqa: SLF001 - there is no public access
    process = getattr(gateway, "proc", None)
    return process is not None and process.poll() is not None
