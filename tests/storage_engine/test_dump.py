"""Dumps that Kafka 4.3.1's own tool made: of every file under tests/golden, and of damaged ones (known answers)."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage_engine.dump import DumpedFile, Findings, Wanted, dump_file, java_texts
from storage_engine.errors import CorruptionError, LogError, NotFoundError

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = sorted(path.parent.name for path in GOLDEN.glob("*/dumps.txt.gz"))
WITHOUT_STANDARD_ERROR = {"compact.before2", "compact.after2h", "compact_delete.before2", "compact_delete.after2h"}
"""Made by Kafka's classes in a process of ours, where only standard output was kept."""
EVERYTHING = Wanted(records=True, contents=True)


def dumped(path: Path, wanted: Wanted = EVERYTHING, name: str = "file") -> tuple[str, str, LogError | None]:
    """What is printed, what is found besides, and how it ends."""
    findings = Findings()
    lines: list[bytes] = []
    error = None
    try:
        lines.extend(dump_file(DumpedFile(path, name, f"/{name}"), wanted, findings))
    except LogError as raised:
        error = raised
    return b"".join(lines).decode(), "".join(f"{told}\n" for told in findings.text()), error


@pytest.mark.parametrize("folder", FOLDERS)
def test_dump_is_what_kafkas_tool_printed(folder):
    dumps = re.split(rb"(?m)^(?=Dumping )", gzip.decompress((GOLDEN / folder / "dumps.txt.gz").read_bytes()))[1:]
    assert dumps
    for dump in dumps:
        name = dump[len("Dumping ") : dump.index(b"\n")].decode()
        findings = Findings()
        lines = b"".join(dump_file(DumpedFile(GOLDEN / name, name, name), EVERYTHING, findings))
        if folder not in WITHOUT_STANDARD_ERROR:
            lines += "".join(f"{told}\n" for told in findings.text()).encode()
        assert lines == dump, name


BASE = f"{0:020d}"
"""The segment that is damaged here: nine batches of transactions, 4,204 bytes; the second lies at 527, the third at 1245."""


def segment(tmp_path: Path) -> Path:
    """Copies of that segment's .log, .index and .timeindex; the path of the .log."""
    for suffix in (".log", ".index", ".timeindex"):
        shutil.copyfile(GOLDEN / "txn/data/txn-0" / f"{BASE}{suffix}", tmp_path / f"{BASE}{suffix}")
    return tmp_path / f"{BASE}.log"


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_batch_that_is_cut_off_is_counted_as_invalid_bytes(tmp_path):
    log = segment(tmp_path)
    whole, _, _ = dumped(log)
    log.write_bytes(log.read_bytes()[:4000])
    printed, told, error = dumped(log)
    assert printed.endswith(f"\nFound 523 invalid bytes at the end of {BASE}.log\n")
    assert whole.startswith(printed[: printed.index("Found")])
    assert (printed.count("\n"), told, error) == (38, "", None)
    printed, told, error = dumped(log.with_suffix(".timeindex"))
    assert printed.endswith("timestamp: 1700000013000 offset: 26\ntimestamp: 1700000016000 offset: 32\n")
    assert told == (
        "The following indexed offsets are not found in :/file\nIndexed offset: 32, found log offset: -1\n"
    )  # fmt: skip
    assert error is None


@pytest.mark.parametrize("zeros", [1, 17])
def test_bytes_that_are_too_few_for_a_header_are_invalid(tmp_path, zeros):
    log = segment(tmp_path)
    whole, _, _ = dumped(log)
    append(log, bytes(zeros))
    assert dumped(log) == (whole + f"Found {zeros} invalid bytes at the end of {BASE}.log\n", "", None)


def test_zeros_that_could_be_a_header_are_damage_behind_all_batches(tmp_path):
    log = segment(tmp_path)
    whole, _, _ = dumped(log)
    append(log, bytes(18))
    printed, told, error = dumped(log)
    assert (printed, told) == (whole, "")
    assert isinstance(error, CorruptionError)
    assert (error.file, error.position, error.found) == (str(log), 4204, "0")


def test_records_of_a_batch_with_another_crc_are_printed(tmp_path):
    log = segment(tmp_path)
    whole, _, _ = dumped(log)
    overwrite(log, 700, b"#")
    printed, told, error = dumped(log)
    changed = [
        (before, after) for before, after in zip(whole.split("\n"), printed.split("\n"), strict=True) if before != after
    ]
    (batch, damaged_batch), (record, damaged_record) = changed
    assert damaged_batch == batch.replace("isvalid: true", "isvalid: false")
    assert batch.startswith("baseOffset: 6 lastOffset: 11 count: 6 ")
    assert record.startswith("| offset: 6 ")
    assert sum(a != b for a, b in zip(record, damaged_record, strict=True)) == 1
    assert (told, error) == ("", None)


