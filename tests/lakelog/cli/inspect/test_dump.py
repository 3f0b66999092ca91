"""`lakelog dump`."""

from __future__ import annotations

import base64
import gzip
import shutil
from pathlib import Path

import pytest

from lakelog.terminal.text import shown_lines

GOLDEN = Path(__file__).parents[3] / "golden"
TXN = GOLDEN / "txn/data/txn-0"
SHAPES = GOLDEN / "shapes/data/shapes-0"
BASE = f"{0:020d}"


def golden_dump(name: str) -> str:
    """Kafka's dump of a file, by its path from tests/golden, with the absolute path."""
    dumps = gzip.decompress((GOLDEN / name.partition("/")[0] / "dumps.txt.gz").read_bytes()).decode()
    begin = dumps.index(f"Dumping {name}\n")
    end = dumps.find("\nDumping ", begin) + 1
    return dumps[begin : end or None].replace(name, str(GOLDEN / name))


def test_a_log_is_printed_on_standard_output_and_its_gaps_on_standard_error(lakelog):
    name = f"txn/data/txn-0/{33:020d}.log"
    ended = lakelog("dump", "--deep-iteration", "--print-data-log", str(GOLDEN / name))
    assert ended.out + ended.err == golden_dump(name)
    assert ended.err.startswith(f"Non-consecutive offsets in {GOLDEN / name}\n  -1 is followed by 33\n")
    assert ended.status == 0


def test_a_log_is_printed_as_deep_as_asked_for(lakelog):
    path = str(SHAPES / f"{BASE}.log")
    whole = lakelog("dump", "--print-data-log", path).out
    deep = lakelog("dump", "--deep-iteration", path).out
    batches = lakelog("dump", path).out
    assert whole == shown_lines(golden_dump(f"shapes/data/shapes-0/{BASE}.log"))
    assert "payload: \\x00\\x01" in whole
    assert "key: " not in deep
    assert (
        "| offset: 5 CreateTime: 1700000000042 keySize: -1 valueSize: -1 sequence: -1 headerKeys: [заголовок,x]\n"
        in deep
    )
    assert batches == "".join(line for line in deep.splitlines(keepends=True) if not line.startswith("|"))
    assert batches.count("baseOffset: ") > 1


def test_files_are_named_as_they_were_given(lakelog, monkeypatch):
    monkeypatch.chdir(TXN)
    name = f"{33:020d}.log"
    ended = lakelog("dump", "--deep-iteration", f".//{name}")
    assert ended.out.startswith(f"Dumping ./{name}\n")
    assert ended.err.startswith(f"Non-consecutive offsets in {TXN}/./{name}\n")


def test_what_cannot_be_dumped_does_not_stop_the_others(lakelog, tmp_path):
    damaged = tmp_path / f"{BASE}.snapshot"
    damaged.write_bytes(b"\0\1damaged")
    unknown = tmp_path / "notes.txt"
    unknown.write_text("none of a log's files")
    good = TXN / f"{BASE}.index"
    ended = lakelog("dump", str(damaged), str(good), str(unknown), str(tmp_path / f"{5:020d}.log"))
    assert ended.status == 4
    assert golden_dump(f"txn/data/txn-0/{BASE}.index") in ended.out
    first, second, third = ended.err.splitlines()
    assert str(damaged) in first
    assert "ignoring unknown file" in second
    assert f"{5:020d}.log" in third


@pytest.mark.parametrize(
    "name", ["notes.txt", "notes", f"{BASE}.log", "x.log", f"{BASE}.index", "replication-offset-checkpoint"]
)
def test_one_file_that_cannot_be_dumped_is_an_error(lakelog, tmp_path, name):
    if name == "x.log":
        (tmp_path / name).write_bytes(b"")
    ended = lakelog("dump", str(tmp_path / name))
    assert ended.status == 1
    assert name in ended.err
    assert ended.err.count("\n") == 1


def test_a_directory_is_no_file(lakelog, tmp_path):
    folder = tmp_path / f"{BASE}.log"
    folder.mkdir()
    ended = lakelog("dump", str(folder))
    assert ended.status == 1
    assert "directory" in ended.err


