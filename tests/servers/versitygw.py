"""Starts versitygw, a real S3 server, for tests. scripts/go_programs.py builds the program.

The server stores objects as files of a folder in a temporary directory, which is deleted with the server. A bucket is a
folder at the top. Each server has its own keys, so that no client can use the server of another test process.

Two differences from Amazon's S3 matter to tests. If the key `a/b` exists, the key `a` cannot exist, because a file
cannot also be a folder. A listing may show a folder that another request deletes at the same time.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.go_programs import versitygw
from tests.servers.local_server import serving
from tests.servers.object_server import ObjectServer

REGION = "us-east-1"
HEALTH = "/health"


@contextmanager
def s3_server() -> Iterator[ObjectServer]:
    program = versitygw()
    with tempfile.TemporaryDirectory(prefix="versitygw-", ignore_cleanup_errors=True) as folder:
        data, sidecar = Path(folder, "data"), Path(folder, "metadata")
        data.mkdir()
        sidecar.mkdir()
        # The server keeps metadata (ETags) in attributes of files; not every file system has attributes.
        metadata: list[str | Path] = [] if _has_attributes(data) else ["--sidecar", sidecar]
        access_key, secret_key = secrets.token_hex(10), secrets.token_hex(20)
        environment = {**os.environ, "ROOT_ACCESS_KEY": access_key, "ROOT_SECRET_KEY": secret_key}
        with serving(
            lambda port: [
                program, "--port", f"127.0.0.1:{port}", "--region", REGION, "--health", HEALTH, "--keep-alive", "--quiet",
                "posix", *metadata, data,
            ],
            environment, HEALTH,
        ) as port:  # fmt: skip
            options = {
                "aws_access_key_id": access_key,
                "aws_secret_access_key": secret_key,
                "aws_region": REGION,
            }
            yield ObjectServer(
                "s3", f"http://127.0.0.1:{port}", "aws_endpoint_url", options, lambda name: (data / name).mkdir(),
                folder=data,
            )  # fmt: skip


def _has_attributes(folder: Path) -> bool:
    if sys.platform == "linux":
        try:
            os.setxattr(folder, "user.lakelog", b"")
        except OSError:
            return False
    return True
