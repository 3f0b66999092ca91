"""`lakelog check`: its exit statuses, and that the output is one line for each finding."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from storage_engine.topic.chain.version_files import version_key
from tests.lakelog.cli.conftest import Lakelog, line
from tests.stores import storage_at

NO_DISK = "disk.free.percent:\n"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """Rules without a limit on the free space, because the disk of a test may be full."""
    file = tmp_path / "rules.yaml"
    file.write_text(NO_DISK)
    return file


def test_a_root_without_problems_is_ok(lakelog: Lakelog, rules: Path) -> None:
    lakelog("topics", "create", "t")
    ended = lakelog("check", "--rules", str(rules))
    assert (ended.status, ended.err, len(ended.out.splitlines())) == (0, "", 1)
    assert ended.out.startswith("LAKELOG OK: nothing is wrong; 1 topic | 'topics'=1;;;0 'unreadable topics'=0;;0;0 ")


def test_a_group_that_stops_is_a_warning_and_later_critical(lakelog: Lakelog, rules: Path) -> None:
    now = time.time_ns() // 1_000_000
    lakelog("topics", "create", "t")
    lakelog("append", "--topic", "t", stdin=[line(b"k", b"v", timestamp=now)] * 3)
    assert lakelog("read", "--topic", "t", "--group", "g", "--commit", "--max", "1").status == 0
    check = ("check", "--rules", str(rules), "--now")
    assert lakelog(*check, str(now)).status == 0
    rules.write_text(f"{NO_DISK}consumer.status: false\n")
    slow = lakelog(*check, str(now + 1_800_000))
    assert slow.status == 1
    assert slow.out.splitlines()[1:] == [
        "WARNING: topic t, group g: 2 unread records, and the first of them is 30 min old"
    ]
    rules.write_text(f"{NO_DISK}lag.seconds: {{}}\n")
    stopped = lakelog(*check, str(now + 7_200_000))
    assert stopped.status == 2
    assert stopped.out.splitlines()[1:] == [
        "CRITICAL: topic t, group g: status STOP: the consumer has stopped; 2 unread records"
    ]


def test_a_damaged_topic_is_critical_and_the_others_are_checked(lakelog: Lakelog, rules: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        lakelog("topics", "create", name)
    storage_at(tmp_path / "root").replace(version_key("a", 0), b"{}")
    ended = lakelog("check", "--rules", str(rules))
    assert ended.status == 2
    (first, finding) = ended.out.splitlines()
    assert first.startswith("LAKELOG CRITICAL: 1 critical; 2 topics | ")
    assert "'b segments'=0;1000;;0" in first
    assert finding.startswith(f"CRITICAL: topic a: {version_key('a', 0)} at position 2: expected a topic's state")


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (("--root", "/no/such/root"), "LAKELOG UNKNOWN: root /no/such/root: this path is not a root"),
        (("--rules", "/no/such/file"), "LAKELOG UNKNOWN: /no/such/file: cannot be read: No such file or directory."),
        (("--now", "-1"), ""),
        (("--no-such-option",), ""),
        (("argument",), ""),
    ],
)
def test_what_cannot_be_checked_is_unknown(lakelog: Lakelog, arguments: tuple[str, ...], out: str) -> None:
    lakelog("topics", "create", "t")
    ended = lakelog("check", *arguments)
    assert ended.status == 3
    assert ended.out.startswith(out)
    assert bool(ended.out) != bool(ended.err)


@pytest.mark.posix("makes a folder")
def test_an_empty_directory_is_unknown(lakelog: Lakelog, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    ended = lakelog("check")
    assert (ended.status, ended.err) == (3, "")
    assert ended.out.splitlines()[1] == (
        f"UNKNOWN: root: root {tmp_path}/root: this path has no topics: the folder meta/ is missing or empty. Check whether"
        " the file system is mounted."
    )


def test_help_ends_with_0_and_other_commands_with_2(lakelog: Lakelog) -> None:
    assert lakelog("check", "--help").status == 0
    assert lakelog("doctor", "--no-such-option").status == 2
