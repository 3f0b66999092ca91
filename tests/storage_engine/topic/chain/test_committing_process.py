"""The process that a version names: the program, the user, the host and the process, as the operating system has them."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from storage_engine import program_name
from storage_engine.topic.chain.committing_process import this_process
from storage_engine.topic.chain.version_files import version_key
from tests.stores import storage_at

PROGRAM = """
import sys

import lakelog

lakelog.open(sys.argv[1], create=True).create_topic(sys.argv[2])
"""


def committers(root: Path, topic: str, versions: int) -> list[dict[str, object]]:
    """What the documents of a topic's versions say about their processes."""
    storage = storage_at(root)
    return [json.loads(storage.read(version_key(topic, number)))["committed_by"] for number in range(versions)]


def test_each_version_names_the_process_that_committed_it(tmp_path: Path) -> None:
    script = tmp_path / "nightly \u2028 job.py"
    script.write_text(PROGRAM)
    commands = {
        "nightly ? job.py": [sys.executable, str(script)],
        "python": [sys.executable, "-c", PROGRAM],
        "lakelog topics": [sys.executable, "-m", "lakelog.cli", "topics", "create", "--root"],
    }
    found, expected = [], []
    for number, (program, command) in enumerate(commands.items()):
        topic = f"t{number}"
        arguments = [str(tmp_path / "root"), topic]
        environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "USER": "somebody", "LOGNAME": "somebody"}
        with subprocess.Popen([*command, *arguments], env=environment, stdout=subprocess.DEVNULL) as process:
            pass
        assert process.returncode == 0
        found += committers(tmp_path / "root", topic, 1)
        user = pwd.getpwuid(os.geteuid()).pw_name
        expected.append({"program": program, "user": user, "host": socket.gethostname(), "pid": process.pid})
    assert found == expected


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 3_141_592)
    assert this_process().user == "3141592"


def test_long_names_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_name, "_set_names", [])
    monkeypatch.setattr(sys, "argv", ["/jobs/" + "é" * 200 + "\udc80"])
    assert this_process().program == "é" * 100
