"""Formats values as Java prints them, if Python would print them differently.

Kafka's tool prints what Java's toString returns. This matters for true and false, for a java.util.OptionalLong, for
bytes (decoded by a Java String), and for maps (in the order of their hash buckets). So if the dumps of both tools
differ, the dumped values themselves are different.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

_HALF_PAIR = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""Half of a surrogate pair in three bytes, or in two if the third is missing."""


def java_bool(value: bool) -> str:
    """The text of a Java boolean."""
    return "true" if value else "false"


def optional_long(value: int | None) -> str:
    """The text of a java.util.OptionalLong."""
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def java_text(data: bytes | None) -> str | None:
    """Bytes as the text that new String(bytes, UTF_8) makes of them in Java; None for None.

    Bytes that are not UTF-8 become as many U+FFFD as in Python. The exception is half a surrogate pair: Java replaces
    it with a single U+FFFD.
    """
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _HALF_PAIR.sub(b"\xff", data).decode(errors="replace")


def java_texts(column: pa.Array) -> list[str | None]:
    """The text of each value in a column of bytes, as `java_text` returns it."""
    try:
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        texts = [java_text(data) for data in column.to_pylist()]
    return texts


def java_order(names: Iterable[str]) -> list[str]:
    """Texts in the order in which a java.util.HashMap returns them."""
    names = list(names)
    buckets = 16
    while len(names) > buckets * 3 // 4:
        buckets *= 2
    return sorted(names, key=lambda name: _java_hash(name) & (buckets - 1))


def _java_hash(text: str) -> int:
    """The spread hash that java.util.HashMap uses for a java.lang.String."""
    folded = 0
    for unit in np.frombuffer(text.encode("utf-16-be", "surrogatepass"), ">u2").tolist():
        folded = (31 * folded + unit) & 0xFFFFFFFF
    return folded ^ (folded >> 16)
