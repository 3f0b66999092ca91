"""Makes the elements of the page: tables, figures, times. Pure.

A table scrolls in a narrow window, and so does a picture; each has a caption that a screen reader says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lakelog.report.markup import Child, Markup, element
from storage_engine.quantities import shown_moment


def data_table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Child]],
    words: Sequence[str] = (),
    prose: Sequence[str] = (),
) -> Markup:
    """A table whose first column names the rows.

    Args:
        rows: cells in the order of the columns, a `row_head` first; None for nothing to tell.
        words, prose: columns of a word or two, and of many, which wrap. The first column has words; those that are not
            named have numbers and are set to the right.
    """
    classes = [None, *("prose" if name in prose else None if name in words else "number" for name in columns[1:])]
    head = (element("th", name, scope="col", class_=class_) for name, class_ in zip(columns, classes, strict=True))
    body = (
        element(
            "tr",
            row[0],
            *(
                element("td", "–" if cell is None else cell, class_=class_)
                for cell, class_ in zip(row[1:], classes[1:], strict=True)
            ),
        )
        for row in rows
    )
    table = element(
        "table", element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body)
    )
    return element("div", table, class_="wide", tabindex=0, role="region", aria_label=caption)


def figure(picture: Markup, caption: str, note: Child = None) -> Markup:
    """A picture, which a narrow window scrolls, and what it shows."""
    return element(
        "figure",
        element("div", picture, class_="wide", tabindex=0, role="region", aria_label=caption),
        element("figcaption", caption, note),
    )


def row_head(text: str, target: str | None = None) -> Markup:
    """The cell that names a row, as a link where it has a target in the page."""
    return element("th", element("a", text, href=f"#{target}") if target else text, scope="row")


def moment(ms: int) -> Child:
    """A time to the second for people, exactly for machines; nothing if there is none."""
    if ms < 0:
        return None
    exact = shown_moment(ms)
    if not exact.endswith("Z"):  # no calendar reaches there
        return f"{exact} ms"
    return element("time", f"{exact[:-5]}Z", datetime=exact.replace(" ", "T"))
