"""`lakelog doctor`: its output and its exit status. Also tests that the command leaves no files, even if somebody
interrupts it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lakelog.doctor.examination import ALONE, TOGETHER
from tests.lakelog.doctor.breaking.sitecustomize import __file__ as breaking

COMMAND = [sys.executable, "-m", "lakelog.cli", "doctor", "--root"]
NAMES = [check.name for check in (*ALONE, *TOGETHER)]


def test_a_good_root_has_a_line_for_each_check_and_ends_with_0(lakelog, tmp_path) -> None:
    ended = lakelog("doctor")
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert len(lines) == len(NAMES)
    for line, name in zip(lines, NAMES, strict=True):
        assert line.startswith(("ok ", "not available "))
        assert f" {name} (" in line
    assert not (tmp_path / "root").exists()


def test_a_broken_root_ends_with_1_and_json_lines_say_why(tmp_path) -> None:
    environ = os.environ | {"PYTHONPATH": str(Path(breaking).parent), "BREAK": "link overwrites"}
    command = [*COMMAND, tmp_path, "--format", "jsonl"]
    ended = subprocess.run(command, env=environ, capture_output=True, check=False, timeout=120)
    findings = [json.loads(line) for line in ended.stdout.splitlines()]
    assert (ended.returncode, ended.stderr) == (1, b"")
    assert [finding["check"] for finding in findings] == NAMES
    wrong = {finding["check"]: finding for finding in findings if finding["outcome"] == "problem"}
    assert set(wrong) == {"links", "put-if-absent"}
    assert wrong["links"]["promise"] == "one commit"
    assert "Two writers could commit the same version" in wrong["links"]["meaning"]
    assert not list(tmp_path.iterdir())


def test_two_hosts_examine_together(tmp_path) -> None:
    command = [*COMMAND, tmp_path, "--peer", tmp_path / "meet", "--format", "jsonl"]
    hosts = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for host in hosts:
        out, err = host.communicate(timeout=120)
        assert host.returncode == 0, (out, err)
        assert [json.loads(line)["check"] for line in out.splitlines()] == [*NAMES, *(each.name for each in TOGETHER)]
        assert err.decode() == f"lakelog: waiting for the other host at {tmp_path}/meet, up to 120 s\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_examination_leaves_nothing(tmp_path, number) -> None:
    process = subprocess.Popen([*COMMAND, tmp_path / "root"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    for _ in range(3):
        process.stdout.readline()
    assert list(tmp_path.iterdir())
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert b"Traceback" not in err
    until = time.monotonic() + 10
    while list(tmp_path.iterdir()) and time.monotonic() < until:
        time.sleep(0.01)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--root", "{tmp}/file"], 1, "A part of this path is a file"),
        (["--root", "{tmp}/root", "--peer", "{tmp}/nowhere/meet"], 2, "{tmp}/nowhere is not a directory"),
        (["--root", "{tmp}/root", "--peer", "{tmp}/meet", "--timeout", "0"], 2, "--timeout"),
    ],
)
def test_mistakes_are_named(lakelog, tmp_path, arguments, status, message) -> None:
    (tmp_path / "file").write_text("x")
    ended = lakelog("doctor", *(each.format(tmp=tmp_path) for each in arguments))
    assert ended.status == status
    assert message.format(tmp=tmp_path) in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
