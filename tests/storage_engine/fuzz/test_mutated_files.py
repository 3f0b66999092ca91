"""Tests that for any content of a file, a reader returns or raises a LogError, and never crashes, hangs or uses much
memory.

`make fuzz` runs the same test with a million mutations.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def fuzz(mutations: int, **environ: str) -> str:
    """What a run says. A process of its own, because its memory is limited."""
    command = [sys.executable, "-m", "tests.storage_engine.fuzz.fuzzing", "--mutations", str(mutations), "--seed", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environ})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_ten_thousand_mutated_files_are_read_or_refused() -> None:
    assert "10,000 read" in fuzz(10_000)


def test_no_kernel_leaves_its_arrays(tmp_path: Path) -> None:
    # Compiles all kernels anew, into a cache of their own, so that each looks at every index.
    assert "1,000 read" in fuzz(1_000, NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))
