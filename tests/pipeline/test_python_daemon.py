"""Spark's Python daemon as the JVM starts it, with this test in the place of the JVM: whose connection closes is silent."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

PROJECT = Path(__file__).resolve().parents[2]
WORKERS = 4
PATIENCE = 60


def test_workers_whose_jvm_has_closed_the_connection_end_without_a_word(tmp_path: Path) -> None:
    said = tmp_path / "stderr"
    with said.open("wb") as stderr:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "pipeline.python_daemon", "pyspark.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, cwd=PROJECT,
            env=os.environ | {
                "PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(tmp_path),
                "SPARK_REUSE_WORKER": "1",
            },
        )  # fmt: skip
    try:
        assert daemon.stdout
        path = daemon.stdout.read(number(daemon.stdout)).decode()
        # Between two tasks, and in the middle of what a task begins with.
        pids = [connect_and_close(path, sent) for sent in (b"", b"\0\0\0\0", b"\0\0\0\0\0\0") for _ in range(WORKERS)]
        deadline = time.monotonic() + PATIENCE
        while any(is_running(pid) for pid in pids):
            assert time.monotonic() < deadline, "a worker waits for a JVM that is gone"
            time.sleep(0.05)
        assert daemon.poll() is None
        assert daemon.stdin
        daemon.stdin.close()  # so the JVM asks it to end
        daemon.wait(PATIENCE)
    finally:
        daemon.kill()
        daemon.wait()

    assert said.read_text() == ""


def connect_and_close(path: str, sent: bytes) -> int:
    """Have a worker forked, send it this, leave; returns its process id."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as jvm:
        jvm.connect(path)
        with jvm.makefile("rb") as answers:
            pid = number(answers)
        jvm.sendall(sent)
    return pid


def number(file: IO[bytes]) -> int:
    """The next one, as Spark and its workers send them to each other."""
    (found,) = struct.unpack(">i", file.read(4))
    return int(found)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_what_cannot_be_written_any_more_is_forgotten_and_the_worker_s_own_failure_is_not(
    error: type[OSError], tmp_path: Path
) -> None:
    from pipeline.python_daemon import flushed

    class Closed:
        """A connection's file whose other end is closed."""

        def __init__(self) -> None:
            self.file = (tmp_path / error.__name__).open("wb")

        def flush(self) -> None:
            raise error

        def fileno(self) -> int:
            return self.file.fileno()

    def main(infile: object, outfile: object) -> None:
        raise SystemExit(-1)

    closed = Closed()
    with pytest.raises(SystemExit):
        flushed(main)(closed, closed)  # type: ignore[arg-type]
    os.write(closed.fileno(), b"what the daemon writes afterwards")

    assert (tmp_path / error.__name__).read_bytes() == b""
    closed.file.close()
