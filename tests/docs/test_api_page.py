"""Runs the examples of docs/API.md, one after another, and tests that the page has the whole API."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lakelog
from docs.api_page import CLASSES, PAGE, VALUES, public_members, render
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
        (b"order-5", b'{"amount": 7}'),
    ]  # fmt: skip
    assert len(names["last_hour"]) == 5
    assert [row["key"] for row in names["tombstones"].to_pylist()] == [b"order-2"]
    assert [row["key"] for row in names["first_of_a_key"].to_pylist()] == [b"order-1"]
    assert "orders-6: clean segment 0, by the rule: dirty ratio" in shown
    assert "segments, 0 problems" in shown
    assert "no-such-topic" in shown
    groups = names["log"].groups(unread=True)
    assert {each.group for each in groups} == {"billing", "warehouse"}
    assert {(each.lag, each.records) for each in groups} == {(0, 0)}


def test_the_page_is_what_the_docstrings_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m docs.generate` and commit the page"


def test_the_page_has_every_public_name() -> None:
    documented = {"errors", "open", "register", "table", *(kind.__name__ for kind in (*CLASSES, *VALUES))}
    assert set(lakelog.__all__) <= documented
    headings = re.findall(r"^#+ `(?:lakelog\.)?(\w+)", render(), re.MULTILINE)
    assert documented - {"errors"} <= set(headings)


CALLS = {"open": lakelog.open, "table": lakelog.table} | {
    f"{kind.__name__}.{name}": member
    for kind in CLASSES
    for name, member in public_members(kind).items()
    if inspect.isfunction(member)
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_every_argument_and_every_error_of_a_call_is_described(call: Callable[..., object]) -> None:
    said = inspect.cleandoc(call.__doc__ or "")
    arguments = said.partition("Args:")[2].partition("Raises")[0]
    given = set(inspect.signature(call).parameters) - {"self", "requested_schema"}
    assert {name for name in given if not re.search(rf"\b{name}\b", arguments)} == set()
    raised = re.findall(r"^    ([A-Z]\w+(?:, [A-Z]\w+)*): ", said.partition("Raises")[2], re.MULTILINE)
    assert set(", ".join(raised).split(", ")) - {""} <= set(lakelog.errors.__all__)
