"""The work queue: the order of the tasks, how tasks are grouped into pieces, and which tasks are left out if the budget
is too small.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from pipeline.clean import work_queue
from pipeline.clean.budget import Budget, Limit
from pipeline.clean.work_queue import InThisThread, Task, WorkQueue, in_order
from storage_engine.cleaner.cleaner import CleaningTask
from storage_engine.cleaner.segment_merging import MergeTask
from storage_engine.cleaner.selection import CompactionBound, CompactionPlan, CompactionReason
from storage_engine.config import TopicConfig
from storage_engine.log.filenames import SegmentFolder
from storage_engine.log.partition_state import Segment

FILES = SegmentFolder("data/x/0/", 1)


def compaction(
    topic: str, clean: int, dirty: int, reason: CompactionReason = CompactionReason.DIRTY_RATIO
) -> CleaningTask:
    """Reads clean + 2 * dirty bytes."""
    plan = CompactionPlan((), 0, 10, clean, dirty, CompactionBound.ACTIVE_SEGMENT, reason)
    return CleaningTask(topic, topic, 0, FILES, plan, TopicConfig(), 1000, 0)


def merge(topic: str, *sizes: int, first: int = 0) -> MergeTask:
    run = tuple(Segment(first + at, f"s{first + at}", size, first + at + 1, 0, 0, 0) for at, size in enumerate(sizes))
    return MergeTask(topic, topic, 0, FILES, run, 4096)


@dataclass
class Runs:
    """A Runner whose outcomes are the tasks themselves, or what `run` makes of them."""

    executor: Executor = field(default_factory=InThisThread)
    at_once: int = 1
    run: Callable[[Sequence[Task]], Sequence[Any]] = lambda tasks: tasks

    def submit(self, tasks: Sequence[Task]) -> Future[Sequence[Any]]:
        return self.executor.submit(self.run, tasks)


def worked_off(tasks: Sequence[Task], budget: Budget) -> tuple[list[list[Task]], WorkQueue[Task]]:
    """The pieces in the order in which they were done."""
    pieces: list[list[Task]] = []
    queue = WorkQueue[Task](tasks, budget, Runs())
    while not queue.is_worked_off:
        while piece := queue.next_piece():
            queue.begin(piece)
        for ended in queue.wait():
            assert ended.future.result() == ended.tasks
            pieces.append(list(ended.tasks))
    return pieces, queue


def test_what_is_too_old_comes_first_then_what_is_dirtiest_then_what_is_largest_then_merges() -> None:
    old = compaction("old", 900, 100, CompactionReason.MAX_COMPACTION_LAG)
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
    queue = WorkQueue[Task](tasks, Budget(max_bytes=50), Runs())
    ran: list[Task] = []
    while not queue.is_worked_off:
        while piece := queue.next_piece():
            if due := [task for task in piece if task.topic == "u"]:
                queue.begin(due)
        ran += [task for ended in queue.wait() for task in ended.future.result()]
    assert ran == [tasks[1]]
    assert queue.left == []


def test_no_more_pieces_begin_than_may_run_at_once() -> None:
    tasks = [compaction(topic, 0, 20) for topic in "tuvw"]
    go_on = threading.Event()
    with ThreadPoolExecutor(4) as threads:
        queue = WorkQueue[bool](tasks, Budget(), Runs(threads, at_once=2, run=lambda _: [go_on.wait(60)]))
        for _ in range(2):
            queue.begin(queue.next_piece())
        assert queue.next_piece() == []
        assert not queue.is_worked_off
        go_on.set()
        assert queue.wait()
        assert queue.next_piece() != []


def test_each_piece_is_handed_over_while_others_run() -> None:
    """The second piece ends only when the first has been handed over."""
    tasks = [compaction("fast", 0, 20), compaction("slow", 10, 15)]
    handed_over = threading.Event()
    order: list[str] = []

    def run(piece: Sequence[Task]) -> Sequence[bool]:
        return [piece[0].topic == "fast" or handed_over.wait(60)]

    with ThreadPoolExecutor(2) as threads:
        queue = WorkQueue[bool](tasks, Budget(), Runs(threads, 2, run))
        while piece := queue.next_piece():
            queue.begin(piece)
        while not queue.is_worked_off:
            for ended in queue.wait():
                assert ended.future.result() == [True]
                order.append(ended.tasks[0].topic)
                handed_over.set()
    assert order == ["fast", "slow"]


def test_a_piece_that_fails_hands_its_error_over_and_stops_no_other() -> None:
    def run(piece: Sequence[Task]) -> Sequence[Task]:
        if piece[0].topic == "bad":
            raise ValueError("a defect")
        return piece

    queue = WorkQueue[Task]([compaction("bad", 0, 20), compaction("good", 10, 15)], Budget(), Runs(run=run))
    ended: dict[str, Future[Sequence[Task]]] = {}
    while not queue.is_worked_off:
        while piece := queue.next_piece():
            queue.begin(piece)
        ended |= {each.tasks[0].topic: each.future for each in queue.wait()}
    assert isinstance(ended["bad"].exception(), ValueError)
    assert [task.topic for task in ended["good"].result()] == ["good"]


@pytest.mark.parametrize("executor", [InThisThread(), ThreadPoolExecutor(1)], ids=["in this thread", "threads"])
def test_what_the_work_raises_is_in_the_future_and_not_for_who_submits(executor: Executor) -> None:
    def fail(error: BaseException) -> None:
        raise error

    with executor:
        for error in (ValueError("a defect"), KeyboardInterrupt()):
            future = executor.submit(fail, error)
            assert future.exception(60) is error
            assert future.done()
        assert executor.submit(lambda a, b: a - b, 5, b=2).result(60) == 3
