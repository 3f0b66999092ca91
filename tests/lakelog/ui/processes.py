"""Starts `lakelog ui` as a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def command(root: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "lakelog.cli", "ui", "--root", str(root), *options]


@contextmanager
def serving(root: Path, *options: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the address that it has printed."""
    arguments = command(root, *(options or ("--listen", "127.0.0.1:0")))
    environment = {name: value for name, value in os.environ.items() if name != "LAKELOG_UI_TOKEN"} | variables
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("pages at http://"), (line, process.stderr and process.stderr.read())
        yield process, line.removeprefix("pages at ").strip()
    finally:
        process.kill()
        process.communicate()
