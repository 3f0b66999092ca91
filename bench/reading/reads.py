"""Measures how fast Spark reads a topic with format("lakelog"), and compares this with Spark's Kafka source and with
Spark's scan of Parquet files.

    python -m bench.reading.reads [--records 5000000] [--rounds 9] [--warm-up 4]

All three reads return the same rows with the same columns. The benchmark checks this before the measurement.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

import lakelog
from bench.peers.ingest import DRIVER_MEMORY  # this import also sets the memory of the peers
from bench.peers.reads import COLUMNS, PEERS
from bench.reading.filled_topic import PARTITIONS, RECORDS, TOPIC, VALUE_BYTES, fill_topic, serve_topic
from bench.results import Ratio, print_ratios, write_results
from bench.turns import Peer, take_turns
from tests.kafka_broker import VERSION, KafkaBroker

ROUNDS = 9
WARM_UP = 4
NAMES = {"lakelog": 'format("lakelog")', "kafka": "spark-sql-kafka", "parquet": "Parquet scan"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    arguments = parser.parse_args(sys.argv[1:] if sys.argv[0] == __file__ else [])
    seconds = read_seconds(arguments.records, arguments.rounds, arguments.warm_up)
    rows = [
        [NAMES[peer], f"{taken:.2f}", f"{arguments.records / taken / 1e6:.2f}"]
        for peer, taken in sorted(seconds.items(), key=lambda each: each[1])
    ]
    for row in rows:
        print(f"{row[0]:20}{row[1]:>8} s{row[2]:>8} million rows/s", flush=True)
    ratios = [
        Ratio("speed: lakelog / spark-sql-kafka", seconds["kafka"] / seconds["lakelog"], at_least=4),
        Ratio("speed: lakelog / Parquet scan", seconds["parquet"] / seconds["lakelog"], at_least=0.65),
    ]
    if arguments != parser.parse_args([]):
        print_ratios(ratios)
        return
    write_results(
        "reads",
        "Reads by Spark",
        f"The table shows how many seconds a peer needs to read {RECORDS:,} rows of a topic with {PARTITIONS}"
        f" partitions: the median of {ROUNDS} rounds, after {WARM_UP} rounds to warm up. Each record has a key of 10"
        f" bytes and a value of {VALUE_BYTES} incompressible bytes. Each peer is a separate Spark process that uses"
        f" all cores and has {DRIVER_MEMORY} of driver memory. In each round, the peers take turns. Each read returns"
        f" the columns {', '.join(COLUMNS)}. The rows are written with Spark's format noop, which builds every row"
        " with all columns, and discards the row. The time begins with the definition of the read, so the time"
        " includes the plan and the start of the tasks. Before the measurement, a hash of all columns shows that all"
        f" peers return the same rows. The Kafka broker has version {VERSION}, and runs on the same cores. The broker"
        " serves the files that `lakelog topics export` writes from the same topic. The options of spark-sql-kafka are"
        f" the defaults. The Parquet input has {PARTITIONS} uncompressed files, one for each partition. All files are"
        " in the page cache.",
        ["", "seconds", "million rows/s"],
        rows,
        ratios,
    )


def read_seconds(records: int, rounds: int, warm_up: int) -> dict[str, float]:
    """The seconds that each peer needs for one read of all rows."""
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakelog-bench-")))
        fill_topic(work / "root", records)
        write_parquet(work / "root", work / "parquet")
        broker = stack.enter_context(KafkaBroker(java_options=("-Xmx1g",)))
        serve_topic(broker, work / "root", work / "exported")
        case = {
            "root": str(work / "root"), "parquet": str(work / "parquet"), "bootstrap_servers": broker.bootstrap_servers,
        }  # fmt: skip
        peers = {name: stack.enter_context(Peer.module("bench.peers.reads", name)) for name in PEERS}
        digests = {name: peer.ask({**case, "what": "digest"}) for name, peer in peers.items()}
        assert digests["lakelog"][0] == records, digests
        assert digests["lakelog"] == digests["kafka"] == digests["parquet"], digests
        return take_turns(peers, {**case, "what": "read"}, rounds, warm_up=warm_up)


def write_parquet(root: Path, folder: Path) -> None:
    """Write the rows of each partition to one Parquet file. The columns with few values have dictionaries, as in the
    files of Spark's own writer."""
    folder.mkdir()
    topic = lakelog.open(root).topic(TOPIC)
    for partition in range(PARTITIONS):
        rows = topic.read(where=pc.field("partition") == partition).to_arrow().select(COLUMNS)
        pq.write_table(
            rows, folder / f"{partition}.parquet", compression="none", coerce_timestamps="us",
            use_dictionary=["topic", "partition", "timestampType"],
        )  # fmt: skip


if __name__ == "__main__":
    main()
