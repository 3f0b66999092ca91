"""Measures how long the basic operations of each kind of storage take, on servers of this machine.

    python -m bench.stores.operations [--stores s3 azure hdfs]

The servers are versitygw (S3), Azurite (Azure), and a NameNode with two DataNodes (HDFS). The root on the local file
system is measured in the same run. The operations run one after another in one process. The result has the medians.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from unittest.mock import patch

from bench.commits import MEASURED, milliseconds
from bench.results import write_results
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_storage
from tests.servers.azurite import azure_server
from tests.servers.minicluster import HdfsCluster
from tests.servers.versitygw import s3_server
from tests.stores import environment, new_bucket

STORES = {"posix": "file system", "s3": "S3 (versitygw)", "azure": "Azure (Azurite)", "hdfs": "HDFS"}
LISTED = 1_000
SMALL, LARGE = 1_000, 1_000_000
OPERATIONS = ("put-if-absent of 1 kB", "a new file of 1 MB", "read of 1 kB", f"listing of {LISTED:,} names")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    arguments = parser.parse_args(sys.argv[1:] if sys.argv[0] == __file__ else [])
    taken: dict[str, dict[str, float]] = {}
    for store in arguments.stores:
        with _root(store) as root:
            taken[store] = _milliseconds(open_storage(root))
        print(STORES[store], taken[store], flush=True)
    if arguments.stores == list(STORES):
        write_results(
            "operations", "Operations of storages",
            f"Medians in milliseconds of {MEASURED} operations, which run one after another. The servers run on the same machine."
            " In the cloud, add the way to the store and back to each operation.",
            ["operation", *STORES.values()],
            [[each, *(f"{taken[store][each]:.2f}" for store in STORES)] for each in OPERATIONS], [],
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


def _milliseconds(storage: Storage) -> dict[str, float]:
    """By operation, the median of its repetitions."""
    for number in range(LISTED):
        storage.put_new(f"meta/listed/{number:04}", b"")
    small, large, numbers = bytes(SMALL), bytes(LARGE), count()

    def put() -> None:
        storage.put_new(f"meta/put/{next(numbers)}", small)

    def write() -> None:
        with storage.new_file(f"data/{next(numbers)}") as file:
            file.write(large)

    works = put, write, lambda: storage.read("meta/put/0"), lambda: list(storage.list("meta/listed/"))
    return dict(zip(OPERATIONS, map(milliseconds, works), strict=True))


if __name__ == "__main__":
    main()
