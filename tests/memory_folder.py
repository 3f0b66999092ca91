"""Lets tests write their files to memory, where a sync costs no time.

The programs under test sync every commit, and the whole run makes hundreds of thousands of syncs. On a disk, the tests
wait for syncs for a third of their time. No test needs a disk: the tests of power cuts keep a record of what was synced
(tests/faults), and the tests of full disks mount small file systems. To run the tests on a disk, name a folder of this
disk in TMPDIR.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
_FREE_BYTES = 6 * 1024**3
"""More than the files of all tests that run at the same time."""
_AVAILABLE_BYTES = 12 * 1024**3
"""The files, and what the processes of a whole run need beside the files."""


def use_memory() -> None:
    """Set TMPDIR for this process and for the processes that it starts, unless TMPDIR is set or memory is scarce."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    free = os.statvfs(_MEMORY)
    available = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    if free.f_bavail * free.f_frsize >= _FREE_BYTES and available and int(available[1]) * 1024 >= _AVAILABLE_BYTES:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None  # Python may have remembered another folder
