"""Runs thousands of trials and makes the table of their results.

    python -m tests.faults [--share 0.1] [--seed 7] [--operation publish ...]

A fault trial runs an operation, and causes one fault at one of its calls. All fault trials together try every call with
every fault that this call can have. The number of possible power cuts is unlimited. The whole set of power cuts has a
cut after each system call of the operation. After each kill, another process continues the operation. The set also has
cuts after some of the system calls of this process. Each cut has several outcomes.
"""

from __future__ import annotations

import faulthandler
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.faults.calls import Aim
from tests.faults.operations import OPERATIONS
from tests.faults.power_cuts import PowerCuts, try_cut
from tests.faults.trials import LEVELS, Level, Stage, count_calls, try_fault, work_folder
from tests.faults.world import ViolatedError

_STUCK_SECONDS = 3 * 3600


@dataclass
class Figures:
    """The results of the trials with one operation.

    kind: the level at which calls are counted, or "power cuts".
    calls: the number of calls that the operation makes.
    possible: the number of possible faults at these calls; None if the number is unlimited.
    ends: how often the process with the fault ended in each way; for power cuts, how often each kind was tried.
    violations: each trial that failed, and the condition that was not true.
    """

    operation: str
    kind: str
    calls: int = 0
    possible: int | None = None
    ends: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return self.ends.total()

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {end}" for end, count in sorted(self.ends.items()))
        possible = "" if self.possible is None else f" of {self.possible}"
        return (
            f"| {self.operation} | {self.kind} | {self.calls} | {self.tried}{possible} | {ends} |"
            f" {len(self.violations)} |"
        )


HEADING = "| operation | faults at | calls | trials | of which | violations |\n| --- | --- | ---: | ---: | --- | ---: |"


@contextmanager
def prepared(operation: str) -> Iterator[Stage]:
    """An operation's root, in a folder that is deleted at the end of the block."""
    folder = work_folder()
    try:
        yield Stage.prepared(OPERATIONS[operation], folder)
    finally:
        shutil.rmtree(folder)


def fault_figures(stage: Stage, level: Level, share: float, seed: int) -> Figures:
    """Try calls of an operation with faults: all of them, or a share that the seed chooses."""
    calls = count_calls(stage, level)
    aims = [Aim(call, fault) for call, faults in calls.items() for fault in faults]
    figures = Figures(stage.operation.name, level.name, len(calls), len(aims))
    for aim in random.Random(seed).sample(aims, round(share * len(aims))):
        try:
            ended = try_fault(stage, level, aim)
            figures.ends["killed" if ended.killed else "ended with an error" if ended.error else "got through"] += 1
        except ViolatedError as error:
            figures.ends["violated"] += 1
            figures.violations.append(f"{figures.operation}, {level.name}, {aim}: {error}")
    return figures


def power_cut_figures(stage: Stage, share: float, seed: int) -> Figures:
    """Try power cuts after calls of an operation."""
    cuts = PowerCuts(stage, share, seed)
    figures = Figures(stage.operation.name, "power cuts")
    for cut in cuts:
        figures.ends[cut.kind] += 1
        try:
            try_cut(stage, cut)
        except ViolatedError as error:
            figures.violations.append(f"{figures.operation}, {cut}: {error}")
    figures.calls = cuts.changes
    return figures


def all_figures(operation: str, share: float, seed: int) -> Iterator[Figures]:
    """All kinds of trials with one operation. A kind is left out if the operation makes no calls there: a storage
    without links has no view to settle."""
    with prepared(operation) as stage:
        for level in LEVELS:
            figures = fault_figures(stage, level, share, seed)
            if figures.calls:
                yield figures
        yield power_cut_figures(stage, share, seed)


def printed_figures(operation: str, share: float, seed: int) -> list[Figures]:
    """Like all_figures, but each kind is printed when it is complete. If the process is stuck, it prints its stack and
    ends."""
    faulthandler.dump_traceback_later(_STUCK_SECONDS, exit=True)
    found = []
    for figures in all_figures(operation, share, seed):
        print(figures, flush=True)
        found.append(figures)
    faulthandler.cancel_dump_traceback_later()
    return found
