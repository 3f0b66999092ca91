"""Runs Spark's Python daemon. Before the daemon forks its workers, it imports the modules and compiled functions
(kernels) that tasks need.

The import of numba, pyarrow and pandas needs about four seconds on one core. Spark forks all workers from one daemon,
so every worker starts with the daemon's modules and shares their memory. The setting spark.python.daemon.module names
this module. The workers end silently after the JVM has closed the connection (pipeline/spark/quiet_daemon.py).
"""

from __future__ import annotations

import pandas as pd

from lakelog.spark import data_source
from pipeline.delta import exporting
from pipeline.ingest import spark_publisher, staging_task
from pipeline.spark import quiet_daemon
from storage_engine.record.kernels.compiled import load_kernels
from storage_engine.topic.clean import topic_compaction, topic_merging

PRELOADED = (pd, topic_compaction, exporting, topic_merging, spark_publisher, data_source, staging_task)

if __name__ == "__main__":
    load_kernels()
    quiet_daemon.main()
