"""Measures an upsert of a few records with random keys into a large table, with and without deletion vectors: the time, and
the bytes that are written.

    python -m bench.exporting.deletion_vectors [--records 5000000] [--share 0.01] [--rounds 5] [--warm-up 1] [--full 3]

Both tables are made by an export of the whole topic, and this full upsert is measured, too. Then each round appends new
records of random keys to the topic, and exports them into both tables, in turns.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

import lakelog
from bench.peers.ingest import DRIVER_MEMORY  # this import also sets the memory of the peer
from bench.reading.filled_topic import PARTITIONS, RECORDS, VALUE_BYTES, fill_topic
from bench.results import Ratio, print_ratios, write_results
from bench.turns import Peer
from pipeline.delta.vectors.table_files import read_files
from storage_engine.storage.storage_opening import open_storage
from tests.roots.delta_tables import table_at

SHARE, ROUNDS, WARM_UP, FULL = 0.01, 5, 1, 3
TOPIC = "keyed"
KINDS = {"with": ["export.readers=spark"], "without": []}
"""The settings of the two tables."""


@dataclass
class Figures:
    """By kind of table: seconds of full upserts and of increments, and for each increment, its share of the table's bytes."""

    full: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    increment: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    written: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})


def main() -> None:
    parser = argparse.ArgumentParser()
    numbers = {"records": RECORDS, "rounds": ROUNDS, "warm-up": WARM_UP, "full": FULL}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--share", type=float, default=SHARE)
    arguments = parser.parse_args(sys.argv[1:] if sys.argv[0] == __file__ else [])
    figures = measure(arguments)
    rows, shares, times = [], {}, {}
    for kind in KINDS:
        full, increment = statistics.median(figures.full[kind]), statistics.median(figures.increment[kind])
        times[kind], shares[kind] = increment / full, statistics.median(figures.written[kind])
        rows.append(
            [f"{kind} deletion vectors", f"{full:.2f}", f"{increment:.2f}", f"{times[kind]:.3f}", f"{shares[kind]:.2%}"]
        )
    for row in rows:
        print("{:24} full {} s, increment {} s, increment / full {}, bytes written {}".format(*row), flush=True)
    ratios = [
        Ratio("with deletion vectors, bytes: written / bytes of the table", shares["with"], at_most=0.03),
        Ratio("with deletion vectors, time: increment / full upsert", times["with"], at_most=0.2),
    ]
    if arguments != parser.parse_args([]):
        print_ratios(ratios)
        return
    write_results(
        "deletion_vectors",
        "Upserts into tables with deletion vectors",
        f"An export upserts new records into a table of {RECORDS:,} rows, with and without deletion vectors. The new records"
        f" have random keys: each round takes {SHARE:.0%} of the keys, each key once. Each record has a key of 10 bytes and a"
        f" value of {VALUE_BYTES} incompressible bytes, in {PARTITIONS} partitions. The rows have digests. A full upsert"
        " exports the whole topic, in which each record has its own key, into a new table. The times are the median of"
        f" {FULL} full upserts and of {ROUNDS} increments, after {WARM_UP} of each to warm up. One Spark process with"
        f" {DRIVER_MEMORY} of driver memory runs the job export, and uses all cores. Both tables take turns. The bytes"
        " written are the sizes of the files that the export's commit adds: new data files, and files of deletion"
        " vectors. They are compared with the data files of the table before. All files are in the page cache.",
        ["table", "full upsert, s", "increment, s", "increment / full", "bytes written / bytes of the table"],
        rows,
        ratios,
    )


def measure(arguments: argparse.Namespace) -> Figures:
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="lakelog-bench-") as work:
        root = Path(work) / "root"
        fill_topic(root, arguments.records, name=TOPIC)
        with Peer.module("bench.peers.whole_exports", "lakelog") as peer:
            for turn in range(arguments.warm_up + arguments.full):
                for kind in KINDS:
                    shutil.rmtree(_table(root, kind), ignore_errors=True)
                    seconds = _export(peer, root, kind)
                    if turn >= arguments.warm_up:
                        figures.full[kind].append(seconds)
            for turn in range(arguments.warm_up + arguments.rounds):
                _append_random(root, arguments.records, round(arguments.records * arguments.share), turn)
                for kind in KINDS:
                    before = _files(root, kind)
                    seconds = _export(peer, root, kind)
                    if turn >= arguments.warm_up:
                        figures.increment[kind].append(seconds)
                        new = sum(size for name, size in _files(root, kind).items() if name not in before)
                        data = sum(size for name, size in before.items() if name.endswith(".parquet"))
                        figures.written[kind].append(new / data)
    return figures


def _table(root: Path, kind: str) -> Path:
    return root / "tables" / kind


def _export(peer: Peer, root: Path, kind: str) -> float:
    """The seconds of one export."""
    case = {
        "what": "export",
        "settings": [
            f"root={root}", f"export.topic={TOPIC}", f"export.table=tables/{kind}", "export.mode=upsert",
            "export.spark.records=0", *KINDS[kind],
        ],
    }  # fmt: skip
    seconds: float = peer.ask(case)
    return seconds


def _append_random(root: Path, keys: int, count: int, turn: int) -> None:
    """Append records with random keys that the topic has already."""
    random = np.random.default_rng(turn)
    numbers = random.choice(keys, count, replace=False)
    found = pa.array([b"%010d" % number for number in numbers.tolist()], pa.binary())
    values = pa.array([random.bytes(VALUE_BYTES) for _ in numbers], pa.binary())
    lakelog.open(root).topic(TOPIC).append(pa.table({"key": found, "value": values}))


def _files(root: Path, kind: str) -> dict[str, int]:
    """The files that the newest version needs, with their sizes in bytes."""
    folder = _table(root, kind)
    files = read_files(open_storage(str(folder)), table_at(str(folder)).version())
    return {name: (folder / name).stat().st_size for name in files.needed(since_ms=sys.maxsize)}


if __name__ == "__main__":
    main()
