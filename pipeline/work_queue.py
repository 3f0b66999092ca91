"""The order in which partitions are compacted and segments merged, within a budget, and each result put to use at once.

    1. partitions to compact because something has become too old, as with max.compaction.lag.ms: that is a promise
    2. other partitions to compact; both kinds by their share of dirty bytes, then by how many there are
    3. merges, topic by topic, those first that save most segments a byte

A piece of work is one task, or several small ones of a topic that follow each other here. As soon as a piece has ended
its results are handed over, on the thread that called; so a kill loses what was running and nothing else. What is equal
goes in any order: two runs at once do not walk in step.

Deciding what comes next is pure. Who runs the pieces is an Executor's matter: threads of the driver, each of which waits
for a Spark job of its own, or the thread that called (InThisThread).
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar

from pipeline.budget import Budget, Limit
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


class WorkQueue(Generic[_Outcome]):
    """Tasks that wait for their turn; `work_off` does what the budget has room for. For one thread."""

    def __init__(self, tasks: Iterable[Task], budget: Budget) -> None:
        self.left: list[Left] = []
        self._waiting = deque(in_order(tasks))
        self._budget = budget

    def work_off(
        self,
        executor: Executor,
        at_once: Callable[[], int],
        still_due: Callable[[Sequence[Task]], Sequence[Task]],
        run: Callable[[Sequence[Task]], Sequence[_Outcome]],
        done: Callable[[Sequence[Task], Future[Sequence[_Outcome]]], None],
    ) -> None:
        """Run piece after piece.

        Args:
            at_once: how many pieces may run at the same time.
            still_due: asked before a piece begins, for others may have done it meanwhile.
            run: does a piece, on a thread of the executor.
            done: is given each piece that has ended, on this thread, and does not raise what the future holds.
        """
        running: dict[Future[Sequence[_Outcome]], tuple[Sequence[Task], float]] = {}
        while self._waiting or running:
            while self._waiting and len(running) < at_once():
                piece = still_due(self._next_piece())
                if piece:
                    begun = self._budget.begin(_size(piece))
                    running[executor.submit(run, piece)] = piece, begun
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                piece, begun = running.pop(future)
                self._budget.end(_size(piece), begun)
                done(piece, future)

    def _next_piece(self) -> list[Task]:
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
    """Does at once what it is given."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        future: Future[_T] = Future()
        future.set_result(fn(*args, **kwargs))
        return future