def test_records_end_with_the_first_that_cannot_be_decoded(tmp_path):
    log = segment(tmp_path)
    overwrite(log, 588, b"\x01")  # the length of the second batch's first record
    printed, _, error = dumped(log)
    assert len(printed.splitlines()) == 10
    assert printed.splitlines()[-1].startswith("baseOffset: 6 ")
    assert isinstance(error, CorruptionError)
    assert error.position == 527


def test_a_count_above_what_the_batch_holds_is_damage_behind_its_records(tmp_path):
    log = segment(tmp_path)
    overwrite(log, 527 + 57, (200).to_bytes(4, "big"))
    printed, _, error = dumped(log)
    assert len(printed.splitlines()) == 16
    assert printed.splitlines()[-1].startswith("| offset: 11 CreateTime: 1700000005500 keySize: 4 valueSize: 123 ")
    assert isinstance(error, CorruptionError)
    assert error.position == 527


def test_batches_behind_damaged_records_are_printed_without_records(tmp_path):
    log = segment(tmp_path)
    overwrite(log, 588, b"\x01")
    printed, _, error = dumped(log, Wanted())
    assert [line.partition(" ")[0] for line in printed.splitlines()[2:]] == ["baseOffset:"] * 9
    assert [line.endswith("isvalid: false") for line in printed.splitlines()[2:]] == [False, True, *[False] * 7]
    assert error is None


def test_offsets_that_jump_are_told_and_an_index_that_misses_its_batch(tmp_path):
    log = segment(tmp_path)
    overwrite(log, 1245, (13).to_bytes(8, "big"))  # was 12; outside the CRC
    _, told, error = dumped(log)
    assert told == "Non-consecutive offsets in /file\n  11 is followed by 13\n  13 is followed by 13\n"
    assert error is None
    assert dumped(log, Wanted())[1] == ""
    printed, told, error = dumped(log.with_suffix(".index"))
    assert printed.endswith("offset: 25 position: 2468\noffset: 26 position: 3331\n")
    assert told == "Mismatches in :/file\n  Index offset: 12, log offset: 13\n"
    assert error is None
    _, told, error = dumped(log.with_suffix(".timeindex"))
    assert told == (
        "The following indexed offsets are not found in :/file\nIndexed offset: 12, found log offset: 13\n"
    )  # fmt: skip
    assert error is None


def test_time_index_is_held_against_the_records_and_itself(tmp_path):
    path = segment(tmp_path).with_suffix(".timeindex")
    overwrite(path, 12, (1700000005400).to_bytes(8, "big"))
    printed, told, error = dumped(path)
    assert printed.count("\n") == 7
    assert told == (
        "Found timestamp mismatch in :/file\n"
        "  Index timestamp: 1700000005400, log timestamp: 1700000006000\n"
        "Found out of order timestamp in :/file\n"
        "  Index timestamp: 1700000005400, Previously indexed timestamp: 1700000005500\n"
    )
    assert error is None


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_what_a_preallocated_index_goes_on_with_is_not_printed(tmp_path, suffix):
    path = segment(tmp_path).with_suffix(suffix)
    trimmed = dumped(path)
    append(path, bytes(10_000))
    assert dumped(path) == trimmed
    assert dumped(path.with_suffix(".timeindex"))[1:] == ("", None)


def test_a_position_outside_the_log_is_damage_of_the_index(tmp_path):
    path = segment(tmp_path).with_suffix(".index")
    overwrite(path, 12, (5000).to_bytes(4, "big"))
    printed, _, error = dumped(path)
    assert printed == "Dumping file\noffset: 11 position: 527\n"
    assert isinstance(error, CorruptionError)
    assert (error.file, error.position, error.found) == (str(path), 8, "5000")


def test_a_time_index_needs_no_offset_index_and_no_index_goes_without_a_log(tmp_path):
    log = segment(tmp_path)
    path = log.with_suffix(".timeindex")
    with_index = dumped(path)
    path.with_suffix(".index").unlink()
    assert dumped(path) == with_index
    log.unlink()
    assert isinstance(dumped(path)[2], NotFoundError)


def test_indexes_under_data_find_the_log_of_their_name(tmp_path):
    log = segment(tmp_path)
    for suffix in (".log", ".index", ".timeindex"):
        log.with_suffix(suffix).rename(tmp_path / f"{BASE}.42.9f3ac1d2{suffix}")
    for suffix, lines in ((".log", 44), (".index", 6), (".timeindex", 7)):
        printed, told, error = dumped(tmp_path / f"{BASE}.42.9f3ac1d2{suffix}")
        assert (printed.count("\n"), told, error) == (lines, "", None)


