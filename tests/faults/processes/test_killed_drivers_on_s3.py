"""Kills the driver with kill -9 at random moments. The root is on an S3 server with a bad network and bad answers.

The root and the checkpoint are in a bucket. All requests of the drivers, of Spark, of the witness and of the janitor
pass a proxy, which damages a share of the requests. A driver may also end by itself, with a typed error about the
storage. Then the next driver continues. At the end, the proxy also sends the requests that it has kept back.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from storage_engine.errors import ExitStatus
from storage_engine.storage.storage_options import VARIABLE
from tests.faults.processes.bad_network import LOOK_SECONDS, SEED, bad_network, check_files, check_records, ended
from tests.faults.processes.programs import PATIENCE, Driver, World, at_work
from tests.faults.processes.source import Source
from tests.servers.object_server import ObjectServer

KILLS = int(os.environ.get("KILLS", "3"))
AHEAD = 20
"""The number of micro-batches for which files are written in advance: more than a driver can do before it is killed."""
MOST_BATCHES, LONGEST_SECONDS = 4, 2.0
"""The longest life of a driver: it is killed at most this many seconds after at most this many micro-batches, or after
the beginning of its take-over."""
KILLED_SHARE = 0.8
"""The share of the drivers that are killed. The other drivers continue, and the next driver takes over from them."""
ROWS, PADDING = 100, 20


def has_committed(driver: Driver, world: World, batches: int) -> bool:
    """Wait until so many micro-batches are committed; False if the driver ends before."""
    deadline = time.monotonic() + PATIENCE
    while world.batches < batches:
        if driver.process.poll() is not None:
            return False
        world.check_watchers()
        assert time.monotonic() < deadline, driver.said
        time.sleep(LOOK_SECONDS)
    return True


@pytest.mark.stores
@pytest.mark.spark
@pytest.mark.slow
def test_however_often_the_driver_is_killed_every_record_comes_once_to_s3(
    tmp_path: Path, s3: ObjectServer, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"SEED={SEED} KILLS={KILLS}", file=sys.stderr)
    monkeypatch.setenv(VARIABLE, json.dumps(s3.config))  # for this process, without the proxy
    root = f"{s3.uri_of(s3_bucket)}/some/root"
    chance = random.Random(SEED)
    source = Source(tmp_path, ROWS, padding=PADDING)
    kills = fenced = late = 0
    gave_up: Counter[str] = Counter()
    with bad_network(s3) as proxy:
        with at_work(World(tmp_path, source, root, {VARIABLE: json.dumps(proxy.server.config)}, LOOK_SECONDS)) as world:
            overtaken = None
            following = world.driver()
            while kills < KILLS:
                driver, following = following.ready(), world.driver()  # the next one starts while this one works
                world.check_watchers()
                is_killed = chance.random() < KILLED_SHARE
                if not is_killed:
                    following.ready()
                begun = world.batches
                source.reach(begun + AHEAD)
                driver.go()
                if overtaken is not None:
                    fenced += ended(overtaken, gave_up) == ExitStatus.FENCED
                    overtaken = None
                is_working = has_committed(driver, world, begun + chance.randrange(MOST_BATCHES))
                time.sleep(chance.uniform(0, LONGEST_SECONDS))
                if not is_killed and is_working:
                    overtaken = driver
                elif driver.process.poll() is None:
                    driver.kill()
                    kills += 1
                else:
                    ended(driver, gave_up)
                late += len(proxy.release())
            source.reach(world.batches + 2)
            while True:
                last = following.ready()
                last.go()
                if ended(last, gave_up) == ExitStatus.DONE:
                    break
                following = world.driver()
            late += len(proxy.release())
        assert world.files == source.written
        print(
            f"{kills} kills, {fenced} drivers fenced, {world.batches} micro-batches, {late} late requests,"
            f" drivers that gave up: {dict(gave_up)}",
            file=sys.stderr,
        )
    check_records(root, source)
    check_files(root)
