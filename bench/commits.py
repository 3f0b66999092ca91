"""Measures how long a commit takes, and how many syncs and storage calls a commit makes. Also measures whether commits
become slower when a topic has many versions, and counts the files that remain.

The first part measures a TopicWriter without Spark, in this process. The writer commits micro-batches without records
to one topic until version 10,000. Then a writer commits micro-batches of 10,000 records to the 8 partitions of another
topic. The time of a micro-batch with records begins with the encoding, and ends when the staged files are deleted. In
the second part, an ingest commits the same kinds of micro-batches with Spark. The ingest is compared with an empty
foreachBatch over the same input files. Everything is on one local disk, and every commit is durable.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.peers.commits import LAST, PEERS
from bench.results import Ratio, write_results
from bench.turns import Peer, take_turns
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.record.partitioner import partition_keys
from storage_engine.record.record_columns import TO_APPEND, no_headers
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import Encoding, stage_records
from storage_engine.topic.append.staged_run import StagingWriter, by_partition, delete_staged, staging_folder
from storage_engine.topic.append.topic_writer import BatchIdentity, TopicWriter, take_over
from storage_engine.topic.topics import Topics

PARTITIONS = 8
RECORDS = 10_000
VALUE_BYTES = 100
VERSIONS = (10, 100, 1_000, 2_000, 5_000, 10_000)
MEASURED = 40
CYCLE = 100
"""Pruning begins a different kind of work after each hundred versions."""
MOST_VERSIONS = 1_100
BATCHES = 250
SPARK_ROUNDS = 3
VERBS = ("put_new", "replace", "new_file", "create", "read", "list", "delete", "sync_names", "sync_file")


class Feeding:
    """A topic and the query that feeds it."""

    def __init__(self, folder: Path) -> None:
        self.storage = PosixStorage(folder)
        topics = Topics(self.storage, BrokerConfig(), SystemClock())
        topics.create("values", PARTITIONS, {})
        chain = topics.chain("values")
        epoch = take_over(chain, "query").writer.epoch
        self.state = chain.newest()
        self.config = topics.config(self.state)
        self.writer = TopicWriter(self.storage, chain, self.config, topics.clock, epoch)
        self.batches = 0
        self.version = self.state.version

    def commit_nothing(self) -> None:
        self._append({})

    def commit_records(self, records: pa.RecordBatch) -> None:
        with StagingWriter(self.storage, staging_folder(self.state.topic_id, self.version)) as staging:
            chosen = partition_keys(records["key"], PARTITIONS, 0)
            stage_records(staging, records, chosen, Encoding.of(self.config, 0))
        self._append(by_partition(staging.runs))
        delete_staged(self.storage, staging.runs)

    def _append(self, runs: Any) -> None:
        batch = BatchIdentity("query", self.batches, f"{self.batches:064d}")
        self.version = self.writer.append(runs, batch).state.version
        self.batches += 1


@contextmanager
def counted(storage: PosixStorage) -> Iterator[Counter[str]]:
    """Counts the calls of the storage's methods and the syncs of files and directories while the block runs."""
    found: Counter[str] = Counter()

    def counting(name: str, call: Any, *arguments: Any, **named: Any) -> Any:
        found[name] += 1
        return call(*arguments, **named)

    fsync = os.fsync
    os.fsync = partial(counting, "fsync", fsync)
    for verb in VERBS:
        setattr(storage, verb, partial(counting, verb, getattr(storage, verb)))
    try:
        yield found
    finally:
        os.fsync = fsync
        for verb in VERBS:
            delattr(storage, verb)


def some_records() -> pa.RecordBatch:
    source = random.Random(1)
    columns = [
        pa.array([b"key-%d" % number for number in range(RECORDS)], pa.binary()),
        pa.array([source.randbytes(VALUE_BYTES) for _ in range(RECORDS)], pa.binary()),
        no_headers(RECORDS),
        pa.array(np.full(RECORDS, SystemClock().now_ms())),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TO_APPEND)


def milliseconds(work: Any, *arguments: Any) -> float:
    taken = []
    for _ in range(MEASURED):
        started = time.perf_counter()
        work(*arguments)
        taken.append(time.perf_counter() - started)
    return median(taken) * 1e3


def mean_milliseconds(work: Any) -> float:
    """The mean time of a call over a whole cycle of pruning. Single calls contain different shares of the pruning."""
    started = time.perf_counter()
    for _ in range(CYCLE):
        work()
    return (time.perf_counter() - started) / CYCLE * 1e3


def calls(storage: PosixStorage, work: Any, *arguments: Any) -> str:
    """The numbers of syncs, and of calls of each storage method, in one call of `work`."""
    with counted(storage) as found:
        for _ in range(CYCLE):
            work(*arguments)
    return ", ".join(f"{count / CYCLE:g} {name}" for name, count in sorted(found.items()))


