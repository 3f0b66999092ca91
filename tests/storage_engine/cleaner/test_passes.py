"""Tests that the choice of outdated records does not depend on the available memory."""

from __future__ import annotations

import errno
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_engine.cleaner.cleaner import CleaningTask, clean_partition
from storage_engine.cleaner.offset_map import KeyMap
from storage_engine.errors import CorruptionError, StorageError
from storage_engine.log.filenames import SEGMENT_SUFFIXES, data_folder
from storage_engine.topic.clean.topic_compaction import cleaning_tasks
from tests.storage_engine.cleaner.test_cleaner import HORIZON, START, Log, put
from tests.storage_engine.record_tables import Row
from tests.stores import file_in

KIBIBYTE = 1024
MEBIBYTE = 1024**2

_keys = st.integers(0, 40).map(lambda number: b"k%d" % number) | st.sampled_from([b"", b"a" * 7, b"a" * 8, b"a" * 300])
_rows = st.builds(Row, st.none() | _keys, st.none() | st.binary(max_size=9), st.just(()), st.just(START))
_appends = st.lists(_rows, min_size=1, max_size=60)
_steps = st.lists(_appends | st.sampled_from(["compact", "zstd", "gzip", "uncompressed"]), min_size=2, max_size=12)


def task_of(log: Log) -> CleaningTask:
    (task,) = cleaning_tasks(log.storage, log.chain.newest(), log.config, log.broker, log.clock.now_ms(), force=True)
    return task


def cleaned(log: Log, task: CleaningTask, memory_bytes: int):
    """What a compaction reports, and the bytes of its files, which are deleted again."""
    made = clean_partition(log.storage, replace(task, memory_bytes=memory_bytes))
    contents = []
    for segment in made.segments:
        keys = [task.files.key(segment.name, suffix) for suffix in SEGMENT_SUFFIXES]
        contents.append([log.storage.read(key) for key in keys])
        for key in keys:
            log.storage.delete(key)
    return replace(made, segments=tuple(each._replace(name="") for each in made.segments)), contents


@settings(max_examples=12, deadline=None)
@given(steps=_steps, memory=st.sampled_from([KIBIBYTE, 2 * KIBIBYTE, 5000, 64 * KIBIBYTE]))
def test_any_log_is_compacted_to_the_same_bytes_with_any_memory(tmp_path_factory, steps, memory) -> None:
    log = Log(tmp_path_factory.mktemp("log"), cleanup_policy="delete", segment_bytes="3000")
    for step in steps:
        if isinstance(step, list):
            log.append(*step)
        elif step == "compact":
            log.topics.alter("t", configs={"cleanup.policy": "compact"})
            assert not log.compact().failed
            log.clock.advance(HORIZON)
            log.topics.alter("t", configs={"cleanup.policy": "delete"})
        else:
            log.topics.alter("t", configs={"compression.type": step})
    log.topics.alter("t", configs={"cleanup.policy": "compact"})
    log.append(put("end"))
    for task in cleaning_tasks(log.storage, log.chain.newest(), log.config, log.broker, log.clock.now_ms(), force=True):
        assert cleaned(log, task, memory) == cleaned(log, task, MEBIBYTE)


def test_one_compaction_does_it_all_whatever_the_number_of_keys(tmp_path) -> None:
    log = Log(tmp_path)
    for turn in range(2):
        log.append(*(put(f"key {number}", str(turn)) for number in range(1000)))
    log.append(put("end"))
    task = task_of(log)
    in_passes, in_one = cleaned(log, task, KIBIBYTE), cleaned(log, task, MEBIBYTE)
    assert in_passes == in_one
    assert (in_passes[0].keys, in_passes[0].records_after, in_passes[0].first_dirty_offset) == (1000, 1000, 2000)


def test_a_key_larger_than_the_memory_is_a_key(tmp_path) -> None:
    log = Log(tmp_path)
    log.append(put("k" * 20_000, "1"), put("k" * 19_999 + "x", "1"), put("a", "1"))
    log.append(put("k" * 20_000, "2"), put("a", "2"))
    log.append(put("end"))
    made, contents = cleaned(log, task_of(log), KIBIBYTE)
    assert (made, contents) == cleaned(log, task_of(log), MEBIBYTE)
    assert (made.keys, made.records_after) == (3, 3)


def test_records_in_front_of_the_first_dirty_one_of_their_batch_are_outdated_by_the_others(tmp_path) -> None:
    """The log can begin in the middle of a batch, and a compaction with it."""
    log = Log(tmp_path)
    log.append(put("a", "1"), put("b", "1"), put("a", "2"), put("c", "1"), put("c", "2"))
    log.append(put("end"))
    task = task_of(log)
    task = replace(task, plan=replace(task.plan, first_dirty_offset=2))
    made, contents = cleaned(log, task, MEBIBYTE)
    assert (made.keys, made.records_after, made.outdated) == (2, 3, 2)
    assert (made, contents) == cleaned(log, task, KIBIBYTE)


def test_a_map_grows_by_itself_as_far_as_its_memory_reaches(tmp_path) -> None:
    log = Log(tmp_path)
    log.append(*(put(f"key {number}") for number in range(50_000)))
    log.append(put("end"))
    task = task_of(log)
    assert cleaned(log, task, 8 * MEBIBYTE)[0].keys == cleaned(log, task, 100 * KIBIBYTE)[0].keys == 50_000
    assert KeyMap(64 * MEBIBYTE).table.nbytes < MEBIBYTE


@pytest.mark.parametrize("memory", [KIBIBYTE, MEBIBYTE])
def test_damage_is_found_in_passes_too(tmp_path, memory: int) -> None:
    log = Log(tmp_path)
    log.append(*(put(f"key {number}") for number in range(500)))
    log.append(put("end"))
    path = file_in(log.storage, log.first_file())
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError):
        clean_partition(log.storage, replace(task_of(log), memory_bytes=memory))


def test_a_full_folder_for_temporary_files_is_named(tmp_path, monkeypatch) -> None:
    log = Log(tmp_path)
    log.append(*(put(f"key {number}") for number in range(500)))
    log.append(put("end"))
    # Another thread of this process can ask for a temporary file, too, so each caller gets a file of its own.
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("r+b", buffering=0))  # noqa: SIM115
    with pytest.raises(StorageError, match="TMPDIR") as raised:
        clean_partition(log.storage, replace(task_of(log), memory_bytes=KIBIBYTE))
    assert str(errno.ENOSPC) in str(raised.value)
    segments = log.chain.newest().partitions[0].segments
    there = {file.key.rsplit("/", 1)[1] for file in log.storage.list(data_folder(task_of(log).topic_id, 0))}
    assert {name.removesuffix(".log") for name in there if name.endswith(".log")} == {each.name for each in segments}
