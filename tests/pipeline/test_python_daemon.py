"""Spark's Python daemon: a worker prints nothing after its connection to the JVM is closed. In these tests, the test
itself takes the place of the JVM.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyspark
import pytest

from pipeline.spark.spark_python import without_copies

PROJECT = Path(__file__).resolve().parents[2]
LAKELOG_PYTHON = Path(sys.executable).with_name("lakelog-python")
WORKERS = 4
PATIENCE = 60


@pytest.mark.parametrize(("module", "program"), [
    ("pipeline.python_daemon", "pyspark.worker"),  # of tasks
    ("pyspark.daemon", "pyspark.sql.worker.lookup_data_sources"),  # of the planner, under the name that Spark gives it
    ("pyspark.daemon", "pyspark.sql.worker.plan_data_source_read"),
    ("pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner"),
])  # fmt: skip
def test_workers_whose_jvm_has_closed_the_connection_end_without_a_word(
    module: str, program: str, tmp_path: Path
) -> None:
    with started(module, program, tmp_path) as (daemon, path):
        os.kill(daemon.pid, signal.SIGSTOP)  # so that the first are gone before a worker tells its process id
        gone = [connected(path) for _ in range(WORKERS)]
        for jvm in gone:
            jvm.close()
        os.kill(daemon.pid, signal.SIGCONT)
        # Between two tasks, and in the middle of what a task begins with.
        for sent in (b"", b"\0\0\0\0", b"\0\0\0\0\0\0"):
            for _ in range(WORKERS):
                with connected(path) as jvm, jvm.makefile("rb") as answers:
                    number(answers)
                    jvm.sendall(sent)
        deadline = time.monotonic() + PATIENCE
        while has_children(daemon.pid):
            assert time.monotonic() < deadline, "a worker waits for a JVM that is gone"
            time.sleep(0.05)
        assert daemon.poll() is None

    assert (tmp_path / "stderr").read_text() == ""


def test_what_fails_in_a_planner_s_worker_is_reported_to_a_jvm_that_listens(tmp_path: Path) -> None:
    with (
        started("pyspark.daemon", "pyspark.sql.worker.create_data_source", tmp_path) as (_, path),
        connected(path) as jvm,
        jvm.makefile("rb") as answers,
    ):
        number(answers)
        jvm.sendall(b"\0\0\0\0032.7")  # another Python
        jvm.shutdown(socket.SHUT_WR)
        failure = answers.read()

    assert b"PYTHON_VERSION_MISMATCH" in failure
    assert b"Traceback" in failure


def test_a_daemon_has_imported_the_source_and_exempted_its_objects_from_collection_before_it_forks() -> None:
    # Each daemon is a fork of one process, which has imported only the module of the daemons.
    said = """
import gc, os, sys
from pipeline.spark import quiet_daemon as quiet

def shown():
    print(sys.argv[1], "lakelog.spark.data_source" in sys.modules, gc.get_freeze_count() > 10_000, flush=True)

quiet.daemon.manager = shown
for program in sys.argv[1:]:
    if not os.fork():
        sys.argv[1:] = [program]
        quiet.main()
        os._exit(0)
    os.wait()
"""
    loaded = {
        "pyspark.sql.worker.create_data_source": True,
        "pyspark.sql.streaming.python_streaming_source_runner": True,
        "pyspark.sql.worker.lookup_data_sources": False,  # runs once, without the source
    }
    printed = subprocess.run(
        [sys.executable, "-c", said, *loaded], cwd=PROJECT, check=True, capture_output=True, text=True
    )
    assert printed.stdout == "".join(f"{program} {has_source} True\n" for program, has_source in loaded.items())


def test_spark_is_given_the_python_whose_daemons_are_silent() -> None:
    said = """
import json, os, sys
from pipeline.spark.session import _prepare_environment

for named in json.loads(sys.argv[1]):
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.pop(name, None)
    os.environ |= named
    _prepare_environment()
    print(os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"])
"""
    ours = str(LAKELOG_PYTHON)
    expected: list[tuple[dict[str, str], list[str]]] = [
        ({}, [ours, ours]),
        ({"PYSPARK_PYTHON": sys.executable}, [ours, ours]),
        ({"PYSPARK_PYTHON": "python3.99"}, ["python3.99", ours]),
    ]
    printed = subprocess.run(
        [sys.executable, "-c", said, json.dumps([named for named, _ in expected])],
        check=True, capture_output=True, text=True, cwd=PROJECT,
    ).stdout  # fmt: skip
    assert [line.split() for line in printed.splitlines()] == [given for _, given in expected]
    version = subprocess.run(
        [ours, "-c", "import sys; print(sys.executable)"], check=True, capture_output=True, text=True
    )
    assert version.stdout.strip() == sys.executable


def test_spark_s_processes_import_the_installed_pyspark_and_what_the_user_adds(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("found = True\n")
    (zipped,) = (Path(pyspark.__file__).parent / "python/lib").glob("pyspark.zip")
    printed = subprocess.run(
        [LAKELOG_PYTHON, "-c", "import mine, pyspark; print(pyspark.__file__)"],
        env=os.environ | {"PYTHONPATH": f"{zipped}:{tmp_path}"}, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert printed.strip() == pyspark.__file__
    elsewhere = tmp_path / "spark/python/lib/pyspark.zip"  # of a Spark that is not the installed one
    assert without_copies(f"{elsewhere}:{zipped}", sys.path) == str(elsewhere)
    (linked := tmp_path / "current").symlink_to(zipped.parents[3])
    assert without_copies(f"{elsewhere}:{linked / zipped.relative_to(zipped.parents[3])}", sys.path) == str(elsewhere)


@contextmanager
def started(module: str, program: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A daemon as the JVM starts it, which has ended afterwards, and where it listens; it writes folder/stderr."""
    # The name of a socket may have some hundred characters only, and a test's folder has most of them.
    sockets = tempfile.mkdtemp()
    with (folder / "stderr").open("wb") as stderr:
        daemon = subprocess.Popen(
            [LAKELOG_PYTHON, "-m", module, program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, cwd=PROJECT,
            env=os.environ | {
                "PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": sockets,
                "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1", "SPARK_REUSE_WORKER": "1",
            },
        )  # fmt: skip
    try:
        assert daemon.stdout
        yield daemon, daemon.stdout.read(number(daemon.stdout)).decode()
        assert daemon.stdin
        daemon.stdin.close()  # so the JVM asks it to end
        daemon.wait(PATIENCE)
    finally:
        daemon.kill()
        daemon.wait()
        shutil.rmtree(sockets)


def connected(path: str) -> socket.socket:
    jvm = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    jvm.connect(path)
    return jvm


def number(file: IO[bytes]) -> int:
    """The next one, as Spark and its workers send them to each other."""
    (found,) = struct.unpack(">i", file.read(4))
    return int(found)


def has_children(pid: int) -> bool:
    listed = subprocess.run(["ps", "-A", "-o", "ppid="], check=True, capture_output=True, text=True)
    return str(pid) in listed.stdout.split()


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_what_cannot_be_written_any_more_is_forgotten_and_the_worker_s_own_failure_is_not(
    error: type[OSError], tmp_path: Path
) -> None:
    from pipeline.spark.quiet_daemon import flushed

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
