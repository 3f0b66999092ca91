"""Runs Spark's Python daemon so that its workers end silently after the JVM has closed the connection.

A worker sends its results to the JVM over a connection. The JVM closes the connection if it needs no more results of a
task: at the end of a session, after a LIMIT, or when a task is cancelled. PySpark's daemon then prints a traceback
about a broken pipe. This traceback is of no use. So the workers of this daemon end silently, both between two tasks and
in the middle of a task. If a task fails while the JVM is connected, the task reports its error to the JVM. PySpark's
own daemon does the same.

To plan a read or a write of a Python data source, Spark starts such a daemon for each program in `_PLANNERS`. In such a
daemon, a worker ends after each refused plan and after each stream, and then the daemon forks a new worker. So the
daemon imports Lakelog's source before it forks the first worker. Otherwise each new worker would import the source
again, which takes about half a second.

PySpark collects the garbage of a worker after each task. The process has many modules, so each collection takes up to
75 milliseconds of processor time. So the daemon exempts its objects from garbage collection before it forks workers.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from socket import MSG_PEEK, socket
from typing import BinaryIO

from pyspark import daemon
from pyspark.serializers import write_int

from lakelog.garbage_collection import exempt_modules_from_collection

_CLOSED = (BrokenPipeError, ConnectionResetError)

_SOURCE = "lakelog.spark.data_source"
_PLANNERS = frozenset(
    f"pyspark.sql.{name}"
    for name in (
        "streaming.python_streaming_source_runner", "worker.commit_data_source_write", "worker.create_data_source",
        "worker.plan_data_source_read", "worker.python_streaming_sink_runner", "worker.write_into_data_source",
    )
)  # fmt: skip
"""The programs that run code of a Python data source on the driver's host."""

_worker = daemon.worker


def main() -> None:
    """Run the daemon. The first argument is the module of the workers' program, as in PySpark's daemon."""
    named = len(sys.argv) > 1 and sys.argv[1].startswith("pyspark")
    program = importlib.import_module(sys.argv[1] if named else "pyspark.worker")
    if program.__name__ in _PLANNERS:
        importlib.import_module(_SOURCE)
    program.main = flushed(program.main)  # type: ignore[attr-defined]
    daemon.worker = worker
    vars(daemon)["write_int"] = greeting(os.getpid())
    exempt_modules_from_collection()
    daemon.manager()


def worker(sock: socket, authenticated: bool) -> int:
    """Serve one task of the JVM. In each worker, the daemon calls this function again until the result is not 0."""
    try:
        if authenticated and not sock.recv(1, MSG_PEEK):
            return 1  # there is no further task
        return int(_worker(sock, authenticated))
    except (*_CLOSED, EOFError):  # EOFError: the JVM closed the connection instead of sending another task
        return 1


def greeting(manager: int) -> Callable[[int, BinaryIO], None]:
    """The function that sends numbers to the JVM. A worker that can no longer send its process id ends."""

    def tell(value: int, outfile: BinaryIO) -> None:
        try:
            write_int(value, outfile)  # type: ignore[no-untyped-call]
            outfile.flush()
        except _CLOSED:
            if os.getpid() == manager:
                raise
            os._exit(1)

    return tell


def flushed(main: Callable[[BinaryIO, BinaryIO], None]) -> Callable[[BinaryIO, BinaryIO], None]:
    """A worker's main program that flushes its output at the end, and drops the output if the connection is closed.

    Otherwise the daemon would flush the output, and print a traceback for a closed connection.
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
    main()
