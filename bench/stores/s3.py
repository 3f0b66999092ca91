"""Measures a root in an S3 server: the ingest and the read of a topic, compared with Spark's Parquet writer and reader,
which use S3A.

    python -m bench.stores.s3 [--rows 5000000] [--rounds 5] [--warm-up 3]

The server is versitygw, which runs on the same cores.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

from bench.ingest import VALUE_BYTES, write_input
from bench.peers.ingest import DRIVER_MEMORY
from bench.peers.s3 import READS, WRITES
from bench.reading.filled_topic import PARTITIONS, RECORDS, fill_topic
from bench.results import Ratio, print_ratios, write_results
from bench.turns import Peer, take_turns
from tests.servers.versitygw import s3_server
from tests.stores import environment, new_bucket

ROUNDS = 5
WARM_UP = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    arguments = parser.parse_args(sys.argv[1:] if sys.argv[0] == __file__ else [])
    writes, reads = all_seconds(arguments.rows, arguments.rounds, arguments.warm_up)
    rows = [
        [f"{what}: {peer}", f"{taken:.2f}", f"{arguments.rows / taken / 1e6:.2f}"]
        for what, seconds in (("write", writes), ("read", reads))
        for peer, taken in seconds.items()
    ]
    for row in rows:
        print(f"{row[0]:20}{row[1]:>8} s{row[2]:>8} million rows/s", flush=True)
    ratios = [
        Ratio("time: ingest / Parquet writer", writes["lakelog"] / writes["parquet"], at_most=1.5),
        Ratio("speed: lakelog / Parquet scan", reads["parquet"] / reads["lakelog"], at_least=0.7),
    ]
    if arguments != parser.parse_args([]):
        print_ratios(ratios)
        return
    write_results(
        "s3",
        "A root in S3",
        f"The table shows how many seconds a peer needs to write {RECORDS:,} rows to an S3 server, or to read so many"
        f" rows: the median of {ROUNDS} rounds, after {WARM_UP} rounds to warm up. The server is versitygw. It runs on"
        f" the same cores and stores objects in files. Each peer is a separate Spark process with {DRIVER_MEMORY} of"
        " driver memory. In each round, the peers take turns. Spark's Parquet writer and reader use S3A. The peers"
        f" write values of {VALUE_BYTES} incompressible bytes from the same local Parquet input. Lakelog's time to"
        " write begins with the start of the ingest, whose checkpoint is also in the store, and ends with the commit."
        f" The rows that are read have the seven columns of Spark's Kafka source, a key of 10 bytes, and a value of"
        f" {VALUE_BYTES} incompressible bytes. The topic has {PARTITIONS} partitions. Spark has written the same rows"
        " to Parquet files, with its default settings. A hash of all columns shows that both peers read the same rows."
        " The rows are written with Spark's format noop, which builds every row and discards it.",
        ["", "seconds", "million rows/s"],
        rows,
        ratios,
    )


def all_seconds(rows: int, rounds: int, warm_up: int) -> tuple[dict[str, float], dict[str, float]]:
    """The seconds that each peer needs to write all rows, and to read all rows."""
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakelog-bench-")))
        write_input(work / "input", rows)
        server = stack.enter_context(s3_server())
        bucket = new_bucket(server)
        stack.enter_context(patch.dict(os.environ, environment(server, bucket)))
        peers = {name: stack.enter_context(Peer.module("bench.peers.s3", name)) for name in WRITES}
        uri = server.uri_of(bucket)
        write = {"what": "write", "rows": rows, "input": str(work / "input"), "folder": str(work)}
        own = {name: {"place": f"{uri}/{name}"} for name in peers}
        writes = take_turns(peers, write, rounds, own, warm_up)
        sources = {"lakelog": f"{uri}/root", "parquet": f"{uri}/copy"}
        fill_topic(sources["lakelog"], rows)
        peers["parquet"].ask({**sources, "what": "copy"})
        digests = {name: peers[name].ask({**sources, "what": "digest"}) for name in READS}
        assert digests["lakelog"] == digests["parquet"], digests
        assert digests["lakelog"][0] == rows, digests
        return writes, take_turns(peers, {**sources, "what": "read"}, rounds, warm_up=warm_up)


if __name__ == "__main__":
    main()
