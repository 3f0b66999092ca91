"""Tests that docs/GUARANTEES.md names each check of `lakelog doctor`, and the promise that depends on this check. Also
tests that every test exists that this page or docs/TRIALS.md names.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakelog.doctor.check_report import Promise
from lakelog.doctor.examination import ALONE, TOGETHER

HOME = Path(__file__).resolve().parents[2]
PAGE, TRIALS = ((HOME / "docs" / name).read_text(encoding="utf-8") for name in ("GUARANTEES.md", "TRIALS.md"))


def rows() -> dict[str, str]:
    """The promise of each check, from the tables of assumptions."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| `")]
    return {name: row[2] for row in cells if len(row) == 4 for name in re.findall(r"`([^`]+)`", row[0])}


def test_every_check_stands_beside_its_promise() -> None:
    assert rows() == {check.name: str(check.promise) for check in (*ALONE, *TOGETHER)}


@pytest.mark.parametrize("promise", Promise)
def test_every_promise_is_told(promise: Promise) -> None:
    assert f"| **{promise}** |" in PAGE


@pytest.mark.parametrize("page", [PAGE, TRIALS], ids=["GUARANTEES", "TRIALS"])
def test_every_test_that_is_named_is_there(page: str) -> None:
    names = set(re.findall(r"`(tests/[\w./*]+|test_\w+\*?\.py)`", page))
    assert len(names) > 10
    missing = [name for name in names if not list(HOME.glob(name if "/" in name else f"tests/**/{name}"))]
    assert not missing
