"""Speculation, killed and stopped tasks and lost executors on a small cluster, under the eyes of a witness."""

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
BATCHES = int(os.environ.get("BATCHES", "20"))
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


def harm(driver: Driver, chance: random.Random, *, executor: bool) -> str:
    """Kill or stop for a while some process that runs tasks; says what was done."""
    executors = [each for each in driver.descendants if EXECUTOR in each.command]
    workers = driver.workers
    if executor and executors:
        chance.choice(executors).signal(SIGKILL)
        return "executors killed"
    if not workers:
        return "nobody there"
    victim = chance.choice(workers)
    if chance.random() < 0.5:
        victim.signal(SIGKILL)
        return "workers killed"
    victim.signal(SIGSTOP)
    time.sleep(chance.uniform(0.3, 1.0))
    victim.signal(SIGCONT)
    return "workers stopped for a while"


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
            for _ in range(chance.choice((0, 1, 1, 2))):
                time.sleep(chance.uniform(0, 0.3))
                done[harm(driver, chance, executor=committed % 20 == 10)] += 1
            driver.wait_until(lambda: world.batches > committed)  # noqa: B023
        status, result = driver.result()
        assert status == ExitStatus.DONE, driver.said
        assert (result["batches"], world.batches) == (BATCHES, BATCHES)
        print(f"{BATCHES} micro-batches, {dict(done)}, {len(world.staged)} files of lost attempts", file=sys.stderr)
        assert world.staged, "an attempt came to nothing, at least"
