"""Tests the links of the pages: every linked file and heading exists, and every named module exists. Also tests that
the list of decisions is complete, and that the figures in README are those of the linked results.
"""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest

from tests.docs.pages import PROJECT, text_of

DECISIONS = PROJECT / "docs" / "decisions"
PACKAGES = ("jobs", "lakelog", "pipeline", "schemas", "storage_engine")
EVERY_PAGE = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md")), PROJECT / "deploy/README.md"]
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
_MODULE = re.compile(r"(?<![\w./])((?:[a-z_]\w*/)*\w+\.py)\b")
ENGINE = PROJECT / "storage_engine"
NAMES = {path.name for folder in (*PACKAGES, "bench", "deploy", "tests") for path in (PROJECT / folder).rglob("*.py")}


def anchors(page: Path) -> set[str]:
    """The names that a page's headings have in links, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for name, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), name
        assert not anchor or anchor in anchors(target), f"{name}#{anchor}"


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_module_that_a_page_names_is_there(page: Path) -> None:
    """Pages leave `storage_engine/` out of its modules' names, and name some modules without their folders."""
    missing = set()
    for name in _MODULE.findall(page.read_text(encoding="utf-8")):
        places = [PROJECT / name, ENGINE / name]
        if not any(place.exists() for place in places) and ("/" in name or name not in NAMES):
            missing.add(name)
    assert missing == set()


def test_readme_leads_to_every_page() -> None:
    linked = {name for name, _ in _LINK.findall((PROJECT / "README.md").read_text(encoding="utf-8"))}
    assert {f"docs/{page.name}" for page in (PROJECT / "docs").glob("*.md")} <= linked


def test_every_decision_is_listed_with_its_title() -> None:
    titles = {path.name: path.read_text("utf-8").partition("\n")[0] for path in DECISIONS.glob("0*.md")}
    page = (DECISIONS / "README.md").read_text("utf-8")
    listed = re.findall(r"^- \[(\d{4})\]\(([^)]+)\): (.+)$", page, re.MULTILINE)
    assert sorted((name, f"# {number} {title}") for number, name, title in listed) == sorted(titles.items())


_RESULTS = re.compile(r"\(bench/results/(\w+)\.md\)")
_FIGURE = re.compile(r"(?<![\w.,])\d+(?:\.\d+)?(?= ?(?:s|ms|MiB|MB/s|GB/s|M records/s)\b)")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_SCALES = [Decimal(10) ** power for power in (-9, -6, -3, 0, 3, 6)]
"""A page may have another unit, for example records/s instead of M records/s."""

_ROWS = [row for row in text_of("README.md").splitlines() if row.startswith("|") and _RESULTS.search(row)]


@pytest.mark.parametrize("row", _ROWS, ids=[_RESULTS.findall(row)[0] for row in _ROWS])
def test_each_figure_is_on_the_linked_page(row: str) -> None:
    (page,) = _RESULTS.findall(row)
    _, _, ours, theirs, *_ = row.split("|")
    figures = _FIGURE.findall(f"{ours}; {theirs}")
    assert figures
    there = [
        Decimal(each.replace(",", "")) for each in _NUMBER.findall((PROJECT / f"bench/results/{page}.md").read_text())
    ]
    for figure in map(Decimal, figures):
        digits = Decimal(1).scaleb(figure.as_tuple().exponent)  # type: ignore[arg-type]
        assert any((each * scale).quantize(digits) == figure for each in there for scale in _SCALES), figure
