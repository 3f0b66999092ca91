"""`lakelog state`: the history of a state, and its maintenance without Spark."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from storage_engine.storage import Storage
from storage_engine.topic.chain.version_files import version_key
from tests.lakelog.cli.conftest import Lakelog, line
from tests.storage_engine.topic.chain.signed_documents import signed
from tests.stores import storage_at


@pytest.fixture
def root(lakelog: Lakelog, tmp_path: Path) -> Storage:
    lakelog("topics", "create", "t", "--partitions", "2")
    lakelog("topics", "alter", "t", "--config", "retention.ms=1000000")
    lakelog("append", "--topic", "t", "--partition", "1", stdin=[line(b"k", b"a"), line(b"k", b"b")])
    return storage_at(tmp_path / "root")


def many_versions(root: Storage, versions: int) -> None:
    """Versions that change nothing, without the time that syncing them takes."""
    document = json.loads(root.read(version_key("t", 2)))
    for version in range(3, versions + 1):
        document |= {"id": f"{version:032x}", "parent": document["id"], "version": version, "change": f"c{version}"}
        data = signed(version_key("t", version), document)
        if root.root is None:
            root.replace(version_key("t", version), data)
        else:
            (root.root / version_key("t", version)).write_bytes(data)


def test_history_tells_people_and_programs_what_each_version_did(lakelog: Lakelog, root: Storage) -> None:
    told = lakelog("state", "history", "--topic", "t").out
    assert [word in told for word in ("created with 2 partitions", "retention.ms=1000000", "append of 2 records")] == [
        True, True, True,
    ]  # fmt: skip
    created, altered, appended = lakelog("state", "history", "--topic", "t", "--format", "jsonl").records
    assert (created["version"], created["parent"], created["writer"]["epoch"]) == (0, "", 0)
    assert altered["configs"] == {"retention.ms": "1000000"}
    committers = [each["committed_by"] for each in (created, altered, appended)]
    assert [(each["host"], each["pid"]) for each in committers] == [(socket.gethostname(), os.getpid())] * 3
    (change,) = appended["partitions"]
    assert (change["partition"], change["records"], change["segments"]) == (1, 2, 1)
    assert change["bytes"] > 0
    assert appended["parent"] == altered["id"]
    (newest,) = lakelog("state", "history", "--topic", "t", "--format", "jsonl", "--last", "1").records
    assert newest == appended


def test_pruned_versions_are_still_told(lakelog: Lakelog, root: Storage) -> None:
    many_versions(root, 1_250)
    before = lakelog("state", "history", "--topic", "t", "--format", "jsonl").out
    assert lakelog("state", "prune").out == (
        "topic t: rolled up 1,200 versions, deleted 250 versions and 0 segment lists\n"
    )
    assert lakelog("state", "history", "--topic", "t", "--format", "jsonl").out == before
    assert "versions         1,001 kept" in lakelog("topics", "describe", "t").out
    assert lakelog("topics", "describe", "t", "--format", "json").records[0]["versions_kept"] == 1_001
    assert lakelog("read", "--topic", "t").records[1]["offset"] == 1


def test_what_no_version_names_is_reported_and_swept(lakelog: Lakelog, root: Storage, tmp_path: Path) -> None:
    assert "unswept" not in lakelog("topics", "describe", "t").out
    topic_id = json.loads(root.read(version_key("t", 0)))["topic_id"]
    root.put_new(f"data/{topic_id}/0/{0:020d}.0.0123abcd.log", b"12345")
    assert lakelog("state", "sweep", "--topic", "t").out == "topic t: swept 0 files, 0 B\n"
    described = lakelog("topics", "describe", "t")
    assert "unswept          1 file that no version names, 5 B" in described.out
    (tmp_path / "swept.yaml").write_text("broker: {lakelog.sweep.delay.ms: 1}\n")
    assert lakelog("state", "sweep", "--conf", str(tmp_path / "swept.yaml")).out == "topic t: swept 1 file, 5 B\n"
    assert "unswept" not in lakelog("topics", "describe", "t").out
    assert lakelog("topics", "describe", "t", "--format", "json").records[0]["unswept"] == {"files": 0, "size": 0}


@pytest.mark.parametrize("command", ["prune", "sweep"])
def test_a_damaged_topic_is_named_and_stops_no_other(lakelog: Lakelog, root: Storage, command: str) -> None:
    lakelog("topics", "create", "bad")
    root.replace(version_key("bad", 0), b"{}")
    ended = lakelog("state", command)
    assert ended.status == 4
    assert ended.err.startswith(
        "lakelog: meta/bad/00000000000000000000.json at position 2: expected a topic's state that "
    )
    assert ended.out.startswith("topic t: ")


def test_a_topic_that_is_not_there_is_said(lakelog: Lakelog, root: Storage) -> None:
    ended = lakelog("state", "history", "--topic", "nowhere")
    assert ended.status == 1
    assert "topic nowhere: not found" in ended.err
