"""An S3 server with a bad network and bad answers, for the tests of killed processes, and the checks of a root in S3.

All requests of the programs pass a proxy, which damages a share of the requests. A driver may also end by itself, with a
typed error about the storage.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lakelog
from storage_engine.errors import ExitStatus
from tests.faults.processes.janitor import KEPT_VERSIONS
from tests.faults.processes.programs import PROJECT, Driver
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
SHARE = float(os.environ.get("FAULTS", "0.05"))
"""Of the requests that meet a fault. Of puts with a condition, three times as many do."""
LOOK_SECONDS = 0.1
"""Between two looks at the topic. Each look is a request."""

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


def ended(driver: Driver, gave_up: Counter[str]) -> ExitStatus:
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
        for key, value in (
            (b"%d" % (row % 17), b"%06d%06d" % (file, row) + b"x" * source.padding) for row in range(source.rows)
        )
    ]
    for part in set(partition_of.values()):
        in_order = sorted((each for each in records if each["partition"] == part), key=lambda each: each["value"][:6])
        assert in_order == [each for each in wanted if each["partition"] == part]
    assert len(records) == len(wanted)


_VERIFY = (
    "from lakelog.cli import main; from storage_engine.verify.root import lost_versions;"
    f" lost_versions.KEPT_VERSIONS = {KEPT_VERSIONS}; main()"
)
"""The tool, which knows that the janitor keeps fewer versions than Lakelog."""


def check_files(root: str) -> None:
    command = [sys.executable, "-c", _VERIFY, "verify", "--root", root, "--deep"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
