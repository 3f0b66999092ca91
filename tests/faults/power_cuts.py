"""Runs an operation once on a real directory, and tries a power cut after each of its system calls.

The calls are recorded and applied to a simulated disk (disk.py), which says what can be left after a cut. There are
three kinds of trials:

    straight       The operation ends normally. The cut comes after any of its calls.
    after a kill   The process is killed after any of its calls, and another process continues. The cut comes after any
                   call of the second process, which has used names and bytes that the first did not sync.
    failed sync    One fsync fails, and may have lost the bytes that it should have saved. The process continues, and the
                   cut comes afterwards.

After each cut a reader must see permitted contents with everything that was acknowledged. When the operation has been
continued to its end, the topic must have its final contents, as after any other fault (trials.py). Contents that a
reader saw before they were acknowledged may be lost.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from storage_engine.clock import ManualClock
from storage_engine.errors import LogError
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.kafka.view import settle
from tests.faults.calls import Aim, Call, Fault, Tap
from tests.faults.disk import LOSSES, Disk, Event, Image, read_image, same
from tests.faults.operations import DAY_MS, Acknowledge
from tests.faults.system_calls import SystemCalls
from tests.faults.trials import Stage, finish
from tests.faults.world import START, ViolatedError, World

_ACKNOWLEDGED = "acknowledged"


@dataclass(frozen=True)
class Cut:
    """A power cut to try: the events before the cut, and the image that it leaves."""

    kind: str
    where: str
    image: Image
    acknowledged: int

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}"


def recorded(stage: Stage, action: Callable[[World, Acknowledge], None], now_ms: int = START) -> list[Event]:
    """Run an action on the root in its present state. Returns the action's changes and its acknowledgements, in their
    order."""
    events: list[Event] = []
    world = World(PosixStorage(stage.root), ManualClock(now_ms))
    with SystemCalls(stage.root, Tap(), events.append):
        action(world, lambda number: events.append(Event(_ACKNOWLEDGED, position=number)))
    return events


def sync_calls(stage: Stage) -> list[Call]:
    """Every fsync of an operation."""
    stage.reset()
    tap = Tap()
    with SystemCalls(stage.root, tap):
        stage.operation().act(World(PosixStorage(stage.root)), lambda _: None)
    return [call for call in tap.calls if call.name == "sync"]


class PowerCuts:
    """All power cuts that can be tried with one operation, or a share of them that a seed chooses."""

    def __init__(self, stage: Stage, share: float, seed: int, tries: int = 3, forgotten: str | None = None) -> None:
        """
        Args:
            share: of the cuts that are tried, up to 1.
            tries: the number of random outcomes that are tried for each cut, in addition to three fixed outcomes.
            forgotten: a regular expression of places. The syncs at these places are not applied to the disk, as if the
                operation did not make them.
        """
        self._forgotten = forgotten
        self._stage = stage
        self._share = share
        self._chance = random.Random(seed)
        self._tries = tries
        self._seen: set[bytes] = set()
        self.changes = 0
        """System calls that change something, in the operation when nothing goes wrong."""

    def __iter__(self) -> Iterator[Cut]:
        events = self._straight()
        self.changes = sum(event.name != _ACKNOWLEDGED for event in events)
        yield from self.straight(events)
        # Each kill point has as many cuts behind it as the way that is gone then; so few are tried of each.
        for number in range(1, len(events)):
            if self._chance.random() < min(1, 3 * self._share):
                yield from self._after_kill(events[:number])
        for call in sync_calls(self._stage):
            if self._chance.random() < min(1, 3 * self._share):
                yield from self._failed_sync(call)

    def straight(self, events: list[Event] | None = None) -> Iterator[Cut]:
        """The power cuts after the calls of an operation that ends normally."""
        events = self._straight() if events is None else events
        yield from self._cuts("straight", "", Disk(self._stage.image), events, 0, self._share)

    def killed_behind(self, call: str) -> Iterator[Cut]:
        """The process is killed after one system call, and a power cut follows. A regular expression such as `mkdir
        meta/t$` names the system call."""
        events = self._straight()
        numbers = [number for number, event in enumerate(events) if re.search(call, _named([event]))]
        assert numbers, f"no call is {call}"
        yield from self._after_kill(events[: numbers[0] + 1])

    def _straight(self) -> list[Event]:
        stage = self._stage
        stage.reset()
        events = recorded(stage, stage.operation().act)
        disk = Disk(stage.image)
        _apply(disk, events)
        assert same(disk.image(), read_image(stage.root)), "a system call was missed"
        if self._forgotten is not None:
            events = [each for each in events if each.name != "sync" or not re.search(self._forgotten, each.path)]
        return events

    def _after_kill(self, events: list[Event]) -> Iterator[Cut]:
        stage = self._stage
        disk = Disk(stage.image)
        acknowledged = _apply(disk, events)
        stage.reset(disk.image())

        def run_on(world: World, acknowledge: Acknowledge) -> None:
            stage.operation().run_on(world)
            acknowledge(len(stage.permitted) - 1)
            settle(world.topics)

        following = recorded(stage, run_on, START + DAY_MS)
        way = f"killed behind {_named(events)}, "
        yield from self._cuts("after a kill", way, disk, following, acknowledged, 0.1 * self._share)

    def _failed_sync(self, call: Call) -> Iterator[Cut]:
        stage = self._stage
        stage.reset()
        events: list[Event] = []
        acknowledged = 0

        def acknowledge(number: int) -> None:
            nonlocal acknowledged
            acknowledged = number

        with (
            SystemCalls(stage.root, Tap(Aim(call, Fault.FAILS)), events.append),
            suppress(LogError),
        ):  # the process ends
            stage.operation().act(World(PosixStorage(stage.root)), acknowledge)
        disk = Disk(stage.image)
        _apply(disk, events)
        yield from self._outcomes("failed sync", f"{call}, cut in the end", disk, acknowledged)

    def _cuts(
        self, kind: str, way: str, disk: Disk, events: list[Event], acknowledged: int, share: float
    ) -> Iterator[Cut]:
        for number, event in enumerate(events):
            acknowledged = max(acknowledged, _apply(disk, [event]))
            if number == len(events) - 1 or self._chance.random() < share:
                where = f"{way}cut behind {_named(events[: number + 1])}"
                yield from self._outcomes(kind, where, disk, acknowledged)

    def _outcomes(self, kind: str, where: str, disk: Disk, acknowledged: int) -> Iterator[Cut]:
        for what, loss in LOSSES.items():
            for number in range(self._tries if "chance" in what else 1):
                image = disk.after_power_cut(loss, self._chance.getrandbits(32))
                digest = _digest(image, acknowledged)
                if digest not in self._seen:
                    self._seen.add(digest)
                    yield Cut(kind, f"{where}, {what} survives ({number})", image, acknowledged)


def try_cut(stage: Stage, cut: Cut) -> None:
    """Continue after a power cut, and check the result.

    Raises:
        ViolatedError: says what does not hold.
    """
    stage.reset(cut.image)
    operation = stage.operation()
    try:
        world = World(PosixStorage(stage.root))
        stage.position(operation, world, cut.acknowledged)
        operation.check(world, cut.acknowledged)
        finish(stage, operation, cut.acknowledged)
    except LogError as error:
        raise ViolatedError(f"{type(error).__name__}: {error}") from error


def _apply(disk: Disk, events: list[Event]) -> int:
    acknowledged = 0
    for event in events:
        if event.name == _ACKNOWLEDGED:
            acknowledged = event.position
        else:
            disk.apply(event)
    return acknowledged


def _named(events: list[Event]) -> str:
    event = events[-1]
    return f"call {len(events)}, {event.name} {event.target or event.path}"


def _digest(image: Image, acknowledged: int) -> bytes:
    digest = hashlib.blake2b(str(acknowledged).encode())
    files = {each.file: number for number, each in enumerate(image)}
    for each in image:
        digest.update(f"{each.path} {files[each.file] if each.file is not None else None} {each.modified_ns} ".encode())
        digest.update(each.data)
    return digest.digest()
