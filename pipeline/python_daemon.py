"""Spark's Python daemon with what tasks need imported before it forks its workers.

numba, pyarrow and pandas take some four seconds of a core to import. Spark forks each worker from one daemon, so what
the daemon has, every worker has at once, and shares the memory. Named by spark.python.daemon.module.

At the end of a session the JVM closes its connections, and a worker that had something left to say prints a traceback
about a broken pipe to the user's terminal. Nobody is there to be told, so it ends without a word.
"""

from __future__ import annotations

from socket import socket

import pandas as pd
from pyspark import daemon

from pipeline import exporting, lakelog_source, publishing, staging_task
from storage_engine.topic import compaction, merging

PRELOADED = (pd, compaction, exporting, lakelog_source, merging, publishing, staging_task)

_worker = daemon.worker


def worker(sock: socket, authenticated: bool) -> int:
    """Serve one connection of the JVM; the daemon calls it in each worker, and ends the worker where it is not 0."""
    try:
        return int(_worker(sock, authenticated))
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
