"""Speculative tasks, killed or stopped tasks, and lost executors on a small cluster. Meanwhile, a witness reads the
topic."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest

from storage_engine.errors import ExitStatus
from tests.faults.processes.programs import Driver, World, at_work
from tests.faults.processes.source import Source

SEED = int(os.environ.get("SEED", random.randrange(2**32)))
BATCHES = int(os.environ.get("BATCHES", "12"))
EXECUTOR = "CoarseGrainedExecutorBackend"
CLUSTER = ("--master", "local-cluster[2,1,1024]")
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.25",
    "spark.task.maxFailures": "100",  # this many deaths are no defect of the tasks
    "spark.python.task.killTimeout": "100ms",
}
OPTIONS = (*CLUSTER, *(word for key, value in SPECULATION.items() for word in ("--conf", f"{key}={value}")))


def harm(driver: Driver, world: World, chance: random.Random, before: set[Path]) -> str:
    """Kill a process that runs tasks, or stop it for a while. If a process is staging, choose that one. Returns what
    was done.

    before: files in staging/ to which certainly no process writes.
    """
    workers = driver.workers
    if not workers:
        return "nobody there"
    staging = [each for each in workers if each.has_open(world.staged - before)]
    victim = chance.choice(staging or workers)
    if chance.random() < 0.5:
        victim.signal(SIGKILL)
        return "killed"
    victim.signal(SIGSTOP)
    time.sleep(chance.uniform(0.3, 1.0))
    victim.signal(SIGCONT)
    return "stopped for a while"


@pytest.mark.spark
@pytest.mark.slow
def test_tasks_that_are_speculated_stopped_and_killed_bring_every_record_once(tmp_path: Path) -> None:
    print(f"SEED={SEED} BATCHES={BATCHES}", file=sys.stderr)
    chance = random.Random(SEED)
    source = Source(tmp_path, rows=2_000, files=4, padding=100, segment_bytes=2_000_000)
    source.reach(BATCHES)
    done: Counter[str] = Counter()
    with at_work(World(tmp_path, source)) as world:
        driver = world.driver(*OPTIONS).ready()
        driver.go()
        for committed in range(BATCHES - 1):
            before = world.staged
            for _ in range(chance.choice((0, 1, 1, 2))):
                if chance.random() < 0.7:
                    driver.wait_until(lambda: world.staged - before or world.batches > committed)  # noqa: B023
                else:
                    time.sleep(chance.uniform(0, 0.3))
                done[harm(driver, world, chance, before)] += 1
            executors = [each for each in driver.descendants if EXECUTOR in each.command]
            if committed % 20 == 10 and executors:
                chance.choice(executors).signal(SIGKILL)
                done["executors killed"] += 1
            driver.wait_until(lambda: world.batches > committed)  # noqa: B023
        status, result = driver.result()
        assert status == ExitStatus.DONE, driver.said
        assert (result["batches"], world.batches) == (BATCHES, BATCHES)
        print(f"{BATCHES} micro-batches, {dict(done)}, {len(world.staged)} files of lost attempts", file=sys.stderr)
