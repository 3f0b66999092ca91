"""The command `lakelog` as real processes: closed pipes, several writers at the same time, kill -9."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lakelog.cli.conftest import line
from tests.stores import root_at

COMMAND = [sys.executable, "-m", "lakelog.cli"]


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    return {**os.environ, "LAKELOG_ROOT": str(tmp_path)}


def start(environment, *arguments: str, stdin=subprocess.PIPE, stdout=subprocess.PIPE) -> subprocess.Popen[bytes]:
    command = [*COMMAND, *arguments]
    return subprocess.Popen(command, env=environment, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE)


def lines(first: int, count: int, size: int = 10) -> bytes:
    value = bytes(size)
    return "".join(f"{line(b'%d' % number, value)}\n" for number in range(first, first + count)).encode()


def keys(lakelog) -> list[int]:
    return [int(base64.b64decode(json.loads(each)["key"])) for each in lakelog("read", "--topic", "t").out.splitlines()]


def test_appends_of_two_processes_at_once_lose_nothing(lakelog, tmp_path, environment) -> None:
    environment["LAKELOG_ROOT"] = root_at(tmp_path / "root")
    lakelog("topics", "create", "t")
    appends = [start(environment, "append", "--topic", "t") for _ in range(2)]
    inputs = [lines(first, 500) for first in (0, 500)]
    for process, data in zip(appends, inputs, strict=True):
        assert process.stdin
        process.stdin.write(data)
        process.stdin.flush()
    ended = [process.communicate(timeout=60) for process in appends]
    assert [process.returncode for process in appends] == [0, 0], ended
    found = keys(lakelog)
    assert sorted(found) == list(range(1000))
    assert found in ([*range(1000)], [*range(500, 1000), *range(500)]), "one append is one commit"


@pytest.mark.posix("looks at staged files")
def test_an_append_that_is_killed_leaves_the_topic_as_it_was(lakelog, tmp_path, environment) -> None:
    root = tmp_path / "root"
    environment["LAKELOG_ROOT"] = str(root)
    lakelog("topics", "create", "t")
    lakelog("append", "--topic", "t", stdin=lines(0, 10))
    process = start(environment, "append", "--topic", "t")
    assert process.stdin
    process.stdin.write(lines(10, 20_000, 500))  # 13 MB: one chunk is staged, more is awaited
    process.stdin.flush()
    deadline = time.monotonic() + 60
    while not staged_bytes(root) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert staged_bytes(root) > 1_000_000
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    assert keys(lakelog) == list(range(10))
    assert lakelog("append", "--topic", "t", stdin=lines(10, 5)).status == 0
    assert keys(lakelog) == list(range(15))


def staged_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "staging").rglob("*.batches"))


def test_a_pipe_that_is_closed_ends_reading_quietly(lakelog, tmp_path, environment) -> None:
    environment["LAKELOG_ROOT"] = root_at(tmp_path / "root")
    lakelog("topics", "create", "t")
    lakelog("append", "--topic", "t", stdin=lines(0, 60_000))
    process = start(environment, "read", "--topic", "t", stdin=subprocess.DEVNULL)
    assert process.stdout
    assert process.stderr
    assert process.stdout.readline().startswith(b'{"topic":"t","partition":0,"offset":0,')
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 0


def test_a_full_disk_behind_standard_output_is_an_error(lakelog, tmp_path, environment) -> None:
    environment["LAKELOG_ROOT"] = root_at(tmp_path / "root")
    lakelog("topics", "create", "t")
    with Path("/dev/full").open("wb") as full:
        process = start(environment, "topics", "list", stdin=subprocess.DEVNULL, stdout=full)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors == b"lakelog: standard input or output: No space left on device.\n"


def test_ctrl_c_while_modules_are_loaded_ends_the_command_quietly() -> None:
    """typer handles Ctrl-C, but only after it has been loaded itself."""
    program = """
import os, signal, sys
import lakelog.cli

class Finder:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
lakelog.cli.main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")
