"""The name of the program that this process runs."""

from __future__ import annotations

import sys
from pathlib import Path

_set_names: list[str] = []


def program_name() -> str:
    """The name that was set, or the name of the program's file, for example `maintenance.py`."""
    name = _set_names[-1] if _set_names else Path(next(iter(sys.argv), "")).name
    return "python" if name in ("", "-", "-c") else name


def set_program_name(name: str) -> None:
    """Name the program of this process, for example after the command that it runs."""
    _set_names[:] = [name]
