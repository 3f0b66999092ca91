"""Builds HTML and SVG, element by element. Every string that is not Markup is escaped. So topic names, settings and
descriptions of changes can never change the page's structure.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_VOID = frozenset({"meta", "link", "br"})
_NO_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
"""Characters that neither HTML nor XML allows, not even escaped."""


class Markup(str):
    """Text that is already HTML or SVG."""

    __slots__ = ()


Child = str | int | None
Value = str | int | float | bool | None


def escaped(child: Child) -> Markup:
    """A child as markup; nothing for None."""
    if isinstance(child, Markup):
        return child
    return Markup("" if child is None else html.escape(_NO_CHARACTERS.sub("\ufffd", str(child))))


def joined(children: Iterable[Child]) -> Markup:
    """Children one after another."""
    return Markup("".join(escaped(child) for child in children))


def element(name: str, /, *children: Child, **attributes: Value) -> Markup:
    """An element.

    Args:
        name: the name of the element.
        children: its content; text is escaped.
        attributes: by name. In a name, `_` means `-`, and a last `_` is dropped: class_, aria_label. An attribute with
            the value None or False is omitted. An attribute with the value True is set without a value. Numbers that
            are not whole get one decimal place.
    """
    tag = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{tag}>")
    return Markup(f"<{tag}>{joined(children)}</{name}>")


def _attribute(key: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
    return f' {name}="{escaped(text)}"'
