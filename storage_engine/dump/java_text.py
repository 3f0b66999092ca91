"""Values as Java writes them, where that is not what Python would write.

Kafka's tool prints what its classes make of themselves: true and false, a java.util.OptionalLong, bytes as the text that
a Java String decodes them to, and maps in the order of their hash buckets. Whoever compares two dumps, one by each tool,
should find no difference that is not one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

_HALF_PAIR = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""Half of a surrogate pair in three bytes, or what is left of one."""


def java_bool(value: bool) -> str:
    """As a boolean prints itself."""
    return "true" if value else "false"


def optional_long(value: int | None) -> str:
    """As a java.util.OptionalLong prints itself."""
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def java_texts(column: pa.Array) -> list[str | None]:
    """Bytes as the texts that new String(bytes, UTF_8) makes of them in Java, None where they are null.

    What is no UTF-8 becomes U+FFFD, as many as Python puts there too, but for half a surrogate pair, which is one.
    """
    try:
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        texts = [
            None if data is None else _HALF_PAIR.sub(b"\xff", data).decode(errors="replace")
            for data in column.to_pylist()
        ]
    return texts


def java_order(names: Iterable[str]) -> list[str]:
    """Texts in the order in which a java.util.HashMap hands them out."""
    names = list(names)
    buckets = 16
    while len(names) > buckets * 3 // 4:
        buckets *= 2
    return sorted(names, key=lambda name: _java_hash(name) & (buckets - 1))


def _java_hash(text: str) -> int:
    """How java.util.HashMap spreads a java.lang.String."""
    folded = 0
    for unit in np.frombuffer(text.encode("utf-16-be", "surrogatepass"), ">u2").tolist():
        folded = (31 * folded + unit) & 0xFFFFFFFF
    return folded ^ (folded >> 16)
