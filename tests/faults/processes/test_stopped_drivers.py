"""A driver and a task that are paused in the middle of their work. Other processes then do this work. When the driver
and the task continue, they must change nothing.
"""

from __future__ import annotations

import time
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from storage_engine.errors import ExitStatus
from tests.faults.processes.programs import Driver, Process, World, at_work
from tests.faults.processes.source import Source

BATCHES = 4


def stop_while_it_publishes(driver: Driver, world: World) -> None:
    """SIGSTOP between the first byte of a publish and its commit."""
    before = world.uncommitted
    while True:
        driver.wait_until(lambda: world.uncommitted > before)
        driver.pause()
        time.sleep(0.1)
        if world.uncommitted > before:
            return
        driver.resume()  # the commit was faster


def stop_a_task_while_it_stages(driver: Driver, world: World, before: set[Path]) -> Process:
    """SIGSTOP to a worker that has a staged file open, which no report names yet."""
    while True:
        driver.wait_until(lambda: world.staged - before)
        for worker in driver.workers:
            if worker.has_open(world.staged - before):
                worker.signal(SIGSTOP)
                time.sleep(0.1)
                if worker.has_open(world.staged - before):
                    return worker
                worker.signal(SIGCONT)  # it was faster


@pytest.mark.spark
@pytest.mark.slow
def test_who_sleeps_in_the_middle_of_a_publish_or_a_task_wakes_up_fenced_and_changes_nothing(tmp_path: Path) -> None:
    source = Source(tmp_path, rows=2_000, padding=10_000, segment_bytes=32 * 1024**2)
    source.reach(BATCHES)
    with at_work(World(tmp_path, source), with_janitor=False) as world:
        first, second = world.driver(), world.driver()
        first.ready().go()
        stop_while_it_publishes(first, world)
        published = world.uncommitted
        staged = world.staged
        third = world.driver()

        second.ready().go()
        task = stop_a_task_while_it_stages(second, world, staged)

        third.ready().go()
        status, result = third.result()
        assert (status, result["epoch"]) == (ExitStatus.DONE, 3), third.said
        done = world.state
        assert world.files == source.written

        first.resume()
        task.signal(SIGCONT)
        for driver in (first, second):
            status, result = driver.result()
            assert status == ExitStatus.FENCED, driver.said
            assert "took over with epoch 3" in result["error"]
        assert world.state == done
        assert world.uncommitted >= published
