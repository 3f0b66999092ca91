"""Measures the delay of Topic.follow: the time from a commit until the loop gets the record.

    python -m bench.reading.following [--records 200] [--rounds 5]

A commit creates the file of the next version with one call of link. The time of the commit is the end of this call. The
benchmark compares the delay with the delay of a probe. The probe is a loop that only tries to read the next version,
with the same pause between two attempts. No reader can notice a commit with fewer calls of the storage than the probe.
The writer and the readers are different processes. The writer commits each record alone, at random times.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import lakelog
from bench.commits import PARTITIONS, Feeding, some_records
from bench.peers.following import PEERS, TOPIC
from bench.results import Ratio, print_ratios, write_results
from bench.turns import ROUNDS, Peer

RECORDS = 200
POLL_SECONDS = 0.001
PAUSE_SECONDS = (0.02, 0.06)
"""The smallest and the largest pause between two commits. During a pause, a loop of follow commits the group's position
and waits for the next record."""
DEFAULT_RECORDS = 20
DEFAULT_PAUSE_SECONDS = (0.5, 1.5)
NAMES = {"follow": "follow", "probe": "probe of the next version", "newest": "newest state"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args(sys.argv[1:] if sys.argv[0] == __file__ else [])
    delays = all_delays(arguments.records, arguments.rounds)
    rows = [
        [name, *(f"{quantile:.2f}" for quantile in np.quantile(found, (0.5, 0.9, 0.99)))]
        for name, found in delays.items()
    ]
    for row in rows:
        print(f"{row[0]:40}" + "".join(f"{cell:>10}" for cell in row[1:]), flush=True)
    extra = float(np.median(delays["follow"]) - np.median(delays["probe of the next version"]))
    ratios = [Ratio("median of follow minus median of the probe, milliseconds", extra, at_most=1)]
    if arguments != parser.parse_args([]):
        print_ratios(ratios)
        return
    write_results(
        "following",
        "The delay of Topic.follow",
        "The figures are delays in milliseconds, from a commit until a loop in another process notices the commit."
        f" Each row has the median delay, and the delays that 90% and 99% of the records do not exceed. {ROUNDS}"
        f" rounds of {RECORDS} records were measured, after one round to warm up; in each round, the loops take turns."
        " The time of a commit is the moment at which the file of the next version gets its name. A TopicWriter"
        f" commits one record at a time to a topic of {PARTITIONS} partitions, and waits a random time between"
        f" {PAUSE_SECONDS[0] * 1000:.0f} and {PAUSE_SECONDS[1] * 1000:.0f} milliseconds between two commits. The loop"
        " of follow gets the record, and asks for the next record. This second step commits the group's position. The"
        ' probe only tries to read the next version of the topic\'s state. The loop "newest state" gets the newest'
        " version as every reader does: the loop checks the version, decodes it and makes it durable. All loops wait"
        f" {POLL_SECONDS * 1000:g} millisecond between two attempts, so all delays include about half of this time."
        f" The last row has the delays of follow with the default of poll_seconds, measured with {DEFAULT_RECORDS}"
        " records. Everything is on one local disk.",
        ["", "median", "90%", "99%"],
        rows,
        ratios,
    )


def all_delays(records: int, rounds: int) -> dict[str, list[float]]:
    """The delays in milliseconds, by loop."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakelog-bench-")))
        feeding = Feeding(root)
        peers = {name: stack.enter_context(Peer.module("bench.peers.following", name)) for name in PEERS}
        delays: dict[str, list[float]] = {name: [] for name in NAMES.values()}
        case = {"root": str(root), "records": records, "poll_seconds": POLL_SECONDS}
        for number in range(1 + rounds):
            for name, peer in peers.items():
                found = delays_of(peer, feeding, case, PAUSE_SECONDS)
                if number > 0:  # the first round warms up
                    delays[NAMES[name]] += found
        case = {"root": str(root), "records": DEFAULT_RECORDS}
        delays["follow, default poll_seconds"] = delays_of(peers["follow"], feeding, case, DEFAULT_PAUSE_SECONDS)
        return delays


def delays_of(peer: Peer, feeding: Feeding, case: dict[str, Any], pause_seconds: tuple[float, float]) -> list[float]:
    """The delays in milliseconds of one round with one loop."""
    topic = lakelog.open(case["root"]).topic(TOPIC)
    offsets = {number: offsets.start for number, offsets in topic.read("latest").ranges.items()}
    case = {**case, "version": feeding.version, "offsets": offsets}
    record = some_records().slice(0, 1)
    with ThreadPoolExecutor(1) as threads, link_times() as committed:
        noticed = threads.submit(peer.ask, case)
        for _ in range(case["records"]):
            time.sleep(random.uniform(*pause_seconds))
            feeding.commit_records(record)
        times = noticed.result()
    assert len(committed) == len(times) == case["records"]
    return [(seen - done) / 1e6 for seen, done in zip(times, committed, strict=True)]


@contextmanager
def link_times() -> Iterator[list[int]]:
    """The times at which versions of the topic's state get their names while the block runs, in nanoseconds."""
    found: list[int] = []
    link = os.link

    def timed(source: Path, target: Path) -> None:
        link(source, target)
        if target.parent.name == TOPIC:
            found.append(time.perf_counter_ns())

    setattr(os, "link", timed)  # noqa: B010 - its type has more arguments than this call
    try:
        yield found
    finally:
        os.link = link


if __name__ == "__main__":
    main()
