"""Measures how long a micro-batch takes if each request to the object store takes 30 ms longer.

    python -m bench.stores.latency [--batches 70] [--rounds 1]

An ingest commits micro-batches of 10,000 records to 8 partitions. It is compared with an empty foreachBatch over the
same input files. The roots and the checkpoints are in an S3 server. A proxy in front of the server delays each request,
and records when it ends. When a micro-batch is done, Spark puts a file to its checkpoint, so the ends of these puts are
the ends of the micro-batches.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median
from unittest.mock import patch

from bench.commits import PARTITIONS, RECORDS, VALUE_BYTES, write_input
from bench.results import Ratio, print_ratios, write_results
from bench.turns import Peer
from storage_engine.storage.storage_opening import open_storage
from tests.servers.faulty_proxy import Exchange, FaultyProxy
from tests.servers.versitygw import s3_server
from tests.stores import clear_root, environment, new_bucket

BATCHES = 70
FILES = 2
"""The number of input files of a micro-batch. Spark stages each file in a task of its own, as the partitions of a source."""
LAST = 40
"""The number of measured micro-batches of each run. The earlier micro-batches warm the stream up."""
ROUNDS = 1
DELAYS_MS = (0, 30)
MOST_MS = 350
_COMMIT = re.compile(r"/checkpoints/ingest/values/commits/[0-9]+(\?|$)")
_PEERS = {"lakelog": "ingest", "empty": "empty foreachBatch"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args(sys.argv[1:] if sys.argv[0] == __file__ else [])
    taken = all_milliseconds(arguments.batches, arguments.rounds)
    rows = [
        [f"{delay} ms added: {_PEERS[peer]}", *(f"{figure(taken[peer, delay]):.0f}" for figure in (median, mean))]
        for delay in DELAYS_MS
        for peer in _PEERS
    ]
    for row in rows:
        print(f"{row[0]:36}{row[1]:>8} ms, mean {row[2]:>8} ms", flush=True)
    beyond = {
        name: figure(taken["lakelog", DELAYS_MS[-1]]) - figure(taken["empty", DELAYS_MS[-1]])
        for name, figure in (("median", median), ("mean", mean))
    }
    ratios = [
        Ratio(
            f"{DELAYS_MS[-1]} ms added: ingest minus empty foreachBatch, {name}, milliseconds", value, at_most=MOST_MS
        )
        for name, value in beyond.items()
    ]
    if arguments != parser.parse_args([]):
        print_ratios(ratios)
        return
    write_results(
        "latency",
        "Micro-batches in a store with latency",
        f"The table shows the milliseconds from the end of one micro-batch to the end of the next. Each micro-batch has"
        f" {RECORDS:,} records with a key and a value of {VALUE_BYTES} bytes, and the topic has {PARTITIONS} partitions."
        " The root and the checkpoint are in an S3 server (versitygw), which runs on the same cores. A proxy in front of"
        " the server delays each request, also the requests that Spark makes for its checkpoint. The proxy is a Python"
        " program on the same cores, and opens a connection to the server for each request. The ingest and the empty"
        " foreachBatch run in separate Spark processes, which take turns, over the same local Parquet files. A"
        f" micro-batch has {FILES} files, which Spark stages in {FILES} tasks. A run has {BATCHES} micro-batches, of which"
        f" the last {LAST} are measured. The time of a micro-batch of the ingest contains all its work, also the pruning"
        " after the commit. Other work on the same cores makes the times longer: the page names the load at the end.",
        ["", "median", "mean"],
        rows,
        ratios,
    )


def all_milliseconds(batches: int, rounds: int) -> dict[tuple[str, int], list[float]]:
    """The milliseconds of all measured micro-batches, by peer and delay."""
    taken: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakelog-bench-")))
        write_input(work / "input", RECORDS // FILES, FILES * batches)
        server = stack.enter_context(s3_server())
        proxy = stack.enter_context(FaultyProxy(server))
        bucket = new_bucket(server)
        with patch.dict(os.environ, environment(proxy.server, bucket)):
            peers = {name: stack.enter_context(Peer.module("bench.peers.micro_batches_on_s3", name)) for name in _PEERS}
        stack.enter_context(patch.dict(os.environ, environment(server, bucket)))
        case = {
            "input": str(work / "input"), "files": FILES, "folder": str(work), "batches": batches,
            "records": batches * RECORDS,
        }  # fmt: skip
        for number, (delay, peer) in itertools.product(range(rounds), itertools.product(DELAYS_MS, peers)):
            place = f"{server.uri_of(bucket)}/{peer}-{delay}-{number}"
            proxy.latency_seconds = delay / 1000
            proxy.forget()
            peers[peer].ask({**case, "place": place})
            taken.setdefault((peer, delay), []).extend(micro_batch_ms(proxy.forget()))
            proxy.latency_seconds = 0
            clear_root(open_storage(place))
    return taken


def micro_batch_ms(exchanges: Sequence[Exchange]) -> list[float]:
    """The milliseconds between the ends of the last micro-batches of a run."""
    ended = sorted(each.end for each in exchanges if each.method == "PUT" and _COMMIT.search(each.path))
    return [(later - sooner) * 1000 for sooner, later in itertools.pairwise(ended)][-LAST:]


if __name__ == "__main__":
    main()
