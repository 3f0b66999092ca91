"""Orders the compactions and merges of a run, begins them within the budget, and returns each result when it is ready.

    1. compactions that max.compaction.lag.ms requires now, because this lag is a guarantee
    2. all other compactions
       Within 1 and within 2, the compaction with the larger share of dirty bytes comes first. If two shares are equal,
       the compaction with more dirty bytes comes first.
    3. merges, topic by topic; topics whose merges save the most segments per byte come first

A piece of work is one task, or several small tasks of one topic that follow one another in this order. Tasks of equal
priority are in random order, so two runs that work at the same time rarely begin the same task.

The caller first asks the queue for the next piece of work, and begins it. Then the caller waits until pieces have
ended. So the caller can commit each piece as soon as it is ready, and a kill loses only the pieces that were running. A
Runner (clean.runners) runs the pieces. A Runner uses the caller's thread alone (InThisThread), or threads of the
driver. Each thread of the driver waits for a Spark job.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from typing import Generic, ParamSpec, Protocol, TypeVar

from pipeline.clean.budget import Budget, Limit
from storage_engine.cleaner.cleaner import CleaningTask
from storage_engine.cleaner.segment_merging import MergeTask
from storage_engine.cleaner.selection import CompactionReason

SMALL_BYTES = 256 * 1024**2
"""The largest size, in bytes, of a piece with several tasks. This many bytes are read in a second or two."""

Task = CleaningTask | MergeTask
_Outcome = TypeVar("_Outcome")
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True)
class NotBegun:
    """A task that was not begun, and the limit of the budget that forbade the task."""

    task: Task
    limit: Limit


def in_order(tasks: Iterable[Task]) -> list[Task]:
    """The tasks in the order of their priority, highest first."""
    shuffled = list(tasks)
    random.shuffle(shuffled)
    compactions = [task for task in shuffled if isinstance(task, CleaningTask)]
    merges = [task for task in shuffled if isinstance(task, MergeTask)]
    saved, read = Counter[str](), Counter[str]()
    for task in merges:
        saved[task.topic_id] += len(task.run) - 1
        read[task.topic_id] += task.bytes_to_read

    def urgency(task: CleaningTask) -> tuple[float, ...]:
        by_ratio = task.plan.reason in (CompactionReason.DIRTY_RATIO, CompactionReason.FORCED)
        return by_ratio, -task.plan.dirty_ratio, -task.plan.dirty_bytes

    def by_topic(task: MergeTask) -> tuple[float, str]:
        return -saved[task.topic_id] / max(1, read[task.topic_id]), task.topic_id

    return [*sorted(compactions, key=urgency), *sorted(merges, key=by_topic)]


class Runner(Protocol[_Outcome]):
    """Runs pieces of work."""

    @property
    def at_once(self) -> int:
        """The number of pieces that may run at the same time."""

    def submit(self, tasks: Sequence[Task]) -> Future[Sequence[_Outcome]]:
        """Begin a piece. The result of the future has one outcome for each task, in the order of the tasks."""


@dataclass(frozen=True)
class EndedPiece(Generic[_Outcome]):
    """A piece that has ended. future: contains the outcomes of its tasks, or the error that ended the piece."""

    tasks: Sequence[Task]
    future: Future[Sequence[_Outcome]]


class WorkQueue(Generic[_Outcome]):
    """Holds the waiting tasks, the running pieces, and the tasks for which the budget has no room. Only one thread may
    use this object."""

    def __init__(self, tasks: Iterable[Task], budget: Budget, runner: Runner[_Outcome]) -> None:
        self.left: list[NotBegun] = []
        self._waiting = deque(in_order(tasks))
        self._budget = budget
        self._runner = runner
        self._running: dict[Future[Sequence[_Outcome]], tuple[Sequence[Task], float]] = {}

    @property
    def is_worked_off(self) -> bool:
        return not self._waiting and not self._running

    def next_piece(self) -> Sequence[Task]:
        """The tasks of the next piece; empty if no task waits, or if as many pieces as possible are running."""
        return self._next_tasks() if self._waiting and len(self._running) < self._runner.at_once else []

    def begin(self, tasks: Sequence[Task]) -> None:
        """Begin a piece with these tasks."""
        begun = self._budget.begin(_size(tasks))
        self._running[self._runner.submit(tasks)] = tasks, begun

    def wait(self) -> list[EndedPiece[_Outcome]]:
        """Wait until at least one piece has ended, and return the ended pieces; empty if no piece is running."""
        ended = []
        for future in wait(self._running, return_when=FIRST_COMPLETED).done:
            tasks, begun = self._running.pop(future)
            self._budget.end(_size(tasks), begun)
            ended.append(EndedPiece(tasks, future))
        return ended

    def _next_tasks(self) -> list[Task]:
        """The next task for which the budget has room, together with the tasks after it, as long as all of them
        together are small."""
        piece: list[Task] = []
        size = 0
        while self._waiting and (not piece or _belong_together(piece[0], self._waiting[0], size)):
            task = self._waiting.popleft()
            limit = self._budget.against(size + task.bytes_to_read)
            if limit:
                self.left.append(NotBegun(task, limit))
            else:
                piece.append(task)
                size += task.bytes_to_read
        return piece


def _belong_together(first: Task, following: Task, size: int) -> bool:
    same = type(first) is type(following) and first.topic_id == following.topic_id
    return same and size + following.bytes_to_read <= SMALL_BYTES


def _size(tasks: Iterable[Task]) -> int:
    return sum(task.bytes_to_read for task in tasks)


class InThisThread(Executor):
    """An Executor that calls the function in the caller's thread. The returned Future contains the result of the
    function, or its error."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        future: Future[_T] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 (future.result() raises it)
            future.set_exception(error)
        return future
