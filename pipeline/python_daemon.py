"""Spark's Python daemon with what tasks need imported before it forks its workers.

numba, pyarrow and pandas take some four seconds of a core to import. Spark forks each worker from one daemon, so what
the daemon has, every worker has at once, and shares the memory. Named by spark.python.daemon.module.
"""

from __future__ import annotations

import pandas as pd
from pyspark.daemon import manager

from pipeline import exporting, lakelog_source, staging
from storage_engine.topic import cleaning

PRELOADED = (pd, cleaning, exporting, lakelog_source, staging)

if __name__ == "__main__":
    manager()
