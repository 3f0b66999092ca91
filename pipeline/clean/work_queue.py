"""Orders the compactions and merges of a run within its budget, and hands over each result as soon as it is ready.

    1. partitions to compact because something in them is too old, as with max.compaction.lag.ms: that is a promise
    2. other partitions to compact; both kinds by their share of dirty bytes, then by the number of dirty bytes
    3. merges, topic by topic, those first that save most segments a byte

A piece of work is one task, or several small tasks of a topic that follow one another in this order. As soon as a piece
has ended, its outcomes are handed over, on the thread that asks for them. So a kill loses only the pieces that were
running. Tasks of equal priority are in random order, so that two runs at the same time rarely begin the same task.

The caller asks the queue for the next piece, begins the piece, and takes the pieces that have ended. A Runner
(clean.runners) runs the pieces: in threads of the driver, each of which waits for its own Spark job, or in the caller's
thread (InThisThread).
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
from storage_engine.cleaner.merging import MergeTask
from storage_engine.cleaner.selection import Reason

SMALL_BYTES = 256 * 1024**2
"""So much is read in a second or two. Small tasks together are a piece up to here."""

Task = CleaningTask | MergeTask
_Outcome = TypeVar("_Outcome")
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Left:
    """A task that was not begun, and what was against it."""

    task: Task
    limit: Limit


def in_order(tasks: Iterable[Task]) -> list[Task]:
    """Tasks as they are to be done, the most pressing first."""
    shuffled = list(tasks)
    random.shuffle(shuffled)
    compactions = [task for task in shuffled if isinstance(task, CleaningTask)]
    merges = [task for task in shuffled if isinstance(task, MergeTask)]
    saved, read = Counter[str](), Counter[str]()
    for task in merges:
        saved[task.topic_id] += len(task.run) - 1
        read[task.topic_id] += task.bytes_to_read

    def urgency(task: CleaningTask) -> tuple[float, ...]:
        by_ratio = task.plan.reason in (Reason.DIRTY_RATIO, Reason.FORCED)
        return by_ratio, -task.plan.dirty_ratio, -task.plan.dirty_bytes

    def by_topic(task: MergeTask) -> tuple[float, str]:
        return -saved[task.topic_id] / max(1, read[task.topic_id]), task.topic_id

    return [*sorted(compactions, key=urgency), *sorted(merges, key=by_topic)]


class Runner(Protocol[_Outcome]):
    """Runs pieces of work."""

    @property
    def at_once(self) -> int:
        """How many pieces may run at the same time."""

    def submit(self, tasks: Sequence[Task]) -> Future[Sequence[_Outcome]]:
        """Begin a piece; its outcomes, one for each task in their order, once it has ended."""


@dataclass(frozen=True)
class EndedPiece(Generic[_Outcome]):
    """A piece that has run. future: its outcomes, or the error that ended it."""

    tasks: Sequence[Task]
    future: Future[Sequence[_Outcome]]


class WorkQueue(Generic[_Outcome]):
    """Tasks that wait for their turn, and the pieces that run, as far as the budget has room. For one thread."""

    def __init__(self, tasks: Iterable[Task], budget: Budget, runner: Runner[_Outcome]) -> None:
        self.left: list[Left] = []
        self._waiting = deque(in_order(tasks))
        self._budget = budget
        self._runner = runner
        self._running: dict[Future[Sequence[_Outcome]], tuple[Sequence[Task], float]] = {}

    @property
    def is_worked_off(self) -> bool:
        return not self._waiting and not self._running

    def next_piece(self) -> Sequence[Task]:
        """What may begin now; nothing where as much as may run is running, or nothing waits."""
        return self._next_tasks() if self._waiting and len(self._running) < self._runner.at_once else []

    def begin(self, tasks: Sequence[Task]) -> None:
        """Begin a piece, or what is still due of it."""
        begun = self._budget.begin(_size(tasks))
        self._running[self._runner.submit(tasks)] = tasks, begun

    def wait(self) -> list[EndedPiece[_Outcome]]:
        """The pieces that have ended, once there is one; none if none runs."""
        ended = []
        for future in wait(self._running, return_when=FIRST_COMPLETED).done:
            tasks, begun = self._running.pop(future)
            self._budget.end(_size(tasks), begun)
            ended.append(EndedPiece(tasks, future))
        return ended

    def _next_tasks(self) -> list[Task]:
        """The next task that the budget has room for, with those that follow it as long as they are small together."""
        piece: list[Task] = []
        size = 0
        while self._waiting and (not piece or _belong_together(piece[0], self._waiting[0], size)):
            task = self._waiting.popleft()
            limit = self._budget.against(size + task.bytes_to_read)
            if limit:
                self.left.append(Left(task, limit))
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
    """Does at once what it is given. What that raises is in the future, as with every Executor."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        future: Future[_T] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 (whoever asks for the result gets it)
            future.set_exception(error)
        return future
