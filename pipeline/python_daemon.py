"""Spark's Python daemon with what tasks need imported before it forks its workers.

numba, pyarrow and pandas take some four seconds of a core to import. Spark forks each worker from one daemon, so what
the daemon has, every worker has at once, and shares the memory. Named by spark.python.daemon.module.

What a worker has to say goes over its connection to the JVM, which the JVM closes where it wants no more of a task: at the
end of a session, after a LIMIT, when a task was cancelled. PySpark's workers print a traceback about a broken pipe then.
Ours end without a word, as nobody is there to be told: between two tasks and in the middle of one. What fails in a task
while the JVM listens is told to the JVM, as ever.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from socket import MSG_PEEK, socket
from typing import BinaryIO

import pandas as pd
from pyspark import daemon

from pipeline import exporting, lakelog_source, publishing, staging_task
from storage_engine.topic import compaction, merging

PRELOADED = (pd, compaction, exporting, lakelog_source, merging, publishing, staging_task)

_CLOSED = (BrokenPipeError, ConnectionResetError)

_worker = daemon.worker


def worker(sock: socket, authenticated: bool) -> int:
    """Serve one task of the JVM; the daemon calls it in each worker, time and again until it is not 0."""
    try:
        if authenticated and not sock.recv(1, MSG_PEEK):
            return 1  # there is no further task
        return int(_worker(sock, authenticated))
    except (*_CLOSED, EOFError):  # EOFError: of the question whether there is a further task; others go to the JVM
        return 1


def flushed(main: Callable[[BinaryIO, BinaryIO], None]) -> Callable[[BinaryIO, BinaryIO], None]:
    """A worker's main program, after which nothing is left to be written that cannot be.

    The daemon writes what is left, and prints a traceback where it cannot.
    """

    def flushed_main(infile: BinaryIO, outfile: BinaryIO) -> None:
        try:
            main(infile, outfile)
        finally:
            try:
                outfile.flush()
            except _CLOSED:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, outfile.fileno())
                os.close(nowhere)

    return flushed_main


if __name__ == "__main__":
    # The daemon looks for its worker's program in the same way.
    named = len(sys.argv) > 1 and sys.argv[1].startswith("pyspark")
    program = importlib.import_module(sys.argv[1] if named else "pyspark.worker")
    program.main = flushed(program.main)  # type: ignore[attr-defined]
    daemon.worker = worker
    daemon.manager()
