"""Two hosts that find each other by a file. In this test, two processes that share only the directory take the place of
the hosts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakelog.doctor.examination import TOGETHER
from storage_engine.storage.posix import PosixStorage
from tests.lakelog.doctor.breaking.sitecustomize import __file__ as breaking

HOST = """
import json, sys
from pathlib import Path
from lakelog.doctor.peer import examine_with_peer
from storage_engine.errors import LogError
from storage_engine.storage.posix import PosixStorage
root, file, timeout = sys.argv[1:]
try:
    examine_with_peer(
        PosixStorage(root), Path(file), float(timeout), lambda finding: print(json.dumps(finding.as_json()), flush=True)
    )
except LogError as error:
    sys.exit(str(error))
"""
Host = subprocess.Popen[str]
StartHost = Callable[..., Host]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    PosixStorage(tmp_path / "root").make_folder("")
    return tmp_path / "root"


@pytest.fixture
def host(root) -> Iterator[StartHost]:
    """Starts a host: host(timeout=60, break_="the clock is ahead")."""
    started: list[Host] = []

    def start(timeout: float = 60, break_: str = "", at: Path = root, code: str = HOST) -> Host:
        process = subprocess.Popen(
            [sys.executable, "-c", code, at, root / "meet", str(timeout)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": str(Path(breaking).parent), "BREAK": break_},
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(process: Host) -> tuple[int, list[dict[str, str]], str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err.strip()


def wait_for(root: Path, pattern: str) -> None:
    until = time.monotonic() + 60
    while not any(path.stat().st_size for path in root.glob(pattern)):
        assert time.monotonic() < until, f"{pattern} does not come, or it stays empty"
        time.sleep(0.01)


def test_two_hosts_find_each_other_and_say_the_same(root, host) -> None:
    results = [ended(process) for process in (host(), host())]
    assert [(status, err) for status, _, err in results] == [(0, ""), (0, "")]
    assert results[0][1] == results[1][1]
    findings = results[0][1]
    assert [finding["check"] for finding in findings] == [check.name for check in TOGETHER]
    assert {finding["outcome"] for finding in findings} == {"ok"}, findings
    assert all(" and host " in finding["between"] for finding in findings)
    assert not list(root.iterdir()), "nothing is left"


def test_two_clocks_that_differ_and_a_link_that_overwrites_on_one_host_are_problems(root, host) -> None:
    processes = [host(break_="the clock is ahead"), host(break_="link overwrites")]
    for _, findings, _ in map(ended, processes):
        outcomes = {finding["check"]: finding for finding in findings}
        assert outcomes["clocks"]["outcome"] == "problem"
        assert "100," in outcomes["clocks"]["found"] or "99,9" in outcomes["clocks"]["found"]
        assert outcomes["put-if-absent"]["outcome"] == "problem"
        assert {outcomes[name]["outcome"] for name in ("replacing", "growing file", "locks")} == {"ok"}
    assert not list(root.iterdir())


def test_a_host_that_does_not_come_is_waited_for_so_long_and_no_longer(root, host) -> None:
    status, findings, err = ended(host(timeout=1))
    assert (status, findings) == (1, [])
    assert err.startswith(
        f"{root}/meet: no other host has answered within 1 s. Start the same command on the other host"
    )
    assert not list(root.iterdir())


def test_another_root_behind_the_same_file_is_said(root, host, tmp_path) -> None:
    first = host(timeout=5)
    wait_for(root, "meet")
    status, findings, err = ended(host(timeout=1, at=tmp_path / "other"))
    assert (status, findings) == (1, [])
    assert f"{root}/meet: was written by process {first.pid} on host " in err
    assert "it uses another root" in err
    assert ended(first)[0] == 1
    assert not list(root.iterdir())


@pytest.mark.parametrize("content", [b"", b"my notes", b"[]"])
def test_a_file_that_is_no_invitation_is_left_alone(root, host, content) -> None:
    (root / "meet").write_bytes(content)
    status, _, err = ended(host(timeout=1))
    assert status == 1
    assert "was not written by this command on another host" in err
    assert (root / "meet").read_bytes() == content


def test_what_a_killed_host_left_is_said(root, host) -> None:
    first = host()
    wait_for(root, "meet")
    wait_for(root, ".lakelog-doctor-*/token")
    first.kill()
    first.wait()
    for path in root.glob(".lakelog-doctor-*"):
        path.rename(root.parent / "gone")
    status, _, err = ended(host(timeout=1))
    assert status == 1
    assert "If it was killed, remove the file" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("which", [0, 1])
def test_the_end_of_one_host_is_noticed_by_the_other(root, host, which, number) -> None:
    first = host(timeout=4)
    wait_for(root, "meet")
    second = host(timeout=4)
    wait_for(root, ".lakelog-doctor-*/mail/000002.ask")
    dying, staying = (first, second) if which == 0 else (second, first)
    dying.send_signal(number)
    dying.communicate()
    status, _, err = ended(staying)
    assert status == 1
    known = "ended before the examination was complete"
    assert err.startswith("host ")
    assert known in err or (
        number == signal.SIGKILL and ("no request for 4 s" in err or "not answered within 4 s" in err)
    )
    assert number == signal.SIGKILL or not list(root.iterdir())
