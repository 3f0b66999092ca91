"""Computes the plans of topics in threads of its own.

A page asks for plans, and waits a moment for them. If a plan needs longer, the page says that the plan is being computed,
and asks again every second. All pages that ask for the plan of a topic meanwhile get the same computation.

A plan that was ready in time is computed again for the next page. A plan that took longer is kept for KEPT_MS, and at
least as long as its computation took. Otherwise a page would never show the plan, because each time that the page asks
again would begin a new computation. The errors of computations are kept in the same way. A plan that is kept may be
older than the log. This does no harm: a plan is applied only if the log has not changed since (topic.clean.applying_plans).

When the server ends, a computation ends before the next partition. A computation changes nothing.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from storage_engine.errors import LogError
from storage_engine.topic.topics import Topics

if TYPE_CHECKING:
    from storage_engine.topic.clean.cleaning_plan import Plan

KEPT_MS = 60_000
AT_ONCE = 4
"""So many plans are computed at the same time. While one of them waits for the storage, others can continue."""
MOST_KEPT = 64
"""The results of so many topics are kept. Of more topics, the oldest results are forgotten. A computation that has not
ended is never forgotten."""
_STOP_SECONDS = 3


@dataclass(eq=False)
class PlanComputation:
    """The computation of the plan of one topic. Only its thread and TopicPlans set the fields.

    asked_ms: when a page first asked for this computation, in milliseconds since 1970.
    partitions, done: the number of partitions, and of those whose plan is ready; 0 before the state was read.
    is_slow: whether a page did not get the result in time.
    ended_ms: when the computation ended; None while it runs or waits for a thread.
    plan: None if the computation failed.
    name: identifies the plan: a digest of its document.
    failure: why the computation failed, and where.
    """

    topic: str
    asked_ms: int
    partitions: int = 0
    done: int = 0
    is_slow: bool = False
    ended_ms: int | None = None
    plan: Plan | None = None
    name: str = ""
    failure: tuple[Exception, TracebackType | None] | None = None

    def result(self) -> Plan:
        """The plan of a computation that has ended.

        Raises:
            UnknownTopicError: there is no such topic.
            ConfigError: the settings of the topic are wrong.
            CorruptionError: the state of the topic is damaged.
            StorageError: a decision required to read a segment, and the read failed.
        """
        if self.failure is not None:
            error, where = self.failure
            raise error.with_traceback(where)
        assert self.plan is not None
        return self.plan

    def is_kept(self, now_ms: int) -> bool:
        """Whether a page gets this computation, and not a new one."""
        if self.ended_ms is None:
            return True
        return self.is_slow and now_ms - self.ended_ms < max(KEPT_MS, self.ended_ms - self.asked_ms)


class TopicPlans:
    """The plans of the topics of a root. Several threads may use them."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """
        Args:
            now_ms: returns the current time, in milliseconds since 1970.
        """
        self._now_ms = now_ms
        self._condition = threading.Condition()
        self._known: dict[str, PlanComputation] = {}
        self._waiting: deque[tuple[Topics, PlanComputation]] = deque()
        self._threads: set[threading.Thread] = set()
        self._is_stopped = False

    def ask(self, topics: Topics, names: Sequence[str], seconds: float) -> list[PlanComputation]:
        """The computations of the plans of these topics, in the same order.

        Args:
            topics: the storage, the settings and the clock for the computations that begin now.
            seconds: how long to wait until all of them have ended.
        """
        with self._condition:
            found = [self._find(topics, name) for name in names]
            self._condition.wait_for(
                lambda: self._is_stopped or all(each.ended_ms is not None for each in found), seconds
            )
            for each in found:
                each.is_slow |= each.ended_ms is None
            return found

    def forget(self, name: str) -> None:
        """The topic has changed: its next plan is computed from now on."""
        with self._condition:
            self._known.pop(name, None)

    def stop(self, seconds: float = _STOP_SECONDS) -> None:
        """End all computations before their next partitions, and wait until they have ended."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify_all()
            left = list(self._threads)
        deadline = time.monotonic() + seconds
        for thread in left:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _find(self, topics: Topics, name: str) -> PlanComputation:
        now_ms = self._now_ms()
        known = self._known.get(name)
        if known is not None and known.is_kept(now_ms):
            return known
        made = PlanComputation(name, now_ms)
        self._known.pop(name, None)
        self._known[name] = made
        ended = [each for each, computation in self._known.items() if computation.ended_ms is not None]
        for each in ended[: max(0, len(self._known) - MOST_KEPT)]:
            del self._known[each]
        self._waiting.append((topics, made))
        if len(self._threads) < AT_ONCE and not self._is_stopped:
            thread = threading.Thread(target=self._work, name="plan", daemon=True)
            self._threads.add(thread)
            thread.start()
        return made

    def _work(self) -> None:
        while True:
            with self._condition:
                if self._is_stopped or not self._waiting:
                    self._threads.remove(threading.current_thread())
                    return
                topics, computation = self._waiting.popleft()
            try:
                self._compute(topics, computation)
            except _StoppedError:
                continue
            except LogError as error:
                computation.failure = error, None
            except Exception as error:  # noqa: BLE001 - it is raised again for each page that asks
                computation.failure = error, error.__traceback__
            with self._condition:
                computation.ended_ms = self._now_ms()
                self._condition.notify_all()

    def _compute(self, topics: Topics, computation: PlanComputation) -> None:
        from storage_engine.topic.clean.cleaning_plan import (
            encode_plan,
            plan_topics,
        )  # slow, and the overview needs no plan

        def begin(number: int) -> None:
            computation.done = number
            if self._is_stopped:
                raise _StoppedError

        state = topics.state(computation.topic)
        computation.partitions = len(state.partitions)
        plan = plan_topics(topics, [state], topics.clock.now_ms(), begin_partition=begin)
        computation.name = hashlib.sha256(encode_plan(plan)).hexdigest()
        computation.plan = plan


class _StoppedError(Exception):
    """The server ends."""
