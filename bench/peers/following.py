"""One peer of the following benchmark: `python -m bench.peers.following follow|probe|newest`, in a separate process.

A case names a root, a number of records, and the pause between two attempts. Each record is one commit. The case also
has the version and the offsets before the first commit. The answer is the time at which the peer notices each commit,
in nanoseconds of the clock that all processes of this machine share.

    follow    the loop of Topic.follow, which gets the record. If the case has no poll_seconds, Topic.follow uses its
              default.
    probe     a loop that only tries to read the next version of the topic's state
    newest    a loop that gets the newest state as all readers do: the state is checked, and made durable
"""

from __future__ import annotations

import itertools
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import lakelog
from bench.turns import answer
from storage_engine.clock import SystemClock
from storage_engine.errors import NotFoundError
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.version_files import version_key

TOPIC = "values"


def follow(case: dict[str, Any]) -> list[int]:
    start = {int(partition): offset for partition, offset in case["offsets"].items()}
    topic = lakelog.open(case["root"]).topic(TOPIC)
    options: dict[str, Any] = {name: case[name] for name in ("poll_seconds",) if name in case}
    records = topic.follow(f"bench-{uuid.uuid4()}", start=start, **options)
    return [time.perf_counter_ns() for _ in itertools.islice(records, case["records"])]


def probe(case: dict[str, Any]) -> list[int]:
    storage = open_storage(case["root"])

    def is_there(version: int) -> bool:
        try:
            storage.read(version_key(TOPIC, version))
        except NotFoundError:
            return False
        return True

    return noticed(is_there, case)


def newest(case: dict[str, Any]) -> list[int]:
    chain = StateChain(open_storage(case["root"]), TOPIC, SystemClock())
    return noticed(lambda version: chain.newest().version >= version, case)


def noticed(is_there: Callable[[int], bool], case: dict[str, Any]) -> list[int]:
    """The times at which a loop notices versions that are committed one by one."""
    times = []
    for number in range(case["records"]):
        while not is_there(case["version"] + 1 + number):
            time.sleep(case["poll_seconds"])
        times.append(time.perf_counter_ns())
    return times


PEERS = {"follow": follow, "probe": probe, "newest": newest}


def measure(case: dict[str, Any]) -> list[int]:
    return PEERS[sys.argv[1]](case)


if __name__ == "__main__":
    answer(measure)
