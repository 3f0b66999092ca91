"""Measures the sink format("lakelog"), and compares it with the ingest job, whose foreachBatch writes the same rows.

    python -m bench.sink [--rows 5000000] [--rounds 9] [--warm-up 4] [--batches 250] [--stream-rounds 3]

The first part writes many rows as one batch, the second part writes micro-batches of 10,000 records as a stream. For
the ingest, the first part uses the peer of the benchmark ingest, and the second part uses the peer of the benchmark
commits.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench import commits, ingest
from bench.commits import BATCHES, RECORDS
from bench.commits import SPARK_ROUNDS as STREAM_ROUNDS
from bench.ingest import ROUNDS, ROWS, VALUE_BYTES, WARM_UP
from bench.peers.commits import LAST
from bench.peers.ingest import DRIVER_MEMORY
from bench.results import Ratio, print_ratios, write_results
from bench.turns import Peer, take_turns


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--stream-rounds", type=int, default=STREAM_ROUNDS)
    arguments = parser.parse_args(sys.argv[1:] if sys.argv[0] == __file__ else [])
    batch = batch_seconds(arguments.rows, arguments.rounds, arguments.warm_up)
    stream = stream_milliseconds(arguments.batches, arguments.stream_rounds)
    rows = [
        [f"{arguments.rows:,} rows: sink", f"{batch['sink']:.2f} s"],
        [f"{arguments.rows:,} rows: ingest", f"{batch['ingest']:.2f} s"],
        [f"micro-batch of {RECORDS:,} records: sink", f"{stream['sink']:.1f} ms"],
        [f"micro-batch of {RECORDS:,} records: ingest", f"{stream['ingest']:.1f} ms"],
    ]
    for row in rows:
        print(f"{row[0]:40}{row[1]:>12}", flush=True)
    ratios = [
        Ratio(f"{arguments.rows:,} rows: time of the sink / time of the ingest", batch["sink"] / batch["ingest"],
              at_most=1.2),
        Ratio(f"{RECORDS:,} records: sink - ingest, milliseconds", stream["sink"] - stream["ingest"], at_most=100),
    ]  # fmt: skip
    if arguments != parser.parse_args([]):
        print_ratios(ratios)
        return
    write_results(
        "sink",
        'The sink format("lakelog")',
        "Each peer is a separate Spark process that uses all cores. In each round, the peers take turns. The first two"
        f" rows give the time to write {ROWS:,} rows to a topic of two partitions. Each row has a value of"
        f" {VALUE_BYTES} incompressible bytes. The time is the median of {ROUNDS} rounds, after {WARM_UP} rounds to"
        ' warm up. The sink writes the rows with df.write.format("lakelog"), and the ingest writes them with its'
        f" foreachBatch. The driver has {DRIVER_MEMORY}. The sink and the ingest read the same Parquet input, which"
        " Spark does not cache. Both times end with the commit. The time of the sink begins with the definition of the"
        " input, and the time of the ingest includes the start of its stream. The last two rows give the time from the"
        ' end of one micro-batch to the end of the next. The sink writes with writeStream.format("lakelog"). Each'
        f" micro-batch has {RECORDS:,} records, each with a key and a value of {commits.VALUE_BYTES} bytes; the topic"
        f" has {commits.PARTITIONS} partitions. After one round to warm up, Spark runs {STREAM_ROUNDS} rounds of"
        f" {BATCHES} micro-batches. The time of a round is the median of its last {LAST} micro-batches, and the table"
        " has the median of all rounds.",
        ["", "time"],
        rows,
        ratios,
    )


def batch_seconds(rows: int, rounds: int, warm_up: int) -> dict[str, float]:
    """The seconds from the start of a write to the commit."""
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakelog-bench-")))
        ingest.write_input(work / "input", rows)
        peers = {
            "sink": stack.enter_context(Peer.module("bench.peers.sink")),
            "ingest": stack.enter_context(Peer.module("bench.peers.ingest", "lakelog")),
        }
        case = {"rows": rows, "input": str(work / "input"), "phases": str(work / "phases.jsonl")}
        own = {name: {"folder": str(work / name)} for name in peers}
        return take_turns(peers, case, rounds, own, warm_up)


def stream_milliseconds(batches: int, rounds: int) -> dict[str, float]:
    """The milliseconds from the end of one micro-batch to the end of the next."""
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakelog-bench-")))
        commits.write_input(work / "input", RECORDS, batches)
        peers = {
            "sink": stack.enter_context(Peer.module("bench.peers.sink_stream")),
            "ingest": stack.enter_context(Peer.module("bench.peers.commits", "lakelog")),
        }
        case = {"input": str(work / "input"), "batches": batches, "records": RECORDS * batches}
        own = {name: {"folder": str(work / name)} for name in peers}
        return take_turns(peers, case, rounds, own)


if __name__ == "__main__":
    main()
