"""Mounts small file systems for the duration of a test."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A file system of its own with so many bytes, at this folder.

    Raises:
        subprocess.CalledProcessError, OSError: this user may not have one.
    """
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@cache
def can_mount() -> bool:
    """Whether this user may have a small_disk."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with small_disk(Path(folder), 4 * 1024**2):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


needs_a_disk = pytest.mark.skipif(not can_mount(), reason="this user may not mount a file system")
"""For tests whose disk must be full and must get space back, which a limit on the size of files does not show."""
