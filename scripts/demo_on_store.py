"""Runs the demo with its root in a store on this machine: `make demo-s3` or `make demo-hdfs`.

The tests use the same stores: the S3 server versitygw, or an HDFS with a NameNode and two DataNodes. The store keeps
the root in a temporary directory, which is deleted at the end. Arguments after the store's name are passed to the demo,
for example --json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from storage_engine.storage.storage_options import VARIABLE
from tests.servers.minicluster import HdfsCluster
from tests.servers.versitygw import s3_server

HOME = Path(__file__).resolve().parent.parent
BUCKET = "lakelog"


def on_s3(arguments: list[str]) -> int:
    with s3_server() as server:
        server.create_bucket(BUCKET)
        return demo(f"s3://{BUCKET}/demo", {VARIABLE: json.dumps(server.config)}, arguments)


def on_hdfs(arguments: list[str]) -> int:
    with HdfsCluster() as cluster:
        return demo(f"{cluster.uri}demo", {}, arguments)


STORES = {"s3": on_s3, "hdfs": on_hdfs}


def demo(root: str, environment: Mapping[str, str], arguments: list[str]) -> int:
    return subprocess.run(
        [HOME / "spark-submit.sh", "demo", "--root", root, *arguments], env={**os.environ, **environment}, check=False
    ).returncode


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in STORES:
        print(f"usage: python -m scripts.demo_on_store {'|'.join(STORES)} [ARGUMENT OF THE DEMO ...]", file=sys.stderr)
        return 2
    return STORES[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
