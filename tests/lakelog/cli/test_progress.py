"""The progress display of long commands, as processes with a pseudo-terminal and without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lakelog.cli.conftest import line
from tests.lakelog.terminal import Terminal, assert_clean
from tests.stores import root_at

COMMAND = [sys.executable, "-m", "lakelog.cli"]


@pytest.fixture
def environment(lakelog, tmp_path) -> dict[str, str]:
    """With a topic `t` in its root, and a terminal that can do everything."""
    lakelog("topics", "create", "t")
    return {**os.environ, "LAKELOG_ROOT": root_at(tmp_path / "root"), "TERM": "xterm-256color", "COLUMNS": "160"}


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    if not terminal.stream.closed:
        terminal.close()


@pytest.fixture
def ctrl_c_counts() -> Iterator[None]:
    """Tests that run in the background of a shell ignore SIGINT, and their children would, too."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def start(environment: dict[str, str], *arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*COMMAND, *arguments], env=environment, **streams)


def lines(count: int, size: int) -> bytes:
    return "".join(f"{line(b'%d' % number, bytes(size))}\n" for number in range(count)).encode()


def test_an_append_shows_on_the_terminal_what_it_has_read_and_prints_only_results(environment, terminal) -> None:
    process = start(
        environment, "append", "--topic", "t", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=terminal.stream
    )
    assert process.stdin
    process.stdin.write(lines(20_000, 500))  # more than is read at once
    process.stdin.flush()
    terminal.see(" records, 8.")
    terminal.see(" records/s, ")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.splitlines()[-1] == b"appended 20000 records to topic t"
    assert b"\x1b" not in out
    assert_clean(terminal.close(), "append to t: ")


def test_a_file_that_is_appended_has_a_total(environment, terminal, tmp_path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_bytes(lines(20_000, 500))
    with file.open("rb") as stdin:
        process = start(
            environment, "append", "--topic", "t", stdin=stdin, stdout=subprocess.PIPE, stderr=terminal.stream
        )
        terminal.see(f" of {file.stat().st_size / 1e6:.1f} MB")
        assert process.communicate(timeout=60)[0]


@pytest.mark.usefixtures("ctrl_c_counts")
def test_ctrl_c_leaves_a_clean_terminal_and_the_topic_as_it_was(environment, terminal, lakelog) -> None:
    process = start(
        environment, "append", "--topic", "t", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=terminal.stream
    )
    terminal.see("append to t: begun")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert_clean(terminal.close(), "append to t: ")
    assert lakelog("read", "--topic", "t").out == ""


def test_a_dumb_terminal_gets_no_control_sequences(environment, terminal, tmp_path) -> None:
    environment["TERM"] = "dumb"
    process = start(
        environment, "append", "--topic", "t", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=terminal.stream
    )
    process.communicate(lines(10, 10), timeout=60)
    assert process.returncode == 0
    assert terminal.close() == ""


def test_records_that_go_to_a_file_show_on_the_terminal_how_many_they_are(
    environment, terminal, tmp_path, lakelog
) -> None:
    lakelog("append", "--topic", "t", stdin=lines(1000, 10))
    out = tmp_path / "out.jsonl"
    with out.open("wb") as stdout:
        process = start(environment, "read", "--topic", "t", stdout=stdout, stderr=terminal.stream)
        assert process.wait(timeout=60) == 0
    assert "read t: 1,000 of 1,000 records" in terminal.close()
    assert [json.loads(text)["offset"] for text in out.read_text().splitlines()] == list(range(1000))


def test_records_that_go_to_the_terminal_are_not_interrupted(environment, terminal, lakelog) -> None:
    lakelog("append", "--topic", "t", stdin=lines(3, 10))
    process = start(environment, "read", "--topic", "t", stdout=terminal.stream, stderr=terminal.stream)
    assert process.wait(timeout=60) == 0
    shown = terminal.close()
    assert [json.loads(text)["offset"] for text in shown.splitlines()] == [0, 1, 2]


@pytest.mark.posix("settles the view")
def test_without_a_terminal_short_work_says_nothing(environment, tmp_path) -> None:
    Path(file := tmp_path / "in").write_bytes(lines(10, 10))
    with file.open("rb") as stdin:
        process = start(
            environment, "append", "--topic", "t", stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.communicate(timeout=60)[1] == b""
    settled = start(environment, "topics", "settle", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert settled.communicate(timeout=60) == (b"", b"")
