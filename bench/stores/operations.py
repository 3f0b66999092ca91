"""Measures how long the basic operations of each kind of storage take, on servers of this machine.

    python -m bench.stores.operations [--stores s3 azure hdfs] [--repeats 100]

The servers are versitygw (S3), Azurite (Azure), and a NameNode with two DataNodes (HDFS). The root on the local file
system is measured in the same run. The operations run one after another in one process. The result has the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from bench.results import write_results
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_storage
from tests.servers.azurite import azure_server
from tests.servers.minicluster import HdfsCluster
from tests.servers.versitygw import s3_server
from tests.stores import environment, new_bucket

STORES = {"posix": "file system", "s3": "S3 (versitygw)", "azure": "Azure (Azurite)", "hdfs": "HDFS"}
REPEATS = 100
LISTED = 1_000
SMALL, LARGE = 1_000, 1_000_000
OPERATIONS = ("put-if-absent of 1 kB", "a new file of 1 MB", "read of 1 kB", f"listing of {LISTED:,} names")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--repeats", type=int, default=REPEATS)
    arguments = parser.parse_args(sys.argv[1:] if sys.argv[0] == __file__ else [])
    taken: dict[str, dict[str, float]] = {}
    for store in arguments.stores:
        with _root(store) as root:
            taken[store] = _seconds(open_storage(root), arguments.repeats)
        print(STORES[store], taken[store], flush=True)
    if (arguments.stores, arguments.repeats) == (list(STORES), REPEATS):
        write_results(
            "operations", "Operations of storages",
            f"Medians in seconds of {REPEATS} operations, which run one after another. The servers run on the same machine."
            " In the cloud, add the way to the store and back to each operation.",
            ["operation", *STORES.values()],
            [[each, *(f"{taken[store][each]:.5f}" for store in STORES)] for each in OPERATIONS], [],
        )  # fmt: skip


@contextmanager
def _root(store: str) -> Iterator[str]:
    """The place of an empty root in a server of this kind."""
    if store == "posix":
        with tempfile.TemporaryDirectory(prefix="lakelog-bench-") as folder:
            yield folder
    elif store == "hdfs":
        with HdfsCluster() as cluster:
            yield f"{cluster.uri}root"
    else:
        with s3_server() if store == "s3" else azure_server() as server:
            bucket = new_bucket(server)
            with patch.dict(os.environ, environment(server, bucket)):
                yield f"{server.uri_of(bucket)}/root"


def _seconds(storage: Storage, repeats: int) -> dict[str, float]:
    """By operation, the median of its repetitions."""
    for number in range(LISTED):
        storage.put_new(f"meta/listed/{number:04}", b"")
    put, new, read, listing = OPERATIONS
    small, large = bytes(SMALL), bytes(LARGE)

    def write(number: int) -> None:
        with storage.new_file(f"data/{number}") as file:
            file.write(large)

    return {
        put: _median(lambda number: storage.put_new(f"meta/put/{number}", small), repeats),
        new: _median(write, repeats),
        read: _median(lambda number: storage.read(f"meta/put/{number}"), repeats),
        listing: _median(lambda _: len(list(storage.list("meta/listed/"))), repeats),
    }


def _median(work: Callable[[int], object], repeats: int) -> float:
    seconds = []
    for number in range(repeats):
        began = time.perf_counter()
        work(number)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
