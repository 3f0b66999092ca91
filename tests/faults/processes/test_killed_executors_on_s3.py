"""Speculative tasks, killed or stopped tasks, and lost executors, while the root is on an S3 server with a bad network and
bad answers.

Each task stages a file in the bucket, because its rows are too many for the message to the driver. A driver may end by
itself, with a typed error about the storage. Then the next driver continues.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from signal import SIGKILL

import pytest

from storage_engine.errors import ExitStatus
from storage_engine.storage.storage_options import VARIABLE
from tests.faults.processes.bad_network import LOOK_SECONDS, SEED, bad_network, check_files, check_records, ended
from tests.faults.processes.programs import PATIENCE, World, at_work
from tests.faults.processes.source import Source
from tests.faults.processes.test_killed_executors import BATCHES, EXECUTOR, OPTIONS, harm
from tests.servers.object_server import ObjectServer

ROWS, FILES, PADDING = 1_000, 4, 1_200


@pytest.mark.stores
@pytest.mark.spark
@pytest.mark.slow
def test_tasks_that_are_speculated_stopped_and_killed_bring_every_record_once_to_s3(
    tmp_path: Path, s3: ObjectServer, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"SEED={SEED} BATCHES={BATCHES}", file=sys.stderr)
    monkeypatch.setenv(VARIABLE, json.dumps(s3.config))  # for this process, without the proxy
    root = f"{s3.uri_of(s3_bucket)}/some/root"
    chance = random.Random(SEED)
    source = Source(tmp_path, ROWS, FILES, PADDING, segment_bytes=20_000_000)
    source.reach(BATCHES)
    done: Counter[str] = Counter()
    gave_up: Counter[str] = Counter()
    late = 0
    with bad_network(s3) as proxy:
        with at_work(World(tmp_path, source, root, {VARIABLE: json.dumps(proxy.server.config)}, LOOK_SECONDS)) as world:
            while True:
                driver = world.driver(*OPTIONS).ready()
                driver.go()
                begun = time.monotonic()
                committed = world.batches
                while driver.process.poll() is None:
                    time.sleep(chance.uniform(0, 1.0))
                    world.check_watchers()
                    if (now := world.batches) > committed:
                        committed, begun = now, time.monotonic()
                    assert time.monotonic() < begun + PATIENCE, driver.said
                    if chance.random() < 0.5:
                        done[harm(driver, world, chance, set())] += 1
                    executors = [each for each in driver.descendants if EXECUTOR in each.command]
                    if chance.random() < 0.02 and executors:
                        chance.choice(executors).signal(SIGKILL)
                        done["executors killed"] += 1
                    late += len(proxy.release())
                if ended(driver, gave_up) == ExitStatus.DONE:
                    break
            late += len(proxy.release())
        assert world.files == source.written == BATCHES * FILES
        print(
            f"{world.batches} micro-batches, {dict(done)}, {late} late requests, {len(world.staged)} files of lost attempts,"
            f" drivers that gave up: {dict(gave_up)}",
            file=sys.stderr,
        )
    check_records(root, source)
    check_files(root)
