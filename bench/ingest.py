"""Measures the ingest of five million rows, and compares it with Spark's own Parquet writer and Spark's Kafka sink."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.peers.ingest import DRIVER_MEMORY, PEERS, TOUCHED_BYTES
from bench.results import Ratio, write_results
from bench.turns import Peer, take_turns
from tests.kafka_broker import VERSION, KafkaBroker

FILES = 4
ROWS = 5_000_000
VALUE_BYTES = 100
ROUNDS = 9
WARM_UP = 4
"""The number of rounds for warming up, until Java's compilers have finished. In the second round, the compilers still
use twice as much time as in the sixth round."""


def main() -> None:
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakelog-bench-")))
        write_input(work / "input")
        broker = stack.enter_context(KafkaBroker(java_options=("-Xmx1g",)))
        peers = {name: stack.enter_context(Peer.module("bench.peers.ingest", name)) for name in PEERS}
        # Each peer has a separate folder, which it empties before each run. The time for this is not measured.
        case = {"rows": ROWS, "input": str(work / "input"), "bootstrap_servers": broker.bootstrap_servers}
        own = {name: {"folder": str(work / name), "phases": str(work / "phases.jsonl")} for name in peers}
        seconds = take_turns(peers, case, ROUNDS, own, WARM_UP)
        runs = [json.loads(line) for line in (work / "phases.jsonl").read_text().splitlines()][WARM_UP:]
    phases = {name: median(run.get(name, 0.0) for run in runs) for name in runs[0]}
    whole = sum(phases.values())
    for name, taken in seconds.items():
        print(f"{name:10}{taken:8.2f} s", flush=True)
    print(", ".join(f"{name} {taken / whole:.0%}" for name, taken in phases.items()), flush=True)
    write_results(
        "ingest",
        "Ingest",
        f"The table shows how many seconds a peer needs to write {ROWS:,} rows. Each row has a value of {VALUE_BYTES}"
        f" incompressible bytes. The time is the median of {ROUNDS} rounds, after {WARM_UP} rounds to warm up. During"
        " the warm-up, Java's compilers take a second of each run. Each peer is a separate Spark process that uses all"
        f" cores and has {DRIVER_MEMORY} of driver memory. In each round, the peers take turns. All peers read the"
        f" same Parquet input of {FILES} files, which Spark does not cache. Lakelog's time includes the start of the"
        " stream and ends with the commit. Parquet's time ends with the fsync of its files. The time of the Kafka sink"
        f" ends when the broker has all rows. The broker has version {VERSION}, runs on this machine, and does not"
        ' sync its files. The rows that begin with "lakelog:" divide Lakelog\'s time into phases, also as medians. If'
        " several tasks or threads run in parallel, each of them measures its own phases. The elapsed time is then"
        ' divided among the phases in proportion to these measurements. The phase "Spark to Arrow" includes everything'
        " that the JVM does during that time. Before every run of a peer, the benchmark writes to"
        f" {TOUCHED_BYTES // 1024**3} GiB of memory. Without this step, the host of a virtual machine may take back"
        " free memory. Then the peer that writes the most bytes loses the most time. Decision 0032 has the figures"
        " without this step.",
        ["", "seconds", "million rows/s", "share"],
        [
            *([name, f"{taken:.2f}", f"{ROWS / taken / 1e6:.2f}", ""] for name, taken in seconds.items()),
            *([f"lakelog: {name}", f"{taken:.2f}", "", f"{taken / whole:.0%}"] for name, taken in phases.items()),
        ],
        [
            Ratio("lakelog / parquet", seconds["lakelog"] / seconds["parquet"], at_most=1.1),
            Ratio("lakelog / kafka sink", seconds["lakelog"] / seconds["kafka"], at_most=0.5),
        ],
    )


def write_input(folder: Path, rows: int = ROWS) -> None:
    """Write random bytes, so that no codec of Parquet makes the files smaller."""
    folder.mkdir()
    random = np.random.default_rng(1)
    of_file = rows // FILES
    offsets = pa.py_buffer(np.arange(0, of_file * VALUE_BYTES + 1, VALUE_BYTES, dtype=np.int32))
    for file in range(FILES):
        values = pa.Array.from_buffers(
            pa.binary(), of_file, [None, offsets, pa.py_buffer(random.bytes(of_file * VALUE_BYTES))]
        )
        pq.write_table(
            pa.table({"value": values}), folder / f"{file}.parquet", compression="none", use_dictionary=False,
            row_group_size=250_000,
        )  # fmt: skip


if __name__ == "__main__":
    main()
