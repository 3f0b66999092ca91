"""Runs simulated processes in turns. Each process runs until its next storage call; then a seeded random choice decides
which process runs next.

    a task        a thread of a simulated process; it runs the project's real code, and only one task runs at a time
    pause()       called by the storage before each effect: other tasks run, the process pauses for long, or it dies
    a process     dies as a whole: after that, no call of any of its tasks has an effect

Only one thread runs at a time. A switch between two threads takes 3 to 5 microseconds, a hundredth of the time between
two calls. A switch between two greenlets would take 0.3 microseconds, but greenlets need a package. Only the random
choices decide the order, so a seed determines a schedule.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from storage_engine.clock import ManualClock

MOST_STEPS = 30_000
"""The most storage calls of a schedule. No schedule needs so many; one with more calls would never end."""

_SLEEPS_MORE = {"put": 10, "put, reply": 10, "listed": 10, "sync": 3, "close new file": 3}
"""Where a sleep matters most."""
_SLEEPS_OUT = 0.3
"""The share of the long pauses that last until all other processes have ended, or pause, too."""
_WAITS_MS = (1_000, 60_000, 3_600_000, 25 * 3_600_000)


class Killed(BaseException):
    """Unwinds the threads of a process that is dead. No `except Exception` stops it, and no call of it takes place.

    in_call: whether the process died during this call. Then possibly a part of the call took effect.
    """

    def __init__(self, *, in_call: bool = False) -> None:
        self.in_call = in_call


class Violation(AssertionError):  # noqa: N818 - it is what the model looks for
    """Something happened that must never happen."""


@dataclass(frozen=True)
class Character:
    """How a schedule runs: probabilities per storage call.

    goes_on: that the same task goes on. kill, sleep: of the process. longest_sleep: in storage calls.
    fail, lose_reply: of the call, where it can fail or has a reply to lose. time_passes: on everybody's clock.
    """

    goes_on: float
    kill: float
    sleep: float
    longest_sleep: int
    fail: float
    lose_reply: float
    time_passes: float

    @classmethod
    def drawn(cls, chance: random.Random) -> Self:
        return cls(
            goes_on=chance.choice([0.0, 0.5, 0.8, 0.95]),
            kill=chance.choice([0.0, 0.0, 0.003, 0.01]),
            sleep=chance.choice([0.0, 0.01, 0.04]),
            longest_sleep=chance.choice([30, 200, 600]),
            fail=chance.choice([0.0, 0.0, 0.005, 0.02]),
            lose_reply=chance.choice([0.0, 0.02, 0.2]),
            time_passes=chance.choice([0.0, 0.01, 0.1]),
        )


@dataclass(eq=False)
class Process:
    """What dies at once and shares nothing but the storage with others. epoch: of the writer that it is, if it is one."""

    name: str
    dead: bool = False
    epoch: int | None = None
    on_sleep: Callable[[], None] | None = None


@dataclass(eq=False)
class Task:
    """One thread of a process. wakes_at: the step from which it may go on. waits_for: a task that must end first."""

    process: Process
    body: Callable[[], Any]
    wakes_at: int = 0
    waits_for: Task | None = None
    done: bool = False
    outcome: Any = None
    error: BaseException | None = None
    baton: threading.Lock = field(default_factory=threading.Lock)

    def result(self) -> Any:
        """What the body returned or raised."""
        if self.error is not None:
            raise self.error
        return self.outcome


class Scheduler:
    """Runs one schedule. `current` is the task that runs; None outside of run(), where calls just take place."""

    def __init__(self, chance: random.Random, character: Character, clock: ManualClock) -> None:
        self.chance = chance
        self._clock = clock
        self.character = character
        self.step = 0
        self.current: Task | None = None
        self.violation: BaseException | None = None
        self.trace: list[tuple[str, str, str]] = []
        """Of each call: process, verb, key."""
        self.kills = self.sleeps = 0
        self._tasks: list[Task] = []
        self._finished = threading.Lock()

    def spawn(self, process: Process, body: Callable[[], Any], after: int = 0) -> Task:
        """A new task, which begins so many steps from now."""
        task = Task(process, body, wakes_at=self.step + after)
        task.baton.acquire()
        self._tasks.append(task)
        threading.Thread(target=self._run_task, args=(task,), daemon=True).start()
        return task

    def run(self) -> None:
        """Let all tasks run until none is left.

        Raises:
            Violation, or what no task may raise: the first of them.
        """
        self._finished.acquire()
        self._hand_over(self._chosen())
        self._finished.acquire()
        self._finished.release()
        self.current = None
        if self.violation is not None:
            raise self.violation

    def pause(self, verb: str, key: str) -> None:
        """A storage call is about to take its effect: others may come first.

        Raises:
            Killed: it does not take place, because the process dies or the schedule ends.
        """
        task = self.current
        if task is None:
            return
        if task.process.dead or self.violation is not None:
            raise Killed
        self.step += 1
        if len(self.trace) > MOST_STEPS:
            self.fail(Violation(f"no end after {MOST_STEPS} storage calls"))
        self.trace.append((task.process.name, verb, key))
        character, chance = self.character, self.chance
        if chance.random() < character.time_passes:
            self._clock.advance(chance.choice(_WAITS_MS))
        if chance.random() < character.kill:
            self.kills += 1
            task.process.dead = True
            raise Killed(in_call=True)
        if chance.random() < character.sleep * _SLEEPS_MORE.get(verb, 1):
            self.sleeps += 1
            task.wakes_at = self.step + int(character.longest_sleep ** chance.random() ** 0.5) + 1
            if chance.random() < _SLEEPS_OUT:
                task.wakes_at += MOST_STEPS
            if task.process.on_sleep:
                task.process.on_sleep()
        elif chance.random() < character.goes_on:
            return
        self._switch()

    def rest(self, most: int) -> None:
        """Let others make up to so many calls first."""
        if self.current is not None:
            self.current.wakes_at = self.step + self.chance.randrange(most)
            self._switch()

    def draw(self, probability: float) -> bool:
        """Whether something happens; never outside of run()."""
        return self.current is not None and self.chance.random() < probability

    def fail(self, violation: BaseException) -> None:
        """End the schedule with this."""
        if self.violation is None:
            self.violation = violation
        if self.current is not None:
            raise Killed
        raise violation

    def wait_for(self, other: Task) -> None:
        """Go on when another task has ended."""
        assert self.current is not None
        if not other.done:
            self.current.waits_for = other
            self._switch()
            self.current.waits_for = None

    def _switch(self) -> None:
        task, chosen = self.current, self._chosen()
        assert task is not None
        assert chosen is not None
        if chosen is not task:
            self._hand_over(chosen)
            task.baton.acquire()
        if task.process.dead:
            raise Killed

    def _chosen(self) -> Task | None:
        """Who is next. If all sleep, those that wake first."""
        ready = [task for task in self._tasks if task.waits_for is None or task.waits_for.done]
        awake = [task for task in ready if task.wakes_at <= self.step]
        if not awake and ready:
            self.step = min(task.wakes_at for task in ready)
            awake = [task for task in ready if task.wakes_at <= self.step]
        if not awake:
            return None
        return awake[int(self.chance.random() * len(awake))]

    def _hand_over(self, task: Task | None) -> None:
        self.current = task
        (self._finished if task is None else task.baton).release()

    def _run_task(self, task: Task) -> None:
        task.baton.acquire()
        try:
            if not task.process.dead and self.violation is None:
                task.outcome = task.body()
        except Killed as killed:
            task.error = killed
        except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
            task.error = error
        task.done = True
        self._tasks.remove(task)
        self._hand_over(self._chosen())


class ProcessThreads:
    """In place of the ThreadPoolExecutor of the code under test: its threads are tasks of the process that made it."""

    def __init__(self, scheduler: Scheduler, most: int) -> None:
        self._scheduler = scheduler

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Submitted:
        scheduler = self._scheduler
        if scheduler.current is not None:
            return Submitted(scheduler, scheduler.spawn(scheduler.current.process, lambda: work(*arguments)))
        return Submitted(scheduler, Task(Process("alone"), lambda: None, done=True, outcome=work(*arguments)))

    def shutdown(self, *, cancel_futures: bool = False) -> None:
        pass


@dataclass(frozen=True)
class Submitted:
    """In place of a Future."""

    scheduler: Scheduler
    task: Task

    def result(self) -> Any:
        wait_for_all([self])
        return self.task.result()


def wait_for_all(futures: Iterable[Submitted]) -> None:
    """In place of concurrent.futures.wait."""
    for future in futures:
        if future.scheduler.current is not None:
            future.scheduler.wait_for(future.task)
