"""Runs programs inside this process, which has loaded their modules already, with arguments and standard input.

The programs read and write the standard streams of the module sys, as in a separate process. A test gets the output of
these streams.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest


class Ended(NamedTuple):
    """How a program ended and what it printed."""

    status: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def run_in_process(main: Callable[[], object], argv: Sequence[str], stdin: bytes = b"") -> Ended:
    """Run a program to its end.

    Args:
        main: ends by SystemExit, as a program does.
        argv: its name and arguments.
    """
    streams = [io.TextIOWrapper(io.BytesIO(content), encoding="utf-8") for content in (stdin, b"", b"")]
    status = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", list(argv))
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patched.setattr(sys, name, stream)
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
    printed = []
    for stream in streams[1:]:
        stream.flush()
        printed.append(stream.buffer.getvalue().decode())
    return Ended(status, *printed)
