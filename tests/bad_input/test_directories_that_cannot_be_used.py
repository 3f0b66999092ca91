"""Files where Lakelog expects directories, and directories and files that the user may not read or write."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bad_input.conftest import Ended, Lakelog, RunJob, contents, said
from tests.lakelog.cli.conftest import line

pytestmark = pytest.mark.posix("needs directories")

COMMANDS = [
    ("topics", "list"),
    ("topics", "create", "new"),
    ("topics", "describe", "t"),
    ("topics", "alter", "t", "--partitions", "9"),
    ("topics", "delete", "t"),
    ("topics", "settle", "t"),
    ("append", "--topic", "t"),
    ("read", "--topic", "t"),
    ("offsets", "--topic", "t"),
]
RECORD = line(b"k", b"v", timestamp=1_700_000_000_000)


@pytest.mark.parametrize("file", ["root", "root/meta"])
def test_a_file_in_the_place_of_a_directory_is_named(lakelog: Lakelog, job: RunJob, tmp_path: Path, file: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    for command in COMMANDS:
        assert "Not a directory" in said(lakelog(*command, stdin=[RECORD]), str(path))
    for name in ("retention", "compaction", "maintenance"):
        assert "Not a directory" in said(job(name), str(path))
    assert "Not a directory" in said(job("export", "--set", "export.topic=t"), str(path))
    assert path.read_text() == "mine"


def test_a_file_in_the_place_of_a_topics_state_is_named_and_stops_no_other_topic(
    lakelog: Lakelog, job: RunJob, root: Path
) -> None:
    for topic in ("a", "z"):
        lakelog("topics", "create", topic, "--config", "retention.ms=1")
        lakelog("append", "--topic", topic, stdin=[RECORD])
    path = root / "meta/t"
    path.write_text("mine")
    listed = lakelog("topics", "list")
    assert (listed.status, listed.out) == (4, "a\nz\n")
    assert str(path) in listed.err
    for command in COMMANDS:
        if command[-1] not in ("list", "new"):
            assert "Not a directory" in said(lakelog(*command, stdin=[RECORD]), str(path))
    ended = job("retention")
    assert ended.status == 4
    assert str(path) in ended.err
    for topic in ("a", "z"):
        assert lakelog("read", "--topic", topic) == (0, "", ""), "retention has taken the record"
    assert path.read_text() == "mine"


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_a_directory_in_the_place_of_a_segments_file_is_named(lakelog: Lakelog, root: Path, suffix: str) -> None:
    lakelog("topics", "create", "t")
    lakelog("append", "--topic", "t", stdin=[RECORD] * 3)
    (path,) = root.glob(f"data/*/0/*{suffix}")
    path.unlink()
    path.mkdir()
    option = ("--from-timestamp", "5") if suffix == ".timeindex" else ("--from", "1" if suffix == ".index" else "0")
    assert "Is a directory" in said(lakelog("read", "--topic", "t", *option), str(path))


# --- Without permission ---------------------------------------------------------------------------------------------

_AS_NOBODY = """
import importlib, io, json, os, pkgutil, sys
import rich.box, rich.console, rich.table, rich.text
import storage_engine
for module in pkgutil.walk_packages(storage_engine.__path__, "storage_engine."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from jobs.retention import retention
from pipeline.job import run_job
from lakelog import cli
from storage_engine.record.kernels.compiled import load_kernels

load_kernels()
if os.geteuid() == 0:  # the superuser may read and write everything
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
ended = []
for command, stdin in json.load(sys.stdin):
    sys.argv = ["lakelog", *command]
    out, err, sys.stdin = (io.TextIOWrapper(io.BytesIO(data.encode())) for data in ("", "", stdin))
    terminal, (sys.stdout, sys.stderr) = (sys.stdout, sys.stderr), (out, err)
    try:
        status = run_job("retention", "", retention, None, ["--root", command[1]]) if command[0] == "job" else cli.main()
    except SystemExit as end:
        status = end.code
    sys.stdout, sys.stderr = terminal
    out.flush(), err.flush()
    ended.append([int(status), out.buffer.getvalue().decode(), err.buffer.getvalue().decode()])
print(json.dumps(ended))
"""


def as_nobody(root: Path, *commands: tuple[str, ...]) -> list[Ended]:
    """Run commands as a user who owns nothing here; where the tests are not the superuser's, as their own user."""
    environment = {**os.environ, "LAKELOG_ROOT": str(root)}
    ended = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY], input=json.dumps([[command, RECORD] for command in commands]),
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return [Ended(*each) for each in json.loads(ended.stdout)]


@pytest.fixture
def filled(lakelog: Lakelog) -> Iterator[Path]:
    """A root in a place that everybody can reach, with a topic of records that retention would drop."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        root = Path(folder) / "root"
        lakelog("topics", "create", "t", "--root", str(root), "--config", "retention.ms=1")
        lakelog("append", "--topic", "t", "--root", str(root), stdin=[RECORD] * 3)
        for path in (root, *root.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield root
        for path in (root, *root.rglob("*")):
            path.chmod(0o755)


def test_a_root_that_may_not_be_read_is_named(filled: Path) -> None:
    before = contents(filled)
    filled.chmod(0o000)
    for ended in as_nobody(filled, *COMMANDS, ("job", str(filled))):
        message = said(ended, str(filled))
        assert "Permission denied. Give this user permission to read and write here." in message
    filled.chmod(0o755)
    assert contents(filled) == before


def test_a_root_that_may_not_be_written_is_named_by_writers_and_read_by_readers(filled: Path) -> None:
    before = contents(filled)
    for path in (filled, *filled.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    readers = ("list", "describe", "read", "offsets", "settle")
    *of_commands, of_job = as_nobody(filled, *COMMANDS, ("job", str(filled)))
    for command, ended in zip(COMMANDS, of_commands, strict=True):
        if any(word in readers for word in command):
            assert (ended.status, ended.err) == (0, ""), command
        else:
            assert "Permission denied" in said(ended, str(filled)), command
    assert of_job.status == 4, "one topic, which failed"
    assert f"{filled}/meta/t/00000000000000000002.json: Permission denied" in of_job.err
    assert contents(filled) == before


UNREADABLE: dict[str, list[tuple[str, ...]]] = {
    "meta/t/*1.json": COMMANDS[2:],
    "data/*/0/*.log": [("read", "--topic", "t"), ("offsets", "--topic", "t", "--time", "5")],
    "data/*/0/*.index": [("read", "--topic", "t", "--from", "2")],
    "data/*/0/*.timeindex": [("offsets", "--topic", "t", "--time", "5")],
}


def test_a_file_that_may_not_be_read_is_named(filled: Path) -> None:
    before = contents(filled)
    expected = []
    for number, (pattern, commands) in enumerate(UNREADABLE.items()):
        root = filled.parent / f"root{number}"
        shutil.copytree(filled, root, symlinks=True)
        (path,) = root.glob(pattern)
        path.chmod(0o000)
        expected += [(path, (*command, "--root", str(root))) for command in commands]
    for (path, command), ended in zip(expected, as_nobody(filled, *(each for _, each in expected)), strict=True):
        assert "Permission denied" in said(ended, str(path)), command
    for path, _ in expected:
        path.chmod(0o644)
    for number in range(len(UNREADABLE)):
        assert contents(filled.parent / f"root{number}") == before
