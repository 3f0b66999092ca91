"""Reads the tables of a page as a person does: by caption, column and row."""

from __future__ import annotations

from html.parser import HTMLParser


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[dict[str, str]]] = {}
        self._rows: list[list[str]] = []
        self._inside: str | None = None
        self._texts: list[str] = []
        self._caption = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th", "caption"):
            self._inside, self._texts = tag, []

    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            text = "".join(self._texts)
            if tag == "caption":
                self._caption = text
            else:
                self._rows[-1].append(text)
            self._inside = None
        elif tag == "table":
            columns, *rows = self._rows
            table = self.tables.setdefault(self._caption, [])
            table += [dict(zip(columns, row, strict=True)) for row in rows]


def tables(page: str) -> dict[str, list[dict[str, str]]]:
    """Rows by caption, each by column; tables of one caption one behind another."""
    reader = _Reader()
    reader.feed(page)
    return reader.tables
