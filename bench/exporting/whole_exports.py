"""Measures how fast the job export brings a whole topic into a new Delta table, and compares this with Spark that reads
the same topic from a Kafka broker.

    python -m bench.exporting.whole_exports [--records 5000000] [--keys 500000] [--changed 100000] [--rounds 5]
        [--warm-up 2] [--cold 3]

There are two topics: one is appended, and the other, in which each key has several records, is upserted. The benchmark
checks that both peers write the same rows. Then it measures exports with and without digests of records with random keys
into tables that exist already. At last it measures the whole job, from the start of its process to the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lakelog
from bench.exports import HOME
from bench.peers.ingest import DRIVER_MEMORY  # this import also sets the memory of the peers
from bench.peers.whole_exports import PEERS
from bench.reading.filled_topic import PARTITIONS, RECORDS, VALUE_BYTES, fill_topic, serve_topic
from bench.results import Ratio, print_ratios, write_results
from bench.turns import Peer
from tests.kafka_broker import VERSION, KafkaBroker

KEYS, CHANGED, ROUNDS, WARM_UP, COLD = 500_000, 100_000, 5, 2, 3
TOPICS = {"append": "events", "upsert": "keyed"}
"""By mode, the topic."""
PEER_NAMES = {"lakelog": "job export, warm", "kafka": "spark-sql-kafka into Delta, warm"}


@dataclass
class Bench:
    """The peers, the root, and the tables. numbers: each table gets a name of its own."""

    work: Path
    peers: dict[str, Peer]
    bootstrap_servers: str
    numbers: count[int] = field(default_factory=count)

    @property
    def root(self) -> Path:
        return self.work / "root"

    def case(self, mode: str, table: str | None = None, *, digest: bool = True) -> dict[str, Any]:
        """A case with the table of this name; by default a new one."""
        table = table or f"t{next(self.numbers)}"
        return {
            "mode": mode, "topic": TOPICS[mode], "table": str(self.root / "tables" / table), "what": "export",
            "bootstrap_servers": self.bootstrap_servers,
            "settings": [
                f"root={self.root}", f"export.topic={TOPICS[mode]}", f"export.table=tables/{table}",
                f"export.mode={mode}", f"export.digest={str(digest).lower()}", "export.spark.records=0",
            ],
        }  # fmt: skip

    def whole(self, peer: str, mode: str) -> float:
        """The seconds of one export of the whole topic into a new table."""
        case = self.case(mode)
        seconds: float = self.peers[peer].ask(case)
        shutil.rmtree(case["table"])
        return seconds

    def check_same(self, mode: str) -> None:
        """Check that both peers write the same rows."""
        found = []
        for peer in self.peers.values():
            case = self.case(mode)
            peer.ask(case)
            found.append(peer.ask({**case, "what": "digest"}))
            shutil.rmtree(case["table"])
        assert found[0] == found[1], found

    def cold(self, mode: str) -> float:
        """The seconds of one whole process of the job."""
        case = self.case(mode)
        command = [sys.executable, str(HOME / "jobs" / "export.py")]
        for setting in case["settings"]:
            command += ["--set", setting]
        started = time.monotonic()
        subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(HOME)})
        seconds = time.monotonic() - started
        shutil.rmtree(case["table"])
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in {
        "records": RECORDS, "keys": KEYS, "changed": CHANGED, "rounds": ROUNDS, "warm-up": WARM_UP, "cold": COLD,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args(sys.argv[1:] if sys.argv[0] == __file__ else [])
    seconds = export_seconds(arguments)
    rows = [
        [name, *(f"{seconds[mode, peer]:.2f}" for mode in TOPICS)]
        for peer, name in {**PEER_NAMES, "cold": "job export, whole process"}.items()
    ]
    merges = {name: seconds["merge", name] for name in ("with", "without")}
    rows += [[f"increment, {name} digests, warm", "", f"{each:.2f}"] for name, each in merges.items()]
    for row in rows:
        print(f"{row[0]:36}{row[1]:>8} s{row[2]:>8} s", flush=True)
    ratios = [
        *(
            Ratio(f"{mode}, speed: job export / spark-sql-kafka", _ratio(seconds, mode), at_least=least)
            for mode, least in {"append": 3, "upsert": 2}.items()
        ),
        *(Ratio(f"{mode}, whole process, seconds", seconds[mode, "cold"], at_most=15) for mode in TOPICS),
        Ratio("increment, time: with digests / without", merges["with"] / merges["without"], at_most=1.2),
    ]
    if arguments != parser.parse_args([]):
        print_ratios(ratios)
        return
    write_results(
        "whole_exports",
        "Exports of whole topics by Spark",
        f"The table shows the seconds that an export of {RECORDS:,} records into a new Delta table takes. Each record"
        f" has a key of 10 bytes and a value of {VALUE_BYTES} incompressible bytes, in {PARTITIONS} partitions. In the"
        f" topic that is appended, each record has its own key. The topic that is upserted has {KEYS:,} keys. The first"
        f" two rows have the median of {ROUNDS} rounds, after {WARM_UP} rounds to warm up. Each peer is a separate"
        f" Spark process that uses all cores and has {DRIVER_MEMORY} of driver memory. In each round, the peers take"
        " turns. Lakelog runs its job export without a model and with digests. The other peer reads from a Kafka broker"
        f" of version {VERSION} on the same cores, and appends the records to a Delta table. For an upsert, it keeps the"
        " newest record of each key, and merges these records into an empty table. The broker serves the files that"
        " `lakelog topics export` writes from the same topics. Before the measurement, a hash shows that both peers"
        f" write the same rows. The third row has the time of whole processes, from their start to their end: the median"
        f" of {COLD}. The last rows are exports of {CHANGED:,} new records with random keys into tables of {KEYS:,}"
        f" rows: the median of {ROUNDS} rounds, in turns with and without digests. All files are in the page cache.",
        ["", *(f"{mode}, s" for mode in TOPICS)],
        rows,
        ratios,
    )


def _ratio(seconds: dict[tuple[str, str], float], mode: str) -> float:
    return seconds[mode, "kafka"] / seconds[mode, "lakelog"]


def export_seconds(arguments: argparse.Namespace) -> dict[tuple[str, str], float]:
    """The medians, by mode and peer."""
    taken: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakelog-bench-")))
        fill_topic(work / "root", arguments.records, name=TOPICS["append"])
        fill_topic(work / "root", arguments.records, name=TOPICS["upsert"], keys=arguments.keys)
        broker = stack.enter_context(KafkaBroker(java_options=("-Xmx1g",)))
        serve_topic(broker, work / "root", work / "exported", list(TOPICS.values()))
        peers = {name: stack.enter_context(Peer.module("bench.peers.whole_exports", name)) for name in PEERS}
        bench = Bench(work, peers, broker.bootstrap_servers)
        for mode in TOPICS:
            bench.check_same(mode)
            for turn in range(arguments.warm_up + arguments.rounds):
                for peer in PEERS:
                    seconds = bench.whole(peer, mode)
                    if turn >= arguments.warm_up:
                        taken.setdefault((mode, peer), []).append(seconds)
        measure_increments(bench, arguments, taken)
    with tempfile.TemporaryDirectory(prefix="lakelog-bench-") as folder:
        bench = Bench(Path(folder), {}, "")
        fill_topic(bench.root, arguments.records, name=TOPICS["append"])
        fill_topic(bench.root, arguments.records, name=TOPICS["upsert"], keys=arguments.keys)
        for mode in TOPICS:
            taken[mode, "cold"] = [bench.cold(mode) for _ in range(arguments.cold)]
    return {name: statistics.median(each) for name, each in taken.items()}


def measure_increments(bench: Bench, arguments: argparse.Namespace, taken: dict[tuple[str, str], list[float]]) -> None:
    """Measure exports of new records into tables with and without digests."""
    topic = lakelog.open(bench.root).topic(TOPICS["upsert"])
    random = np.random.default_rng(2)
    for turn in range(1 + arguments.warm_up + arguments.rounds):
        for name in ("with", "without") if turn % 2 else ("without", "with"):
            seconds = bench.peers["lakelog"].ask(bench.case("upsert", f"{name}_digests", digest=name == "with"))
            if turn > arguments.warm_up:
                taken.setdefault(("merge", name), []).append(seconds)
        numbers = random.choice(arguments.keys, arguments.changed, replace=False)
        keys = pa.array([b"%010d" % number for number in numbers.tolist()], pa.binary())
        values = pa.array([random.bytes(VALUE_BYTES) for _ in numbers], pa.binary())
        topic.append(pa.table({"key": keys, "value": values}))


if __name__ == "__main__":
    main()
