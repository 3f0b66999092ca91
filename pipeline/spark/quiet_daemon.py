"""Runs Spark's Python daemon so that its workers end silently after the JVM has closed the connection.

A worker sends its results to the JVM over a connection. The JVM closes the connection if it needs no more of a task: at
the end of a session, after a LIMIT, when a task was cancelled. PySpark's daemon then prints a traceback about a broken
pipe. The workers of this daemon end silently, because nobody reads their message: before the first task, between two
tasks or in the middle of one. A task that fails while the JVM is connected reports its error to the JVM, as in PySpark.
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

_CLOSED = (BrokenPipeError, ConnectionResetError)

_worker = daemon.worker


def main() -> None:
    """Run the daemon; its first argument names the workers' program, as PySpark's daemon has it."""
    named = len(sys.argv) > 1 and sys.argv[1].startswith("pyspark")
    program = importlib.import_module(sys.argv[1] if named else "pyspark.worker")
    program.main = flushed(program.main)  # type: ignore[attr-defined]
    daemon.worker = worker
    vars(daemon)["write_int"] = greeting(os.getpid())
    daemon.manager()


def worker(sock: socket, authenticated: bool) -> int:
    """Serve one task of the JVM; the daemon calls it in each worker, time and again until it is not 0."""
    try:
        if authenticated and not sock.recv(1, MSG_PEEK):
            return 1  # there is no further task
        return int(_worker(sock, authenticated))
    except (*_CLOSED, EOFError):  # EOFError: of the question whether there is a further task; others go to the JVM
        return 1


def greeting(manager: int) -> Callable[[int, BinaryIO], None]:
    """How the daemon tells numbers to the JVM: a worker that cannot tell its process id any more ends."""

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
    main()
