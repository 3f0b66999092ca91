"""Spark's Python daemon with what tasks need imported before it forks its workers.

numba, pyarrow and pandas take some four seconds of a core to import. Spark forks each worker from one daemon, so what
the daemon has, every worker has at once, and shares the memory. Named by spark.python.daemon.module. Its workers end
without a word where the JVM has left (pipeline/quiet_daemon.py).
"""

from __future__ import annotations

import pandas as pd

from pipeline import exporting, lakelog_source, publishing, quiet_daemon, staging_task
from storage_engine.topic import compaction, merging

PRELOADED = (pd, compaction, exporting, lakelog_source, merging, publishing, staging_task)

if __name__ == "__main__":
    quiet_daemon.main()
