"""Tests that docs/decisions/README.md lists every decision with its title."""

from __future__ import annotations

import re

from tests.docs.pages import PROJECT

DECISIONS = PROJECT / "docs" / "decisions"


def test_every_decision_is_listed_with_its_title() -> None:
    titles = {path.name: path.read_text("utf-8").partition("\n")[0] for path in DECISIONS.glob("0*.md")}
    page = (DECISIONS / "README.md").read_text("utf-8")
    listed = re.findall(r"^- \[(\d{4})\]\(([^)]+)\): (.+)$", page, re.MULTILINE)
    assert sorted((name, f"# {number} {title}") for number, name, title in listed) == sorted(titles.items())
