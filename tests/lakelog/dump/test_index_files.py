"""Dumps of indexes that contradict their .log or have no .log. If Kafka 4.3.1's own tool can print such an index,
the outputs are compared."""

from __future__ import annotations

import shutil

import pytest

from lakelog.dump import DumpOptions
from storage_engine.errors import CorruptionError, NotFoundError
from tests.lakelog.dump.dumping import BASE, GOLDEN, append, dumped, overwrite, segment


def test_offsets_that_jump_are_reported_and_an_index_that_misses_its_batch(tmp_path):
    log = segment(tmp_path)
    overwrite(log, 1245, (13).to_bytes(8, "big"))  # was 12; outside the CRC
    _, told, error = dumped(log)
    assert told == "Non-consecutive offsets in /file\n  11 is followed by 13\n  13 is followed by 13\n"
    assert error is None
    assert dumped(log, DumpOptions())[1] == ""
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
