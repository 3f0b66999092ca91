"""Several tasks can each compact a part of a partition. Tests that the files are then the same as after a compaction by
a single task.
"""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from storage_engine.cleaner.cleaned_transactions import CleanedTransactions, UnfinishedTransactions
from storage_engine.cleaner.cleaner import CleanedPartition, CleaningTask
from storage_engine.cleaner.splitting import (
    LEAST_BYTES,
    delete_runs,
    joined,
    parts_wanted,
    rewrite,
    split,
    survey,
)
from storage_engine.log.filenames import SEGMENT_SUFFIXES
from storage_engine.record.control import ControlType
from storage_engine.topic.append.staged_run import staging_folder
from tests.storage_engine.cleaner.test_cleaner import HORIZON, Log, put
from tests.storage_engine.cleaner.test_passes import KIBIBYTE, MEBIBYTE, cleaned, task_of

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


def cleaned_in_parts(log: Log, task: CleaningTask, count: int) -> tuple[CleanedPartition, list[list[bytes]]]:
    """As test_passes.cleaned, by `count` tasks, each of which is sent to where it runs."""
    folder = staging_folder(task.topic_id, 1)
    parts = pickle.loads(pickle.dumps(split(log.storage, task, count, folder)))
    assert [segment for part in parts for segment in part.segments] == list(task.plan.segments)
    assert len(parts) == count
    surveyed = [pickle.loads(pickle.dumps(survey(log.storage, part))) for part in parts]
    made = joined([rewrite(log.storage, parts, surveyed, number) for number in reversed(range(count))][::-1])
    delete_runs(log.storage, surveyed)
    assert not list(log.storage.list("staging/"))
    contents = []
    for segment in made.segments:
        keys = [task.files.key(segment.name, suffix) for suffix in SEGMENT_SUFFIXES]
        contents.append([log.storage.read(key) for key in keys])
        for key in keys:
            log.storage.delete(key)
    return replace(made, segments=tuple(each._replace(name="") for each in made.segments)), contents


@pytest.mark.parametrize("memory", [KIBIBYTE, MEBIBYTE])
def test_a_split_partition_becomes_the_same_bytes(tmp_path, memory: int) -> None:
    log = Log(tmp_path, segment_bytes="4000")
    for turn in range(6):
        rows = [put(f"key {number % 70}", None if number % 11 == turn else f"{turn}") for number in range(turn, 200)]
        log.append(*rows[:90])
        log.append(*rows[90:])
        if turn == 2:  # so that there is a clean part, with delete horizons that have passed
            assert not log.compact().failed
            log.clock.advance(HORIZON)
    log.append(put("end"))
    task = replace(task_of(log), memory_bytes=memory)
    assert task.plan.clean_bytes
    made, contents = cleaned_in_parts(log, task, 3)
    assert len(made.segments) >= 3
    assert (made, contents) == cleaned(log, task, MEBIBYTE)


def test_what_parts_leave_open_adds_up_in_any_grouping() -> None:
    first = UnfinishedTransactions({ABORT: frozenset({1, 2}), COMMIT: frozenset({3})}, {})
    second = UnfinishedTransactions({ABORT: frozenset({4})}, {ABORT: frozenset({1, 4}), COMMIT: frozenset({3})})
    third = UnfinishedTransactions({COMMIT: frozenset({3})}, {ABORT: frozenset({2})})
    together = first.then(second).then(third)
    assert together == first.then(second.then(third))
    assert together.producers == {ABORT: {4}, COMMIT: {3}}


def test_a_transaction_that_spans_parts_is_carried_over() -> None:
    carried = UnfinishedTransactions({COMMIT: frozenset({7})}, {})
    assert CleanedTransactions((), carried).unended.producers[COMMIT] == {7}
    assert not CleanedTransactions(()).unended.producers[COMMIT]


def test_a_partition_is_split_where_others_leave_tasks_idle(tmp_path) -> None:
    log = Log(tmp_path)
    log.append(put("a"))
    log.append(put("end"))
    task = task_of(log)

    def of(size: int) -> CleaningTask:
        return replace(task, plan=replace(task.plan, clean_bytes=0, dirty_bytes=size // 2))

    large, most = 16 * LEAST_BYTES, 1000 * LEAST_BYTES
    assert parts_wanted(of(large), large, 8) == 8
    assert parts_wanted(of(large), large, 1) == 1
    assert parts_wanted(of(large), most, 8) == 1, "there is work enough for all"
    assert parts_wanted(of(LEAST_BYTES), LEAST_BYTES, 8) == 1, "it is done soon"
    assert parts_wanted(of(large), large, 100) == 16, "no part is smaller than is worth it"
