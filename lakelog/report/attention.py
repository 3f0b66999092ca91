"""Shows what an operator should look at, for the root or for a topic: warnings and dead letters. All functions are
pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakelog.report.dead_letter_counts import DeadLetterKind, DeadLetters
from lakelog.report.facts import ReportWarning
from lakelog.report.layout import data_table, row_head
from lakelog.report.markup import Child, Markup, element, joined
from storage_engine.quantities import shown_number

MOST_WARNINGS = 50
"""The most warnings that are shown; further warnings are only counted."""


def warning_list(warnings: Sequence[ReportWarning]) -> Markup:
    """The list of warnings, or a sentence that there are none."""
    if not warnings:
        return element("p", "No warnings: every topic could be read.")
    shown = [
        element("li", element("strong", str(each.finding)), ", ", element("code", each.place), ": ", each.text)
        for each in warnings[:MOST_WARNINGS]
    ]
    if len(warnings) > MOST_WARNINGS:
        shown.append(element("li", f"and {shown_number(len(warnings) - MOST_WARNINGS)} more"))
    return element("div", element("h3", "⚠ Warnings"), element("ul", *shown), class_="warned")


def dead_letters_table(letters: Sequence[DeadLetters], title: str = "Dead letters by reason") -> Markup:
    """A row for each reason and origin."""

    def rows() -> Iterator[Sequence[Child]]:
        for each in letters:
            ingest = each.kind is DeadLetterKind.INGEST
            origin, place = ("query", "batch") if ingest else ("partition", "offset")
            yield (
                row_head(", ".join(filter(None, (each.reason, each.outcome)))), str(each.kind),
                joined([f"{origin} ", element("code", each.origin)]),
                shown_number(each.count), f"{place} {shown_number(each.first)}", f"{place} {shown_number(each.last)}",
            )  # fmt: skip

    return data_table(
        title,
        ("reason", "job", "from", "dead letters", "first", "last"),
        rows(),
        words=("job", "from"),
    )


def database_dead_letters_note(tables: Sequence[str]) -> Markup | None:
    """Where a topic has further dead letters, if the topic is exported into databases."""
    if not tables:
        return None
    return element(
        "div",
        element(
            "p",
            "This page does not count the dead letters in databases. Exports of this topic write dead letters into these"
            " tables of databases:",
        ),
        element("ul", *(element("li", element("code", each)) for each in tables)),
    )