@pytest.mark.parametrize("name", [path.name for path in sorted((GOLDEN / "legacy/data").iterdir())])
def test_indexes_of_messages_of_magic_0_and_1_fit_their_log(tmp_path, name):
    shutil.copyfile(GOLDEN / "legacy/data" / name / f"{BASE}.log", tmp_path / f"{BASE}.log")
    for suffix in (".index", ".timeindex"):
        shutil.copyfile(GOLDEN / "legacy/rebuilt_by_broker" / name / f"{BASE}{suffix}", tmp_path / f"{BASE}{suffix}")
        assert dumped(tmp_path / f"{BASE}{suffix}")[1:] == ("", None)


def test_a_message_of_magic_1_with_another_crc_is_printed(tmp_path):
    path = tmp_path / f"{BASE}.log"
    shutil.copyfile(GOLDEN / "legacy/data/legacy_v1_none-0" / f"{BASE}.log", path)
    overwrite(path, 60, b"#")  # in the value
    printed, _, error = dumped(path)
    entry, message = printed.splitlines()[2:4]
    assert entry.endswith("crc: 3238313496 isvalid: false")
    assert "keySize: 2 valueSize: 47 isValid: false crc: 3238313496 key: k0 payload: " in message
    assert error is None


def test_messages_of_magic_1_have_their_own_fields_in_jsonl(tmp_path):
    path = GOLDEN / "legacy/data/legacy_v1_gzip-0" / f"{BASE}.log"
    entry = json.loads(dumped(path, Wanted(jsonl=True))[0].splitlines()[0])
    assert entry == {
        "file": "file", "offset": 2, "position": 0, "timestamp_type": "CreateTime", "max_timestamp": 1700000000000,
        "size": 310, "magic": 1, "compresscodec": "gzip", "crc": 1931249918, "isvalid": True,
    }  # fmt: skip
    message = json.loads(dumped(path, Wanted(records=True, contents=True, jsonl=True))[0].splitlines()[1])
    assert base64.b64decode(message.pop("value")).startswith(b'{"k":525278,"w":"alpha"}')
    assert message == {
        "file": "file", "offset": 1, "timestamp_type": "CreateTime", "timestamp": 1699999998500, "key_size": 2,
        "value_size": 145, "is_valid": True, "crc": 715982846,
        "key": base64.b64encode(b"k1").decode(), "headers": [],
    }  # fmt: skip


def test_every_truncation_prints_a_beginning_of_the_whole(tmp_path):
    log = segment(tmp_path)
    whole, data = dumped(log)[0], log.read_bytes()
    for size in range(0, len(data), 13):
        log.write_bytes(data[:size])
        printed, _, error = dumped(log)
        assert whole.startswith(printed.partition("Found")[0])
        assert error is None


def test_damage_of_any_byte_is_printed_or_a_typed_error(tmp_path):
    log = segment(tmp_path)
    data = log.read_bytes()
    random = np.random.default_rng(20260)
    for position in random.integers(0, len(data), 150).tolist():
        log.write_bytes(data[:position] + random.bytes(1) + data[position + 1 :])
        for suffix in (".log", ".index", ".timeindex"):
            printed, _, error = dumped(log.with_suffix(suffix))
            assert printed.startswith("Dumping file\n")
            assert error is None or isinstance(error, CorruptionError)


def test_findings_stand_in_the_order_of_kafkas_hash_map(tmp_path):
    log = segment(tmp_path)
    overwrite(log, 1245, (13).to_bytes(8, "big"))
    findings = Findings()
    names = [f"/logs/t-0/{number:020d}.log" for number in (0, 33, 166, 180)]
    for name in names:
        for _ in dump_file(DumpedFile(log, name, name), EVERYTHING, findings):
            pass
    heads = [told.partition("\n")[0].removeprefix("Non-consecutive offsets in ") for told in findings.text()]
    assert heads == [names[number] for number in (2, 0, 1, 3)]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"caf\xc3\xa9", "café"),
        (b"\xff", "\ufffd"),
        (b"a\xe2\x82", "a\ufffd"),
        (b"\xe2\x28\xa1", "\ufffd(\ufffd"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0\xed\xb0\x80z", "\ufffd\ufffdz"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd" * 4),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"", ""),
        (None, None),
    ],
)
def test_bytes_become_the_text_that_java_makes_of_them(data, text):
    assert java_texts(pa.array([data], pa.binary())) == [text]
    assert java_texts(pa.array([data, b"\xff"], pa.binary())) == [text, "\ufffd"]
