"""Starts a server program on a free local port, and stops the program when a block of code ends."""

from __future__ import annotations

import http.client
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.jdbc.connecting import connected
from pipeline.jdbc.database import DatabaseAccessError, DatabaseUnavailableError
from pipeline.settings.jdbc_settings import DatabaseTarget
from tests.free_ports import free_ports

PATIENCE_SECONDS = 120
CERTIFICATE = Path(__file__).parent / "certificate"
"""The certificate of the databases, for 127.0.0.1, and its key. Only tests trust it."""
ATTEMPTS = 5


@contextmanager
def serving(command: Callable[[int], Sequence[str | Path]], environment: Mapping[str, str], path: str) -> Iterator[int]:
    """Run a server while the block runs. The block gets the server's port on 127.0.0.1, and begins when the server
    answers.

    Another process can take the free port before the server does. Then the server ends at once, and is started again
    with another port.

    Args:
        command: the command for a port. An error quotes what the command prints.
        path: a path for which the server has an answer, whatever the status.
    """
    with tempfile.NamedTemporaryFile() as said:
        for _ in range(ATTEMPTS):
            (port,) = free_ports(1)
            process = subprocess.Popen(command(port), env=environment, stdout=said, stderr=said)
            try:
                if _answers(process, port, path):
                    yield port
                    return
            finally:
                process.kill()
                process.wait()
        raise RuntimeError(f"the server does not start: {Path(said.name).read_text()}")


def _answers(process: subprocess.Popen[bytes], port: int, path: str) -> bool:
    """Wait until this process has bound its port and answers. False if the process ends or answers too late."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        try:
            connection.request("GET", path)
            connection.getresponse().read()
        except OSError:
            time.sleep(0.02)
        else:
            time.sleep(0.05)  # if the answer came from another process, this process ends
            return process.poll() is None
        finally:
            connection.close()
    return False


@contextmanager
def answering(
    target: DatabaseTarget, process: subprocess.Popen[bytes], log: Path, end: signal.Signals = signal.SIGKILL
) -> Iterator[DatabaseTarget]:
    """Run the block as soon as a database accepts the user of the target. Then end the server: nothing of its data is used
    again.

    Raises:
        RuntimeError: the server ended, or answers too late.
    """
    try:
        _wait_for(target, process, log)
        yield target
    finally:
        process.send_signal(end)
        process.wait()


def _wait_for(target: DatabaseTarget, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with connected(target):
                return
        except (DatabaseUnavailableError, DatabaseAccessError):  # MariaDB has no users before it has read its tables
            time.sleep(0.05)
    raise RuntimeError(f"the server does not start: {log.read_text()[-2000:]}")
