"""`lakelog verify`: its output and exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lakelog.cli.conftest import line
from tests.storage_engine.verify.directories import contents, copied, flip

HOLD = """
import sys
from storage_engine.storage.posix import PosixStorage
with PosixStorage(sys.argv[1]).hold_exclusive(".lock"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_whole_directory_ends_with_0_and_a_summary(lakelog, tmp_path) -> None:
    ended = lakelog("verify", "--kafka-dir", str(copied("txn", tmp_path)), "--deep")
    assert (ended.status, ended.err) == (0, "")
    *notes, summary = ended.out.splitlines()
    assert all(note.startswith("note: ") for note in notes)
    assert summary.startswith("12 segments, ")
    assert "305 batches: nothing is wrong" in summary


def test_each_problem_is_a_line_and_the_status_is_4(lakelog, tmp_path) -> None:
    path = copied("multi", tmp_path)
    log, index = path / f"multi-1/{0:020d}.log", path / f"multi-2/{0:020d}.index"
    flip(log, 70)
    flip(index, 5)
    ended = lakelog("verify", "--kafka-dir", str(path), "--topic", "multi")
    assert ended.status == 4
    lines = [each for each in ended.out.splitlines() if not each.startswith("note: ")]
    assert lines[0].startswith(f"{log} at position 0: expected a batch with CRC-32C ")
    assert lines[1].startswith(f"{index} at position 0: expected ")
    assert "(index: " in lines[1]
    assert "2 problems (1 corrupt, 1 index)" in lines[2]
    assert lakelog("verify", "--kafka-dir", str(path), "--partition", "0").status == 0
    found = [
        each for each in lakelog("verify", "--kafka-dir", str(path), "--format", "jsonl").records if not each["note"]
    ]
    assert [(each["kind"], each["file"], each["position"]) for each in found] == [
        ("corrupt", str(log), 0), ("index", str(index), 0)
    ]  # fmt: skip


def test_repairing_ends_with_0_unless_batches_were_lost(lakelog, tmp_path) -> None:
    path = copied("txn", tmp_path)
    whole = contents(path)
    flip(path / f"txn-0/{0:020d}.index", 5)
    ended = lakelog("verify", "--kafka-dir", str(path), "--repair")
    assert ended.status == 0
    assert ended.out.splitlines()[0].startswith("repaired: ")
    assert "after the repair: nothing is wrong" in ended.out
    assert contents(path) == whole | {".lock": b""}
    flip(path / f"txn-0/{0:020d}.log", 70)
    ended = lakelog("verify", "--kafka-dir", str(path), "--repair", "--format", "jsonl")
    assert ended.status == 4
    assert [each["repaired"] for each in ended.records if each["kind"] == "corrupt"] == [True]
    assert ended.err.splitlines()[-1].endswith(
        "exit status 4: damaged committed batches were removed, and their records are lost"
    )
    assert lakelog("verify", "--kafka-dir", str(path)).status == 0


def test_a_directory_in_use_is_not_repaired(lakelog, tmp_path) -> None:
    path = copied("txn", tmp_path)
    flip(path / f"txn-0/{0:020d}.index", 5)
    whole = contents(path)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout
    holder.stdout.readline()
    ended = lakelog("verify", "--kafka-dir", str(path), "--repair")
    holder.communicate(timeout=60)
    assert ended.status == 1
    assert "locked" in ended.err
    assert contents(path) == whole | {".lock": b""}


@pytest.mark.posix("damages the view")
def test_a_root_is_verified_and_its_view_repaired(lakelog, tmp_path) -> None:
    lakelog("topics", "create", "t")
    lakelog("append", "--topic", "t", stdin=[line(b"%d" % number, bytes(50)) for number in range(500)])
    assert lakelog("verify").status == 0
    checkpoint = tmp_path / "root/log/recovery-point-offset-checkpoint"
    checkpoint.write_bytes(b"0\n0\n")
    ended = lakelog("verify")
    assert ended.status == 4
    assert "`lakelog topics settle` repairs the view" in ended.out
    view = lakelog("verify", "--kafka-dir", str(tmp_path / "root/log"), "--repair")
    assert (view.status, view.out) == (2, "")
    assert lakelog("verify", "--repair").status == 0
    assert checkpoint.read_bytes() == b"0\n1\nt 0 500\n"


@pytest.mark.posix("damages local files")
def test_what_is_repaired_is_reported_without_advice_and_the_status_with_its_reason(lakelog, tmp_path) -> None:
    for topic in ("t", "u"):
        lakelog("topics", "create", topic)
        lakelog("append", "--topic", topic, stdin=[line(b"k", b"v")])
    assert lakelog("verify").out == "2 segments, 140 B, 2 batches: nothing is wrong\n"
    newest = tmp_path / f"root/meta/t/{1:020d}.json"
    whole = newest.read_bytes()

    newest.write_bytes(whole.replace(b'"high_watermark":1', b'"high_watermark":0'))
    found = lakelog("verify")
    assert found.status == 4
    assert "restore this file from a backup" in found.out
    assert found.out.splitlines()[-1] == "1 segment, 70 B, 1 batch, without topic t: 1 problem (1 state)"
    position = whole.index(b'"high_watermark":1') + len('"high_watermark":')
    told = lakelog("verify", "--repair")
    assert (told.status, newest.read_bytes()) == (0, whole)
    problem, restored, summary = told.out.splitlines()
    assert problem.startswith(f"repaired: {newest} at position 0: expected bytes with digest ")
    assert problem.endswith("... (state)")
    assert restored.endswith(f": the byte at position {position}, from the digest of the document")
    assert summary == "2 segments, 140 B, 2 batches: 1 problem (1 state); after the repair: nothing is wrong"

    newest.write_bytes(whole[:-90])
    made_anew = lakelog("verify", "--repair")
    assert made_anew.status == 4
    assert made_anew.out.splitlines()[-2:] == [
        "2 segments, 140 B, 2 batches: 1 problem (1 state); after the repair: nothing is wrong",
        "exit status 4: the newest version of a state was rebuilt; other changes of the lost version are unknown",
    ]
    assert lakelog("verify").status == 0


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--kafka-dir", "{tmp}/nothing"], 1),
        (["--kafka-dir", "{tmp}/txn", "--topic", "other"], 1),
        (["--kafka-dir", "{tmp}/txn", "--partition", "7"], 1),
        (["--kafka-dir", "{tmp}/txn", "--root", "somewhere"], 2),
        (["--topic", "t"], 1),
    ],
)
def test_mistakes_are_named(lakelog, tmp_path: Path, arguments: list[str], status: int) -> None:
    copied("txn", tmp_path)
    ended = lakelog("verify", *(each.format(tmp=tmp_path) for each in arguments))
    assert (ended.status, ended.out) == (status, "")
    assert ended.err.startswith("lakelog: ")


def test_a_path_that_is_no_root_is_a_problem_and_an_empty_one_is_a_note(lakelog, tmp_path: Path) -> None:
    ended = lakelog("verify", "--root", str(tmp_path / "typo"))
    assert ended.status == 4
    assert "typo at position 0: expected a root, found no meta/" in ended.out
    (tmp_path / "other/log/keep-0").mkdir(parents=True)
    (tmp_path / "other/file").touch()
    ended = lakelog("verify", "--repair", "--root", str(tmp_path / "other"))
    assert ended.status == 4
    assert (tmp_path / "other/log/keep-0").exists()
    (tmp_path / "new").mkdir()
    for _ in range(2):
        ended = lakelog("verify", "--root", str(tmp_path / "new"))
        assert (ended.status, "note: " in ended.out) == (0, True)
        lakelog("topics", "settle", "--root", str(tmp_path / "new"))
