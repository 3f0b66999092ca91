"""Runs one trial: an operation meets one fault, and is then continued. The records that readers see are compared with
the naive model.

1  The root is restored to its state before the operation, byte for byte.
2  A separate process runs the operation, with its calls intercepted, and fails, is killed, or ends normally.
3  A reader must see one of the permitted contents, and never contents from before an acknowledged change. This is also
   checked for a reader that began before step 2.
4  Another process continues the operation, as an operator or Spark would after a crash. Afterwards the topic has its
   final contents, `verify` finds no problem, and the view log/ matches the state.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

from storage_engine.clock import ManualClock
from storage_engine.errors import LogError
from storage_engine.storage import TEMPORARY, Storage
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.clean.sweeping import sweep_topic, unnamed_files
from storage_engine.topic.dropped_files import delete_dropped
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from storage_engine.verify.findings import Kind, problems
from storage_engine.verify.root import lost_versions
from storage_engine.verify.root.root_check import check_root
from storage_engine.verify.root.root_repair import repair_root
from storage_engine.verify.segment_check import Options
from tests.faults.calls import Aim, Call, Fault, Tap
from tests.faults.disk import Image, read_image, write_image
from tests.faults.operations import DAY_MS, SWEEPING, Acknowledge, Operation, Pruning
from tests.faults.system_calls import SystemCalls
from tests.faults.verbs import CountedStorage
from tests.faults.world import BROKER, START, Contents, ViolatedError, World, read
from tests.storage_engine.topic.wrapped_storage import PlainStorage

_CHILD_SECONDS = 60
MEMORY = Path("/dev/shm")
"""A folder in memory, where a sync costs nothing. The effect of syncs is tested on the simulated disk."""


def work_folder() -> Path:
    """A new folder for roots, in memory where there is such a place."""
    return Path(tempfile.mkdtemp(prefix="lakelog-faults-", dir=MEMORY if MEMORY.is_dir() else None))


@dataclass
class Stage:
    """An operation's root before the operation, and the contents that readers are allowed to see."""

    operation: type[Operation]
    root: Path
    image: Image
    permitted: list[Contents]

    @classmethod
    def prepared(cls, operation: type[Operation], folder: Path) -> Stage:
        root = folder / "root"
        root.mkdir()
        permitted = operation().prepare(World(PosixStorage(root)))
        assert operation().look(World(PosixStorage(root))) == permitted[0]
        return cls(operation, root, read_image(root), permitted)

    def reset(self, image: Image | None = None) -> None:
        """Make the root as it was before, or as it is told."""
        shutil.rmtree(self.root)
        self.root.mkdir()
        write_image(self.image if image is None else image, self.root)

    def position(self, operation: Operation, world: World, acknowledged: int) -> int:
        """Which of the permitted contents a reader sees.

        Raises:
            ViolatedError: the reader sees other contents, or contents that are older than the acknowledged ones.
        """
        seen = operation.look(world)
        # From the end: some operations change nothing that a reader sees.
        for number in range(len(self.permitted) - 1, -1, -1):
            if self.permitted[number] == seen:
                if number >= acknowledged:
                    return number
                raise ViolatedError(f"contents {number} are seen, where {acknowledged} were acknowledged")
        raise ViolatedError(f"a reader sees what no step of the model holds: {differences(seen, self.permitted[-1])}")


def differences(seen: Contents, expected: Contents) -> str:
    """The differences between the contents that a reader sees and the expected contents."""
    told: list[str] = []
    for name in sorted(seen.keys() | expected.keys()):
        one, other = seen.get(name, ()), expected.get(name, ())
        told += [
            f"{name}-{number}: {found}, where the last is {wanted}"
            for number, (found, wanted) in enumerate(itertools.zip_longest(one, other))
            if found != wanted
        ]
    return "; ".join(told)[:2000]


@dataclass
class Ended:
    """How a process ended: the acknowledged contents, whether the process reached the fault, and the error that ended
    it."""

    acknowledged: int = 0
    reached: bool = False
    error: str | None = None
    is_typed: bool = True
    killed: bool = False


