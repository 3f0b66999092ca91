"""Kills the driver with kill -9 at random moments. The root is on an S3 server with a bad network and bad answers.

The root and the checkpoint are in a bucket. All requests of the drivers, of Spark, of the witness and of the janitor
pass a proxy, which damages a share of the requests. A driver may also end by itself, with a typed error about the
storage. Then the next driver continues. At the end, the proxy also sends the requests that it has kept back.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lakelog
from storage_engine.errors import ExitStatus
from storage_engine.storage.storage_options import VARIABLE
from tests.faults.processes.programs import PATIENCE, PROJECT, Driver, World, at_work
from tests.faults.processes.source import TOPIC, Source
from tests.servers.faults import (
    Answer,
    AnswerAfterwards,
    CutReply,
    CutRequest,
    Delay,
    DelayReply,
    DropReply,
    DropRequest,
    Fault,
    Hold,
    RandomPlan,
    Repeat,
    RepeatLater,
)
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.http_messages import Request
from tests.servers.object_server import ObjectServer

SEED = int(os.environ.get("SEED", random.randrange(2**32)))
KILLS = int(os.environ.get("KILLS", "3"))
SHARE = float(os.environ.get("FAULTS", "0.05"))
"""Of the requests that meet a fault. Of puts with a condition, three times as many do."""
AHEAD = 20
"""The number of micro-batches for which files are written in advance: more than a driver can do before it is killed."""
MOST_BATCHES, LONGEST_SECONDS = 4, 2.0
"""The longest life of a driver: it is killed at most this many seconds after at most this many micro-batches, or after
the beginning of its take-over."""
KILLED_SHARE = 0.8
"""The share of the drivers that are killed. The other drivers continue, and the next driver takes over from them."""
LOOK_SECONDS = 0.1
"""Between two looks at the topic. Each look is a request."""
ROWS, PADDING = 100, 20

FAULTS: tuple[Fault, ...] = (
    DropRequest(), DropReply(), Hold(), Repeat(), RepeatLater(), CutRequest(), CutReply(), Delay(0.5), DelayReply(0.5),
    *(answer(status) for answer in (Answer, AnswerAfterwards) for status in (429, 500, 503)),
)  # fmt: skip
CONFLICTS: tuple[Fault, ...] = (Answer(409), AnswerAfterwards(409))
"""S3 answers so only to a put with a condition."""


class Plan:
    """The names of objects are random, so a seed repeats the shares of the faults, and not each single fault."""

    def __init__(self) -> None:
        self._conditional = RandomPlan(SEED, 3 * SHARE, FAULTS + 3 * CONFLICTS)
        self._others = RandomPlan(SEED, SHARE, FAULTS)

    def __call__(self, request: Request) -> Fault | None:
        has_condition = any(request.header(name) is not None for name in ("if-none-match", "if-match"))
        return (self._conditional if has_condition and request.method == "PUT" else self._others)(request)


@contextmanager
def bad_network(server: ObjectServer) -> Iterator[FaultyProxy]:
    """A proxy in front of the server; prints at the end what the proxy did."""
    with FaultyProxy(server, Plan()) as proxy:
        yield proxy
        done = Counter(_name(each.fault) for each in proxy.exchanges if each.fault is not None)
        print(f"{len(proxy.exchanges)} requests, {done.total()} faults: {dict(sorted(done.items()))}", file=sys.stderr)
        assert done.total()


def _name(fault: Fault) -> str:
    return (
        f"{type(fault).__name__} {fault.status}"
        if isinstance(fault, Answer | AnswerAfterwards)
        else type(fault).__name__
    )


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
                    fenced += _ended(overtaken, gave_up) == ExitStatus.FENCED
                    overtaken = None
                is_working = has_committed(driver, world, begun + chance.randrange(MOST_BATCHES))
                time.sleep(chance.uniform(0, LONGEST_SECONDS))
                if not is_killed and is_working:
                    overtaken = driver
                elif driver.process.poll() is None:
                    driver.kill()
                    kills += 1
                else:
                    _ended(driver, gave_up)
                late += len(proxy.release())
            source.reach(world.batches + 2)
            while True:
                last = following.ready()
                last.go()
                if _ended(last, gave_up) == ExitStatus.DONE:
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


def _ended(driver: Driver, gave_up: Counter[str]) -> ExitStatus:
    """How a driver ended by itself. Counts the errors about the storage; any other error is a failure."""
    status, result = driver.result()
    if status not in (ExitStatus.DONE, ExitStatus.FENCED):
        assert "error" in result, driver.said
        gave_up[str(result["error"])] += 1
    return ExitStatus(status)


def check_records(root: str, source: Source) -> None:
    """Every record of the source is in the topic once, as it was written, and a file's records are in their order."""
    found = (
        lakelog.open(root).topic(TOPIC).read().to_arrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    )
    records: list[dict[str, Any]] = found.select(["partition", "key", "value", "headers"]).to_pylist()
    partition_of = {record["key"]: record["partition"] for record in records}
    wanted: list[dict[str, Any]] = [
        {"partition": partition_of.get(key), "key": key, "value": value, "headers": []}
        for file in range(source.written)
        for key, value in ((b"%d" % (row % 17), b"%06d%06d" % (file, row) + b"x" * PADDING) for row in range(ROWS))
    ]
    for part in set(partition_of.values()):
        in_order = sorted((each for each in records if each["partition"] == part), key=lambda each: each["value"][:6])
        assert in_order == [each for each in wanted if each["partition"] == part]
    assert len(records) == len(wanted)


def check_files(root: str) -> None:
    command = [sys.executable, "-m", "lakelog.cli", "verify", "--root", root, "--deep"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
