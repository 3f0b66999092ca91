"""Runs commands of lakelog in this process, which has loaded the kernels already."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence

import pytest

from lakelog import cli
from tests.in_process import Ended, run_in_process
from tests.stores import root_at

Lakelog = Callable[..., Ended]


@pytest.fixture
def lakelog(tmp_path, monkeypatch) -> Lakelog:
    """Runs a command on an empty root: lakelog("topics", "list"), with `stdin` as bytes or lines."""
    monkeypatch.setenv("LAKELOG_ROOT", root_at(tmp_path / "root"))

    def run(*arguments: str, stdin: bytes | Sequence[str] = b"") -> Ended:
        data = stdin if isinstance(stdin, bytes) else "".join(f"{line}\n" for line in stdin).encode()
        return run_in_process(cli.main, ["lakelog", *arguments], data)

    return run


def line(key: bytes | None, value: bytes | None, **others: object) -> str:
    """A record as a line for append."""
    return json.dumps({"key": text(key), "value": text(value)} | others)


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
