"""Runs the demo with its root in an S3 server on this machine: `make demo-s3`.

The server is versitygw, which also serves the tests. It stores the root in a temporary directory, which is deleted at the
end. Arguments are passed to the demo, for example --json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from storage_engine.storage.storage_options import VARIABLE
from tests.servers.versitygw import s3_server

HOME = Path(__file__).resolve().parent.parent
BUCKET = "lakelog"


def main() -> int:
    with s3_server() as server:
        server.create_bucket(BUCKET)
        return subprocess.run(
            [HOME / "spark-submit.sh", "demo", "--root", f"s3://{BUCKET}/demo", *sys.argv[1:]],
            env={**os.environ, VARIABLE: json.dumps(server.config)}, check=False,
        ).returncode  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
