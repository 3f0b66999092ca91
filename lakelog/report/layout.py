"""Makes the elements of the page: tables, figures, times. All functions are pure.

In a narrow window, tables and pictures scroll. Each table and each picture has a caption for screen readers.
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
        rows: cells in the order of the columns, a `row_head` first; None for an empty cell.
        words: columns with a word or two. The first column is always such a column.
        prose: columns with many words, which wrap. All other columns have numbers, aligned to the right.
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
    """A picture with its caption. In a narrow window, the picture scrolls."""
    return element(
        "figure",
        element("div", picture, class_="wide", tabindex=0, role="region", aria_label=caption),
        element("figcaption", caption, note),
    )


def row_head(text: str, target: str | None = None) -> Markup:
    """The cell that names a row. With a target, the cell is a link inside the page."""
    return element("th", element("a", text, href=f"#{target}") if target else text, scope="row")


def moment(ms: int) -> Child:
    """A time: to the second for people, and exact for machines. Nothing if there is no time."""
    if ms < 0:
        return None
    exact = shown_moment(ms)
    if not exact.endswith("Z"):  # the time is beyond the calendar's range
        return f"{exact} ms"
    return element("time", f"{exact[:-5]}Z", datetime=exact.replace(" ", "T"))
