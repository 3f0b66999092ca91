"""The figures in README's table are those of the pages in bench/results to which the table links."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

from tests.docs.pages import PROJECT, text_of

_PAGE = re.compile(r"\(bench/results/(\w+)\.md\)")
_FIGURE = re.compile(r"(?<![\w.,])\d+(?:\.\d+)?(?= ?(?:s|ms|MiB|MB/s|GB/s|M records/s)\b)")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_SCALES = [Decimal(10) ** power for power in (-9, -6, -3, 0, 3, 6)]
"""A page may have another unit, for example records/s instead of M records/s."""

ROWS = [row for row in text_of("README.md").splitlines() if row.startswith("|") and _PAGE.search(row)]


@pytest.mark.parametrize("row", ROWS, ids=[_PAGE.findall(row)[0] for row in ROWS])
def test_each_figure_is_on_the_linked_page(row: str) -> None:
    (page,) = _PAGE.findall(row)
    _, _, ours, theirs, *_ = row.split("|")
    figures = _FIGURE.findall(f"{ours}; {theirs}")
    assert figures
    there = [
        Decimal(each.replace(",", "")) for each in _NUMBER.findall((PROJECT / f"bench/results/{page}.md").read_text())
    ]
    for figure in map(Decimal, figures):
        digits = Decimal(1).scaleb(figure.as_tuple().exponent)  # type: ignore[arg-type]
        assert any((each * scale).quantize(digits) == figure for each in there for scale in _SCALES), figure
