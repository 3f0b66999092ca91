"""Dumps of a damaged .log. If Kafka 4.3.1's own tool can print the same file, the outputs are compared."""

from __future__ import annotations

import numpy as np
import pytest

from lakelog.dump import DumpOptions
from storage_engine.errors import CorruptionError
from tests.lakelog.dump.dumping import BASE, append, dumped, overwrite, segment


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
    printed, _, error = dumped(log, DumpOptions())
    assert [line.partition(" ")[0] for line in printed.splitlines()[2:]] == ["baseOffset:"] * 9
    assert [line.endswith("isvalid: false") for line in printed.splitlines()[2:]] == [False, True, *[False] * 7]
    assert error is None


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
