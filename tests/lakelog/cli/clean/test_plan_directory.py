"""`lakelog plan --kafka-dir`: it changes nothing, and says what recover, retain and compact then do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from storage_engine.storage.storage_opening import open_directory
from tests.docs.security.restricted import restricted_process
from tests.in_process import Ended
from tests.lakelog.cli.clean.test_compact import INTERNAL
from tests.lakelog.cli.conftest import line
from tests.storage_engine.kafka_dir.upkeep.brokers_directory import NOW_MS, known, make_directory, rows
from tests.storage_engine.verify.directories import contents, copied

SMALL = {"segment.bytes": "1024"}
COMPACT = {**SMALL, "cleanup.policy": "compact"}
KNOWN = [
    *known("a", {**SMALL, "retention.ms": "1000"}), *known("b", {**SMALL, "retention.bytes": "3000"}, (1, 2)),
    *known("c", COMPACT), *known("d", COMPACT, (1, 2)), *known("e", {**COMPACT, "min.cleanable.dirty.ratio": "1"}),
]  # fmt: skip
HOLDER = """
import sys
from pathlib import Path
from storage_engine.storage.record_locks import acquire
acquire(Path(sys.argv[1]), exclusive=True)
print("locked", flush=True)
sys.stdin.read()
"""


def brokers_directory(directory: Path, metadata: Sequence[bytes] = KNOWN) -> Path:
    """Topics a to f, and the internal ones, each with 60 records of 3 keys that are ten seconds old."""
    topics = ["a", "b", "c", "d", "e", "f", *INTERNAL]
    make_directory(directory, dict.fromkeys(topics, rows(60, keys=3, age_ms=10_000)), metadata)
    lines = "".join(f"{topic} 0 20\n" for topic in topics)
    (directory / "replication-offset-checkpoint").write_text(f"0\n{len(topics)}\n{lines}")
    return directory


def crash(directory: Path) -> None:
    (directory / ".kafka_cleanshutdown").unlink()
    (directory / "recovery-point-offset-checkpoint").unlink()


def snapshot(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Each file and folder with its modification time and its contents."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in (directory, *directory.rglob("*"))
    }


def plan(lakelog, data: Path, *arguments: str) -> Ended:
    """The end of the command, which has changed nothing."""
    before = snapshot(data)
    ended: Ended = lakelog("plan", "--kafka-dir", str(data), "--now", str(NOW_MS), *arguments)
    assert snapshot(data) == before
    return ended


def plan_json(lakelog, data: Path, *arguments: str, status: int = 0) -> dict[str, Any]:
    ended = plan(lakelog, data, "--format", "json", *arguments)
    assert ended.status == status
    found: dict[str, Any] = json.loads(ended.out)
    return found


def deletions(document: dict[str, Any]) -> list[tuple[str, int, int]]:
    """The segments that would be deleted, with their sizes."""
    return [
        (f"{part['topic']}-{part['partition']}", each["base_offset"], each["bytes"])
        for part in document["retain"]
        for each in part["deletions"]
    ]


def logs(data: Path) -> dict[tuple[str, int], bytes]:
    return {(path.parent.name, int(path.stem)): path.read_bytes() for path in data.glob("*/*.log")}


def test_retain_deletes_the_segments_of_the_plan(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    planned = plan_json(lakelog, data)
    expected = deletions(planned)
    assert {folder for folder, _, _ in expected} == {"a-0", "b-0"}
    text = plan(lakelog, data).out
    before = logs(data)
    ended = lakelog("retain", "--kafka-dir", str(data), "--now", str(NOW_MS))
    assert ended.status == 0
    assert sorted(before.keys() - logs(data).keys()) == [each[:2] for each in expected]
    assert [len(before[folder, base]) for folder, base, _ in expected] == [size for _, _, size in expected]
    done = [each for each in ended.out.splitlines() if "retention deletes" in each]
    would = [each for each in text.splitlines() if "would delete" in each]
    assert [each.replace("retain: would delete", "retention deletes") for each in would] == done
    assert deletions(plan_json(lakelog, data)) == []
    assert [part["log_start_offset_after"] for part in planned["retain"]] == [
        lakelog("read", "--kafka-dir", str(data), "--topic", topic, "--max", "1").records[0]["offset"] if topic != "a" else 60
        for topic in ("a", "b", "c", "d", "e")
    ]  # fmt: skip


def test_compact_replaces_the_segments_of_the_plan(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    for force in ((), ("--force",)):
        planned = {f"{each['topic']}-0": each for each in plan_json(lakelog, data, *force)["compact"]}
        due = {name for name, each in planned.items() if each["due"]}
        before = logs(data)
        ended = lakelog("compact", "--kafka-dir", str(data), "--now", str(NOW_MS), *force)
        assert ended.status == 0
        after = logs(data)
        for name in ("c-0", "d-0", "e-0"):
            replaced = {
                base
                for (folder, base), data_ in before.items()
                if folder == name and after.get((folder, base)) != data_
            }
            bases = {each["base_offset"] for each in planned[name]["segments"]}
            assert replaced == (bases if name in due else set()), name
        compacted = re.findall(r"/(\w-0): compacted up to offset (\d+)", ended.out)
        assert compacted == [(name, str(planned[name]["first_uncleanable_offset"])) for name in sorted(due)]
        assert due == ({"c-0", "d-0"} if not force else {"e-0"})


@pytest.mark.parametrize("name", ["txn", "idem", "compact.before", "compact_delete.before2", "delrec"])
@pytest.mark.parametrize("watermark", [100, 10_000])
def test_the_plan_of_a_real_brokers_log_is_what_compact_does(
    lakelog, tmp_path: Path, name: str, watermark: int
) -> None:
    """The logs have transactions, deleted records and earlier compactions. The high watermark can be inside the log."""
    data = copied(name, tmp_path)
    topic = name.partition(".")[0]
    end = int(lakelog("offsets", "--kafka-dir", str(data), "--topic", topic, "--time", "-1").out.rpartition(":")[2])
    watermark = min(watermark, end)
    (data / "replication-offset-checkpoint").write_text(f"0\n1\n{topic} 0 {watermark}\n")
    (data / ".kafka_cleanshutdown").touch()
    options = ("--topic", topic, "--config", "cleanup.policy=compact", "--force")
    (planned,) = plan_json(lakelog, data, *options)["compact"]
    before = logs(data)
    ended = lakelog("compact", "--kafka-dir", str(data), "--now", str(NOW_MS), *options)
    assert (ended.status, ended.err) == (0, "")
    compacted = re.findall(r"compacted up to offset (\d+), .* in (\d+) segments? to", ended.out)
    expected = [(str(planned["first_uncleanable_offset"]), str(len(planned["segments"])))] if planned["due"] else []
    assert compacted == expected
    bases = {(f"{topic}-0", each["base_offset"]) for each in planned["segments"]}
    after = logs(data)
    assert {each for each in before if after.get(each) != before[each]} <= bases


def test_what_is_left_alone_is_named_as_by_the_commands(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    text = plan(lakelog, data).out.splitlines()
    for command in ("retain", "compact"):
        ended = lakelog(command, "--kafka-dir", str(data), "--now", str(NOW_MS))
        left = [each for each in ended.out.splitlines() if ": not " in each]
        assert f"{data}: f: not {command}" in "".join(left)
        assert [each for each in text if f": not {command}" in each] == left
    assert f"{data}: closed cleanly: there is nothing to recover" in text
    assert f"{data}: __cluster_metadata: not recovered: KRaft alone opens it" in text
    assert re.fullmatch(
        r"in all: recover 0 logs, delete \d+ segments, .* compact 2 logs\. Nothing was changed\.", text[-1]
    )


def test_the_options_have_the_meaning_of_the_commands(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    named = plan_json(lakelog, data, "--topic", "f", "--config", "retention.ms=1")
    assert {folder for folder, _, _ in deletions(named)} == {"f-0"}
    assert named["left_alone"]["compact"].keys() == {"f"}
    before = logs(data)
    lakelog("retain", "--kafka-dir", str(data), "--now", str(NOW_MS), "--topic", "f", "--config", "retention.ms=1")
    assert sorted(before.keys() - logs(data).keys()) == [each[:2] for each in deletions(named)]
    later = plan_json(lakelog, data, "--now", str(NOW_MS - 9_500))
    assert {folder for folder, _, _ in deletions(later)} == {"b-0"}


def test_a_directory_without_metadata_is_planned_topic_by_topic(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data", ())
    whole = plan_json(lakelog, data)
    assert (whole["retain"], whole["compact"]) == ([], [])
    assert whole["left_alone"]["retain"]["a"] == "its settings are not known, because __cluster_metadata was not read"
    named = plan_json(lakelog, data, "--topic", "a")
    assert [each["due"] for each in named["compact"]] == [True]


def test_the_recovery_is_planned_log_by_log(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    crash(data)
    (data / "recovery-point-offset-checkpoint").write_text("0\n1\na 0 30\n")
    with max((data / "a-0").glob("*.log")).open("ab") as log:
        log.write(b"torn")
    first = min((data / "c-0").glob("*.log"))
    damaged = bytearray(first.read_bytes())
    damaged[16] = 9  # the magic
    first.write_bytes(damaged)
    planned = plan_json(lakelog, data, status=4)
    assert not planned["closed_cleanly"]
    recovered = {each["topic"]: each for each in planned["recover"]}
    assert recovered.keys() == {"a", "b", "c", "d", "e", "f", *INTERNAL}
    segments = len(list((data / "a-0").glob("*.log")))
    assert 0 < recovered["a"]["segments_to_read"] < segments
    assert (recovered["a"]["segments"], recovered["a"]["torn_bytes"], recovered["a"]["damage"]) == (segments, 4, None)
    assert recovered["b"]["segments_to_read"] == recovered["b"]["segments"]
    assert f"c-0/{first.name}" in recovered["c"]["damage"]
    assert planned["errors"] == [recovered["c"]["damage"]]
    assert "c" not in {each["topic"] for each in planned["compact"]}

    text = plan(lakelog, data)
    assert f"{data}: not closed cleanly: 9 logs would be recovered" in text.out
    assert f"c-0/{first.name}" in text.err
    ended = lakelog("recover", "--kafka-dir", str(data))
    assert ended.status == 4
    read = re.search(rf"{data}/a-0: loaded, offsets 0 to 60; read (\d+) segments completely", ended.out)
    assert read is not None
    assert int(read[1]) == recovered["a"]["segments_to_read"]
    after = plan_json(lakelog, data)
    assert (after["closed_cleanly"], after["recover"], after["errors"]) == (True, [], [])
    assert deletions(after) == deletions(planned)


def test_a_directory_in_use_is_planned(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    free = plan_json(lakelog, data)
    assert not free["locked"]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(data / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        assert plan_json(lakelog, data) == {**free, "locked": True}
        assert plan(lakelog, data).out.startswith(
            f"{data}: locked: a broker or another program works in this directory"
        )
        refused = lakelog("retain", "--kafka-dir", str(data))
        assert (refused.status, "is locked by another program" in refused.err) == (1, True), "the lock is still held"
        holder.communicate("")
    with open_directory(data).hold_exclusive(".lock"):
        assert plan_json(lakelog, data)["locked"]
        assert lakelog("retain", "--kafka-dir", str(data)).status == 1
    assert plan_json(lakelog, data) == free


def test_a_directory_without_a_lock_file_gets_none(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    (data / ".lock").unlink(missing_ok=True)
    assert plan(lakelog, data).status == 0
    assert not (data / ".lock").exists()


def test_a_read_only_directory_is_planned(lakelog, tmp_path: Path) -> None:
    data = brokers_directory(tmp_path / "data")
    (data / ".lock").unlink(missing_ok=True)
    expected = plan(lakelog, data)
    for path in (*data.rglob("*"), data):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = contents(data)
    with restricted_process(tmp_path, {}, 0o027) as process:
        found = process.run("lakelog", "plan", "--kafka-dir", str(data), "--now", str(NOW_MS))
        refused = process.run("lakelog", "retain", "--kafka-dir", str(data), "--now", str(NOW_MS))
    for path in (data, *data.rglob("*")):
        path.chmod(0o755)
    assert found == expected
    assert (refused.status, "Permission denied" in refused.err) == (1, True)
    assert contents(data) == before


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        (("--save", "f"), 2, "--save: is given with --kafka-dir"),
        (("--apply", "f"), 2, "--apply: is given with --kafka-dir"),
        (("--root", "r"), 2, "--root: is given with --kafka-dir"),
        (("--conf", "c"), 2, "--conf: is given with --kafka-dir"),
        (("--topic", "nothing"), 1, "topic nothing: no folder"),
        (("--config", "retention.ms=5"), 2, "--config retention.ms: is given without --topic, and"),
    ],
)
def test_mistakes_are_named(lakelog, tmp_path: Path, arguments: tuple[str, ...], status: int, problem: str) -> None:
    ended = plan(lakelog, brokers_directory(tmp_path / "data"), *arguments)
    assert (ended.status, ended.out) == (status, "")
    assert problem in ended.err


@pytest.mark.posix("looks at the view")
def test_a_root_is_refused(lakelog, tmp_path: Path) -> None:
    lakelog("topics", "create", "t")
    lakelog("append", "--topic", "t", stdin=[line(b"k", b"v")])
    for place in (tmp_path / "root", tmp_path / "root/log"):
        ended = plan(lakelog, place)
        assert (ended.status, ended.out) == (2, "")
        assert f"Use --root {tmp_path / 'root'}" in ended.err
    ended = lakelog("plan", "--config", "retention.ms=1")
    assert (ended.status, "--config: is given without --kafka-dir" in ended.err) == (2, True)