def test_checkpoints_are_printed_as_their_text(lakelog, tmp_path):
    checkpoint, metadata = tmp_path / "recovery-point-offset-checkpoint", tmp_path / "partition.metadata"
    checkpoint.write_text("0\n1\norders 0 7\n")
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    ended = lakelog("dump", str(checkpoint), str(metadata))
    assert ended.out == (
        f"Dumping {checkpoint}\n0\n1\norders 0 7\n"
        f"Dumping {metadata}\nversion: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"
    )  # fmt: skip
    assert [each["line"] for each in lakelog("dump", "--format", "jsonl", str(checkpoint)).records] == [
        "0", "1", "orders 0 7",
    ]  # fmt: skip


def test_jsonl_has_an_object_for_each_batch_or_each_record(lakelog):
    path = str(SHAPES / f"{BASE}.log")
    batch = lakelog("dump", "--format", "jsonl", path).records[0]
    assert batch == {
        "file": path, "base_offset": 0, "last_offset": 23, "count": 24, "base_sequence": -1, "last_sequence": -1,
        "producer_id": -1, "producer_epoch": -1, "partition_leader_epoch": 0, "is_transactional": False,
        "is_control": False, "delete_horizon_ms": None, "position": 0, "timestamp_type": "CreateTime",
        "max_timestamp": 1700000000168, "size": 3024, "magic": 2, "compresscodec": "none", "crc": 1028818537,
        "isvalid": True,
    }  # fmt: skip
    deep = lakelog("dump", "--format", "jsonl", "--deep-iteration", path).records
    whole = lakelog("dump", "--format", "jsonl", "--print-data-log", path).records
    assert deep[5] == {
        "file": path, "offset": 5, "timestamp_type": "CreateTime", "timestamp": 1700000000042, "key_size": -1,
        "value_size": -1, "sequence": -1, "header_keys": ["заголовок", "x"],
    }  # fmt: skip
    assert [{name: record[name] for name in deep[0]} for record in whole] == deep
    assert (whole[5]["key"], whole[5]["value"]) == (None, None)
    assert [name for name, _ in whole[5]["headers"]] == ["заголовок", "x"]
    assert base64.b64decode(whole[18]["value"]) == bytes(range(256))


def test_jsonl_has_an_object_for_each_entry_of_the_small_files(lakelog):
    def records(name: str) -> list[dict[str, object]]:
        ended = lakelog("dump", "--format", "jsonl", "--print-data-log", str(TXN / name))
        assert ended.status == 0
        return [{key: value for key, value in each.items() if key != "file"} for each in ended.records]

    assert records(f"{BASE}.index")[1] == {"offset": 12, "position": 1245}
    assert records(f"{BASE}.timeindex")[0] == {"timestamp": 1700000005500, "offset": 11}
    assert records(f"{33:020d}.txnindex")[0] == {
        "version": 0, "producer_id": 2, "first_offset": 0, "last_offset": 38, "last_stable_offset": 12,
    }  # fmt: skip
    assert records(f"{33:020d}.snapshot")[0] == {
        "producer_id": 2, "producer_epoch": 0, "coordinator_epoch": -1, "current_txn_first_offset": 0,
        "last_timestamp": 1700000012500, "first_sequence": 9, "last_sequence": 14, "last_offset": 25, "offset_delta": 5,
        "timestamp": 1700000012500,
    }  # fmt: skip
    last = records(f"{748:020d}.snapshot")[-1]
    assert (last["current_txn_first_offset"], "first_sequence" in last) == (None, False)
    marker = records(f"{33:020d}.log")[0]
    assert (marker["end_txn_marker"], marker["coordinator_epoch"], "key" in marker) == ("COMMIT", 0, False)


def test_invalid_bytes_are_an_object_of_their_own_in_jsonl(lakelog, tmp_path):
    log = tmp_path / f"{BASE}.log"
    shutil.copyfile(TXN / f"{BASE}.log", log)
    log.write_bytes(log.read_bytes()[:4000])
    assert lakelog("dump", "--format", "jsonl", str(log)).records[-1] == {
        "file": str(log), "position": 3477, "invalid_bytes": 523,
    }  # fmt: skip