def in_process(action: Callable[[Acknowledge, Callable[[], None]], None]) -> Ended:
    """Run an action in a separate process. The process ends by itself, or is killed.

    Args:
        action: gets two functions. One acknowledges contents; the other reports that the fault was reached.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        signal.alarm(_CHILD_SECONDS)
        _run(action, writing)
    os.close(writing)
    with os.fdopen(reading) as lines:
        facts = [json.loads(line) for line in lines]
    _, status = os.waitpid(child, 0)
    ended = Ended(killed=os.WIFSIGNALED(status))
    for what, value in facts:
        if what == "acknowledged":
            ended.acknowledged = value
        elif what == "reached":
            ended.reached = True
        else:
            ended.error, ended.is_typed = value, what == "failed"
    if ended.killed and os.WTERMSIG(status) != signal.SIGKILL:
        ended.error, ended.is_typed = f"was ended by signal {os.WTERMSIG(status)}", False
    return ended


def _run(action: Callable[[Acknowledge, Callable[[], None]], None], pipe: int) -> NoReturn:
    def tell(what: str, value: object) -> None:
        os.write(pipe, f"{json.dumps((what, value))}\n".encode())

    try:
        action(lambda number: tell("acknowledged", number), lambda: tell("reached", True))
    except LogError as error:
        tell("failed", f"{type(error).__name__}: {error}")
    except BaseException:  # noqa: BLE001 (what it was is told)
        tell("broke", traceback.format_exc()[-3000:])
    os._exit(0)


class Level:
    """Where calls are counted and fail."""

    name: str

    def run(self, root: Path, tap: Tap, action: Callable[[Storage], None]) -> None:
        """Run this with a storage whose calls go through the tap."""
        raise NotImplementedError


class SystemCallLevel(Level):
    name = "system calls"

    def run(self, root: Path, tap: Tap, action: Callable[[Storage], None]) -> None:
        with SystemCalls(root, tap):
            action(PosixStorage(root))


class VerbLevel(Level):
    name = "storage verbs"

    def run(self, root: Path, tap: Tap, action: Callable[[Storage], None]) -> None:
        action(CountedStorage(PosixStorage(root), tap))


class PlainVerbLevel(Level):
    """As on an object store: no appending, no links."""

    name = "storage verbs, without appending"

    def run(self, root: Path, tap: Tap, action: Callable[[Storage], None]) -> None:
        action(CountedStorage(PlainStorage(PosixStorage(root)), tap))


LEVELS: tuple[Level, ...] = (SystemCallLevel(), VerbLevel(), PlainVerbLevel())


def count_calls(stage: Stage, level: Level) -> dict[Call, list[Fault]]:
    """Every call of an operation in which nothing goes wrong, with the faults that it can have."""
    stage.reset()
    tap = Tap()
    operation = stage.operation()
    level.run(stage.root, tap, lambda storage: operation.act(World(storage), lambda _: None))
    world = World(PosixStorage(stage.root))
    stage.position(operation, world, 0)
    operation.check(world, len(stage.permitted) - 1)
    return tap.calls


_ATTEMPTS = 300
"""Threads publish: one that finds made what another was making has a call less to make, so not every call is made
always.
"""


def try_fault(stage: Stage, level: Level, aim: Aim) -> Ended:
    """One trial.

    Raises:
        ViolatedError: says what does not hold.
    """
    for _ in range(_ATTEMPTS):
        stage.reset()
        operation = stage.operation()
        old = readers(stage)

        def act(acknowledge: Acknowledge, reached: Callable[[], None]) -> None:
            tap = Tap(aim, reached)
            level.run(stage.root, tap, lambda storage: operation.act(World(storage), acknowledge))  # noqa: B023

        ended = in_process(act)
        if ended.reached:
            break
    else:
        raise ViolatedError(f"the call was not made in {_ATTEMPTS} attempts")
    if not ended.is_typed:
        raise ViolatedError(f"the process ended with what is no error of ours: {ended.error}")
    if ended.killed != aim.fault.kills:
        raise ViolatedError(f"the process {'was' if ended.killed else 'was not'} killed")
    world = World(PosixStorage(stage.root))
    stage.position(operation, world, ended.acknowledged)
    operation.check(world, ended.acknowledged)
    read_on(stage, old)
    finish(stage, operation, ended.acknowledged)
    read_on(stage, old)
    return ended


def finish(stage: Stage, operation: Operation, acknowledged: int) -> None:
    """Do what an operator or Spark does after a crash, and check the result."""
    world = World(PosixStorage(stage.root), ManualClock(START + 2 * DAY_MS))
    operation.run_on(world)
    settle(world.topics)
    position = stage.position(operation, World(PosixStorage(stage.root)), acknowledged)
    if stage.permitted[position] != stage.permitted[-1]:
        raise ViolatedError(f"only contents {position} of {len(stage.permitted) - 1} are there in the end")
    verify(world)
    sweep(world)
    if not stage.permitted[-1] == operation.look(World(PosixStorage(stage.root))):
        raise ViolatedError("the sweep took something that a reader saw")


def sweep(world: World) -> None:
    """Check that a crashed process leaves no file forever: a sweep a long time later deletes all such files."""
    clock = ManualClock(SWEEPING)
    topics = Topics(world.storage, BROKER, clock)
    for name in topics.names(with_deleted=True):
        chain = topics.chain(name)
        if chain.newest_or_none() is None:
            continue
        # A floor lies below a version: one comes behind all that died.
        chain.commit(lambda state: state, "an idle version")
        clock.advance(2 * DAY_MS)
        delete_dropped(world.storage, chain, topics.config(chain.newest()), clock.now_ms())
        left = list(unnamed_files(world.storage, sweep_topic(world.storage, chain, BROKER).state))
        if left:
            raise ViolatedError(f"files stay for good: {left}")
    settle(topics)
    stray = [
        each.path for each in read_image(Path(world.storage.uri)) if each.path.rpartition("/")[2].startswith(TEMPORARY)
    ]
    if stray:
        raise ViolatedError(f"temporary files stay for good: {stray}")


@patch.object(lost_versions, "KEPT_VERSIONS", Pruning.keep)
def verify(world: World) -> None:
    """`lakelog verify --deep`, with --repair where it offers that; then nothing may be wrong."""
    found = check_root(world.topics, None, None, Options(deep=True), threads=1)
    lost = [each for each in problems(found.findings) if each.kind in (Kind.CORRUPT, Kind.STATE, Kind.UNREADABLE)]
    if lost:
        raise ViolatedError(f"verify finds {'; '.join(map(str, lost[:3]))}")
    if problems(found.findings):
        repair_root(world.topics, found)
        found = check_root(world.topics, None, None, Options(deep=True), threads=1)
        if problems(found.findings):
            raise ViolatedError(f"after repair verify finds {'; '.join(map(str, problems(found.findings)[:3]))}")


OldReader = tuple[str, int, PartitionReader]


def readers(stage: Stage) -> list[OldReader]:
    """Readers that have taken the state as it is now, and no record yet."""
    world = World(PosixStorage(stage.root))
    return [
        (name, number, PartitionReader(world.storage, world.topics.chain(name), number))
        for name in world.topics.names()
        for number in range(len(world.topics.state(name).partitions))
    ]


def read_on(stage: Stage, old: list[OldReader]) -> None:
    """Let readers that began before the operation read up to the end that they know. They must get each record once,
    and no other records."""
    first, last = stage.permitted[0], stage.permitted[-1]
    for name, number, reader in old:
        if name not in last or name not in first or not first[name][number].high_watermark:
            continue
        end = reader.partition.high_watermark
        seen = list(read(reader, reader.partition.log_start_offset, stage.operation.isolation))
        known = set(first[name][number].records)
        needed = [each for each in last[name][number].records if each in known]
        if not set(seen) <= known or not set(needed) <= set(seen) or sorted(set(seen)) != seen:
            raise ViolatedError(f"a reader that began before, of {name}-{number} up to {end}, sees {seen}")
