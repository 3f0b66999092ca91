"""What is done first, what together, and what is left."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from pipeline import work_queue
from pipeline.budget import Budget, Limit
from pipeline.work_queue import InThisThread, Task, WorkQueue, in_order
from storage_engine.cleaner.cleaner import CleaningTask
from storage_engine.cleaner.merging import MergeTask
from storage_engine.cleaner.selection import Bound, CleaningPlan, Reason
from storage_engine.config import TopicConfig
from storage_engine.log.filenames import SegmentFolder
from storage_engine.log.partition_state import Segment

FILES = SegmentFolder("data/x/0/", 1)


def compaction(topic: str, clean: int, dirty: int, reason: Reason = Reason.DIRTY_RATIO) -> CleaningTask:
    """Reads clean + 2 * dirty bytes."""
    plan = CleaningPlan((), 0, 10, clean, dirty, Bound.ACTIVE_SEGMENT, reason)
    return CleaningTask(topic, topic, 0, FILES, plan, TopicConfig(), 1000, 0)


def merge(topic: str, *sizes: int, first: int = 0) -> MergeTask:
    run = tuple(Segment(first + at, f"s{first + at}", size, first + at + 1, 0, 0, 0) for at, size in enumerate(sizes))
    return MergeTask(topic, topic, 0, FILES, run, 4096)


def worked_off(tasks: Sequence[Task], budget: Budget) -> tuple[list[list[Task]], WorkQueue[Task]]:
    """The pieces in the order in which they were done."""
    pieces: list[list[Task]] = []
    queue = WorkQueue[Task](tasks, budget)

    def done(piece: Sequence[Task], future: Future[Sequence[Task]]) -> None:
        assert future.result() == piece
        pieces.append(list(piece))

    queue.work_off(InThisThread(), lambda: 1, lambda piece: piece, lambda piece: piece, done)
    return pieces, queue


def test_what_is_too_old_comes_first_then_what_is_dirtiest_then_what_is_largest_then_merges() -> None:
    old = compaction("old", 900, 100, Reason.MAX_COMPACTION_LAG)
    dirty, large, small = compaction("dirty", 1, 9), compaction("large", 400, 600), compaction("small", 4, 6)
    many, few = merge("many", *[1] * 50), merge("few", 25, 25)
    assert in_order([few, small, dirty, many, large, old]) == [old, dirty, large, small, many, few]


def test_merges_of_a_topic_are_one_piece_and_those_of_two_are_two() -> None:
    tasks = [merge(topic, 10, 10, first=first) for first in (0, 2, 4) for topic in ("one", "other")]
    pieces, _ = worked_off(tasks, Budget())
    assert [len(piece) for piece in pieces] == [3, 3]
    assert [{task.topic for task in piece} for piece in pieces] in ([{"one"}, {"other"}], [{"other"}, {"one"}])


def test_what_is_large_is_a_piece_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "SMALL_BYTES", 100)
    large = compaction("t", 0, 500)
    pieces, _ = worked_off([large, compaction("t", 10, 20), compaction("t", 15, 15)], Budget())
    assert pieces[0] == [large]
    assert [len(piece) for piece in pieces] == [1, 2]


def test_the_budget_goes_to_the_dirtiest_and_what_it_leaves_is_named() -> None:
    dirty, clean, small = compaction("t", 0, 30), compaction("t", 40, 10), compaction("u", 9, 1)
    pieces, queue = worked_off([clean, small, dirty], Budget(max_bytes=80))
    assert pieces == [[dirty], [small]]
    assert [(each.task, each.limit) for each in queue.left] == [(clean, Limit.BYTES)]


def test_a_piece_has_no_more_tasks_than_the_budget_has_room_for() -> None:
    tasks = [merge("t", 10, 10, first=first) for first in range(0, 20, 2)]
    pieces, queue = worked_off(tasks, Budget(max_bytes=70))
    assert [len(piece) for piece in pieces] == [3]
    assert len(queue.left) == 7


def test_what_others_have_done_meanwhile_is_not_begun_and_costs_nothing() -> None:
    tasks = [compaction("t", 0, 20), compaction("u", 10, 15)]
    ran: list[Task] = []
    queue = WorkQueue[None](tasks, Budget(max_bytes=50))

    def run(piece: Sequence[Task]) -> Sequence[None]:
        ran.extend(piece)
        return [None for _ in piece]

    queue.work_off(
        InThisThread(), lambda: 1, lambda piece: [task for task in piece if task.topic == "u"], run, lambda *_: None
    )
    assert ran == [tasks[1]]
    assert queue.left == []


def test_each_piece_is_handed_over_while_others_run() -> None:
    """The second piece ends only when the first has been handed over."""
    tasks = [compaction("fast", 0, 20), compaction("slow", 10, 15)]
    handed_over = threading.Event()
    order: list[str] = []
    queue = WorkQueue[bool](tasks, Budget())

    def run(piece: Sequence[Task]) -> Sequence[bool]:
        return [piece[0].topic == "fast" or handed_over.wait(60)]

    def done(piece: Sequence[Task], future: Future[Sequence[bool]]) -> None:
        assert future.result() == [True]
        order.append(piece[0].topic)
        handed_over.set()

    with ThreadPoolExecutor(2) as threads:
        queue.work_off(threads, lambda: 2, lambda piece: piece, run, done)
    assert order == ["fast", "slow"]
