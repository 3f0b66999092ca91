"""Commands of lakelog, run in this process, which has loaded the kernels already."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from storage_engine import cli


class Ended(NamedTuple):
    """How a command ended and what it printed."""

    status: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Lakelog = Callable[..., Ended]


@pytest.fixture
def lakelog(tmp_path, monkeypatch) -> Lakelog:
    """Runs a command on an empty root: lakelog("topics", "list"), with `stdin` as bytes or lines."""
    monkeypatch.setenv("LAKELOG_ROOT", str(tmp_path / "root"))

    def run(*arguments: str, stdin: bytes | Sequence[str] = b"") -> Ended:
        data = stdin if isinstance(stdin, bytes) else "".join(f"{line}\n" for line in stdin).encode()
        streams = [io.TextIOWrapper(io.BytesIO(content), encoding="utf-8") for content in (data, b"", b"")]
        with monkeypatch.context() as patched:
            patched.setattr(sys, "argv", ["lakelog", *arguments])
            for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
                patched.setattr(sys, name, stream)
            try:
                cli.main()
            except SystemExit as end:
                status = int(end.code or 0)
        printed = []
        for stream in streams[1:]:
            stream.flush()
            printed.append(stream.buffer.getvalue().decode())
        return Ended(status, *printed)

    return run


def line(key: bytes | None, value: bytes | None, **others: object) -> str:
    """A record as a line for append."""
    return json.dumps({"key": text(key), "value": text(value)} | others)


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
