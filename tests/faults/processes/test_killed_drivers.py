"""Kills the driver with kill -9 at random moments, and runs two drivers on one topic. Meanwhile a witness reads the
topic.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from storage_engine.errors import ExitStatus
from tests.faults.processes.judge import ids_by_broker
from tests.faults.processes.programs import World, at_work
from tests.faults.processes.source import Source, ids_of_files

SEED = int(os.environ.get("SEED", random.randrange(2**32)))
KILLS = int(os.environ.get("KILLS", "2"))
BROKER = "BROKER" in os.environ
"""Whether a broker also checks the result. It is off by default, because the start of a broker takes longer than two
kills."""
AHEAD = 20
"""The number of micro-batches for which files are written in advance: more than a driver can do before it is killed."""
KILLED_SHARE = 0.8
"""The share of the drivers that are killed. The other drivers continue, and the next driver takes over from them."""
MOST_BATCHES, LONGEST_SECONDS = 4, 1.0
"""The longest life of a driver: it is killed at most this many seconds after at most this many micro-batches, or after
the beginning of its take-over."""


@pytest.mark.spark
@pytest.mark.slow
def test_however_often_the_driver_is_killed_every_record_comes_once(tmp_path: Path) -> None:
    print(f"SEED={SEED} KILLS={KILLS}", file=sys.stderr)
    chance = random.Random(SEED)
    kills = fenced = 0
    with at_work(World(tmp_path, Source(tmp_path, rows=100))) as world:
        overtaken = None
        following = world.driver()
        while kills < KILLS:
            driver, following = following.ready(), world.driver()  # the next one starts while this one works
            is_killed = chance.random() < KILLED_SHARE
            if not is_killed:
                following.ready()
            begun = world.batches
            world.source.reach(begun + AHEAD)
            driver.go()
            if overtaken is not None:
                status, _ = overtaken.result()
                assert status in (ExitStatus.FENCED, ExitStatus.DONE), overtaken.said
                fenced += status == ExitStatus.FENCED
            # Not 0: Spark ends a driver that begins while another one begins the checkpoint.
            wanted = max(begun + chance.randrange(MOST_BATCHES), 1)
            driver.wait_until(lambda: world.batches >= wanted)  # noqa: B023
            time.sleep(chance.uniform(0, LONGEST_SECONDS))
            overtaken = None if is_killed else driver
            if is_killed:
                kills += driver.process.poll() is None
                driver.kill()
        world.source.reach(world.batches + 2)
        last = following.ready()
        last.go()
        status, result = last.result()
        assert status == ExitStatus.DONE, last.said
        assert result["dead letters"] == 0
        assert world.files == world.source.written
        if BROKER:
            found = ids_by_broker(world.storage, tmp_path / "exported")
            assert np.array_equal(found, ids_of_files(world.files, world.source.rows))
        print(
            f"{kills} kills, {fenced} drivers fenced, {world.batches} micro-batches, {result['epoch']} epochs",
            file=sys.stderr,
        )
