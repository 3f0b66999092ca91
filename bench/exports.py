"""Measures small exports, with and without Spark: the whole job, from the start of its process to its end.

    python -m bench.exports [--keys 200000] [--records 1000] [--rounds 5]

A compacted topic of many keys is exported into two tables. In each round, records with random keys are appended. Then
the job exports these records into both tables: into one without Spark, and into the other with Spark. The order of
these two runs alternates. After the last round, both tables must have the same rows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import deltalake
import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lakelog
from bench.results import Ratio, print_ratios, write_results

HOME = Path(__file__).resolve().parent.parent
KEYS, RECORDS, ROUNDS = 200_000, 1_000, 5
PEERS = {"without": "50000", "with": "0"}
"""By table, the value of export.spark.records."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args(sys.argv[1:] if sys.argv[0] == __file__ else [])
    seconds = export_seconds(arguments.keys, arguments.records, arguments.rounds)
    rows = [
        [f"{arguments.records:,} new records, without Spark", f"{seconds['without']:.2f} s"],
        [f"{arguments.records:,} new records, with Spark", f"{seconds['with']:.2f} s"],
        ["nothing new", f"{seconds['nothing']:.2f} s"],
    ]
    for row in rows:
        print(f"{row[0]:42}{row[1]:>10}", flush=True)
    ratios = [
        Ratio(f"{arguments.records:,} records without Spark, seconds", seconds["without"], at_most=2),
        Ratio("nothing new, seconds", seconds["nothing"], at_most=1),
    ]
    if arguments != parser.parse_args([]):
        print_ratios(ratios)
        return
    write_results(
        "exports",
        "Small exports",
        "The table has the time of one run of the job export, from the start of its process to the end of its process:"
        f" the median of {ROUNDS} rounds. A compacted topic of two partitions has {KEYS:,} keys. Each value is JSON"
        f" with one number and one text. In each round, {RECORDS:,} records with random keys are appended. Then the"
        f" job merges these records into two tables of {KEYS:,} rows: into one table without Spark, and into the other"
        " table with Spark. The order of these two runs alternates. At the end, both tables have the same rows. The"
        " last row of the first table has the time of a run that finds no new records.",
        ["", "time"],
        rows,
        ratios,
    )


def export_seconds(keys: int, records: int, rounds: int) -> dict[str, float]:
    """The median seconds of a run: without Spark, with Spark, and with nothing to export."""
    chance = np.random.default_rng(3)
    taken: dict[str, list[float]] = {"without": [], "with": [], "nothing": []}
    with tempfile.TemporaryDirectory(prefix="lakelog-bench-") as folder:
        root = Path(folder) / "root"
        topic = lakelog.open(str(root), create=True).create_topic(
            "t", partitions=2, config={"cleanup.policy": "compact"}
        )
        topic.append(orders(np.arange(keys), 0))
        for table in PEERS:
            run_export(root, table)
        for turn in range(1, rounds + 1):
            topic.append(orders(chance.choice(keys, records, replace=False), turn))
            for table in sorted(PEERS, reverse=turn % 2 == 0):
                taken[table].append(run_export(root, table))
            taken["nothing"].append(run_export(root, "without"))
        same_rows(root)
    return {name: statistics.median(each) for name, each in taken.items()}


def orders(numbers: npt.NDArray[np.int64], turn: int) -> pa.Table:
    """One record for each of these keys."""
    keys = [b"%07d" % number for number in numbers.tolist()]
    values = [b'{"number": %d, "text": "order of turn %d"}' % (number, turn) for number in numbers.tolist()]
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def run_export(root: Path, table: str) -> float:
    """The seconds of one run of the job."""
    settings: Sequence[str] = [
        f"root={root}", "export.topic=t", f"export.table=tables/{table}", f"export.spark.records={PEERS[table]}",
        "topics.t.schema=number BIGINT, text STRING",
    ]  # fmt: skip
    command = [sys.executable, str(HOME / "jobs" / "export.py")]
    for setting in settings:
        command += ["--set", setting]
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(HOME)})
    return time.perf_counter() - started


def same_rows(root: Path) -> None:
    """Check that both tables have the same rows."""
    found = [
        deltalake.DeltaTable(str(root / "tables" / table)).to_pyarrow_table().sort_by("_key").to_pylist()
        for table in PEERS
    ]
    assert found[0] == found[1], "the two tables differ"


if __name__ == "__main__":
    main()
