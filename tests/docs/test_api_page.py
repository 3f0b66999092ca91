"""Runs the examples of docs/API.md, one after another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import blocks


def test_the_examples_run_and_show_what_the_page_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in blocks("docs/API.md", "python"):
        exec(compile(block.text.replace("/mnt/shared", str(tmp_path)), str(block), "exec"), names)
    shown = capsys.readouterr().out
    assert "['orders'] 8 {'cleanup.policy': 'compact'}" in shown
    assert sorted(len(offsets) for offsets in names["offsets"].values()) in ([2], [1, 1])
    assert sorted((row["key"], row["value"]) for row in names["everything"].to_pylist()) == [
        (b"order-1", b'{"amount": 12}'), (b"order-2", None), (b"order-3", b"a"), (b"order-4", b"b"),
    ]  # fmt: skip
    assert len(names["last_hour"]) == 4
    assert "no-such-topic" in shown
    groups = names["log"].groups(unread=True)
    assert {each.group for each in groups} == {"billing", "warehouse"}
    assert {(each.lag, each.records) for each in groups} == {(0, 0)}