def sync_milliseconds(folder: Path) -> float:
    """The time that this disk needs to make 4 KiB at the end of a file durable."""
    with (folder / "probe").open("wb", buffering=0) as file:

        def write() -> None:
            file.write(bytes(4096))
            os.fsync(file.fileno())

        return milliseconds(write)


def write_input(folder: Path, rows: int, batches: int = BATCHES) -> None:
    """Write one Parquet file for each micro-batch, all with the same rows."""
    folder.mkdir()
    records = some_records().slice(0, rows)
    table = pa.table({"key": records["key"], "value": records["value"]})
    first = folder / "000.parquet"
    pq.write_table(table, first)
    for number in range(1, batches):
        (folder / f"{number:03d}.parquet").hardlink_to(first)


def main() -> None:
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakelog-bench-")))
        rows, ratios = by_writer(work)
        spark_rows, spark_ratios = by_spark(stack, work)
    write_results(
        "commits",
        "Commits",
        "Times are in milliseconds. The first rows are commits by a TopicWriter in one process, without Spark. For"
        f" commits without records, the time is the mean of {CYCLE} commits, beginning at the version that the row"
        f" names. For commits with records, the time is the median of {MEASURED} commits, from encoding to the"
        " deletion of the staged files. The rows with Spark give the time from the end of one micro-batch to the end"
        f" of the next. After one round to warm up, Spark runs {SPARK_ROUNDS} rounds of {BATCHES} micro-batches. The"
        f" time of a round is the median of its last {LAST} micro-batches, and the table has the median of all rounds."
        " The ingest and the empty foreachBatch run in separate Spark processes, which take turns. Each record has a"
        f" key, and a value of {VALUE_BYTES} bytes. The last column has the average number of syncs and storage calls"
        " of one commit.",
        ["", "milliseconds", "syncs and storage calls"],
        [*rows, *spark_rows],
        [*ratios, *spark_ratios],
    )


def by_writer(work: Path) -> tuple[list[list[str]], list[Ratio]]:
    rows = [["fsync of 4 KiB on this disk", f"{sync_milliseconds(work):.2f}", ""]]
    ratios = []
    feeding = Feeding(work / "empty")
    empty = {}
    for version in VERSIONS:
        while feeding.version < version:
            feeding.commit_nothing()
        empty[version] = mean_milliseconds(feeding.commit_nothing)
        made = calls(feeding.storage, feeding.commit_nothing)
        rows.append([f"without records, at version {version:,}", f"{empty[version]:.2f}", made])
    left = len(list((work / "empty" / "meta" / "values").glob("*.json")))
    full = Feeding(work / "full")
    records = some_records()
    full.commit_records(records)
    name = f"{RECORDS:,} records over {PARTITIONS} partitions"
    taken = milliseconds(full.commit_records, records)
    rows.append([name, f"{taken:.2f}", calls(full.storage, full.commit_records, records)])
    ratios += [
        Ratio("without records: milliseconds", max(empty.values()), at_most=30),
        # Pruning keeps a thousand versions. Until a topic has so many versions, the share of pruning in a commit grows:
        # at first only versions are rolled up, then versions are also deleted.
        Ratio(
            "time of a commit without records: at version 10,000 / at version 1,000",
            empty[10_000] / empty[1_000], at_most=1.5,
        ),
        Ratio(f"{name}: milliseconds", taken, at_most=250),
        Ratio("versions left of 10,000", left, at_most=MOST_VERSIONS),
        Ratio(
            f".log files of {full.batches} micro-batches over {PARTITIONS} partitions",
            len(list((work / "full" / "data").rglob("*.log"))), at_most=PARTITIONS,
        ),
        Ratio("staged files left", len(list((work / "full" / "staging").rglob("*.*"))), at_most=0),
    ]  # fmt: skip
    for row in rows:
        print(f"{row[0]:44}{row[1]:>10}  {row[2]}", flush=True)
    return rows, ratios


def by_spark(stack: ExitStack, work: Path) -> tuple[list[list[str]], list[Ratio]]:
    rows = []
    ratios = []
    peers = {name: stack.enter_context(Peer.module("bench.peers.commits", name)) for name in PEERS}
    for count, name, most in ((0, "without records", 30), (RECORDS, f"{RECORDS:,} records", 250)):
        write_input(work / f"input-{count}", count)
        case = {"input": str(work / f"input-{count}"), "batches": BATCHES, "records": count * BATCHES}
        own = {peer: {"folder": str(work / f"{peer}-{count}")} for peer in peers}
        taken = take_turns(peers, case, SPARK_ROUNDS, own)
        beyond = taken["lakelog"] - taken["empty"]
        rows += [
            [f"Spark, {name}: empty foreachBatch", f"{taken['empty']:.1f}", ""],
            [f"Spark, {name}: ingest", f"{taken['lakelog']:.1f}", ""],
        ]
        ratios.append(Ratio(f"Spark, {name}: ingest minus empty foreachBatch, milliseconds", beyond, at_most=most))
    for row in rows:
        print(f"{row[0]:44}{row[1]:>10}", flush=True)
    return rows, ratios


if __name__ == "__main__":
    main()
