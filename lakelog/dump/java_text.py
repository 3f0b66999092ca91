"""Formats values as Java prints them, if Python would print them differently.

Kafka's tool prints what Java's toString returns. Java and Python differ for true and false, for a
java.util.OptionalLong, for bytes (decoded by a Java String), and for maps (in the order of their hash buckets). So if
the two tools print different text, the dumped values themselves are different.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import TypeVar

import numpy as np
import pyarrow as pa

from storage_engine.record.record_columns import java_text

_Key = TypeVar("_Key")


def java_bool(value: bool) -> str:
    """The text of a Java boolean."""
    return "true" if value else "false"


def optional_long(value: int | None) -> str:
    """The text of a java.util.OptionalLong."""
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def java_double(value: float) -> str:
    """The text of a Java double."""
    if not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    shown = "".join(map(str, digits)).rstrip("0") or "0"
    power = len(digits) + exponent - 1 if any(digits) else 0
    minus = "-" if sign else ""
    if -3 <= power < 7:
        padded = shown.ljust(power + 1, "0") if power >= 0 else "0" * -power + shown
        whole, fraction = padded[: max(power, 0) + 1], padded[max(power, 0) + 1 :]
        return f"{minus}{whole}.{fraction or '0'}"
    return f"{minus}{shown[0]}.{shown[1:] or '0'}E{power}"


def java_texts(column: pa.Array) -> list[str | None]:
    """The text that Java makes of each value in a column of bytes; None for null."""
    try:
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        texts = [None if data is None else java_text(data) for data in column.to_pylist()]
    return texts


def java_order(names: Iterable[str]) -> list[str]:
    """Texts in the order in which a java.util.HashMap returns them. The texts were added with computeIfAbsent, which adds a
    key at the front of its bucket.
    """
    return _in_buckets(list(names)[::-1], _java_hash)


def java_partition_order(partitions: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Topics with partition numbers in the order in which a HashMap of Kafka's TopicPartition returns them. Within a
    bucket, partitions are sorted.
    """
    return _in_buckets(sorted(partitions), lambda each: 31 * (31 + each[1]) + _java_hash(each[0]))


def _in_buckets(keys: list[_Key], hash_of: Callable[[_Key], int]) -> list[_Key]:
    buckets = 16
    while len(keys) > buckets * 3 // 4:
        buckets *= 2

    def bucket(key: _Key) -> int:
        hashed = hash_of(key) & 0xFFFFFFFF
        return (hashed ^ hashed >> 16) & (buckets - 1)

    return sorted(keys, key=bucket)


def _java_hash(text: str) -> int:
    """The hash of a java.lang.String, as an unsigned number."""
    folded = 0
    for unit in np.frombuffer(text.encode("utf-16-be", "surrogatepass"), ">u2").tolist():
        folded = (31 * folded + unit) & 0xFFFFFFFF
    return folded
