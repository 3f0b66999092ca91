"""Reads the JSON of the options that name partitions. Spark's Kafka source reads this JSON with Java's conversions, and
so does this module:

    {"orders": [0, 1]}                   partitions
    {"orders": {"0": 23, "1": -1}}       a number for each partition

    text after the JSON value            is ignored
    null                                 is 0, or has no topics, or has no partitions
    a number with a point or an exponent loses its digits after the point; if it is too large, it is the largest number
    a whole number that is too large     keeps only its lowest 32 or 64 bits
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

Where = tuple[str, int]
"""A topic and a partition."""

_INT_BITS, _LONG_BITS = 32, 64
_INT = re.compile(r"[+-]?[0-9]+")


def partitions_in(text: str) -> frozenset[Where]:
    """
    Raises:
        TypeError, ValueError: the text is not JSON, or the JSON does not have this form.
    """
    return frozenset(
        (topic, _number(number, _INT_BITS))
        for topic, numbers in _fields(_parsed(text)).items()
        for number in _elements(numbers)
    )


def numbers_in(text: str) -> Mapping[Where, int]:
    """A number for each partition. Raises the errors of partitions_in."""
    return {
        (topic, _partition(name)): _number(value, _LONG_BITS)
        for topic, partitions in _fields(_parsed(text)).items()
        for name, value in _fields(partitions).items()
    }


def _parsed(text: str) -> object:
    return json.JSONDecoder(parse_constant=_refuse).raw_decode(text.lstrip())[0]


def _refuse(constant: str) -> object:
    """Python's decoder asks for the meaning of NaN and Infinity, which JSON does not have."""
    raise ValueError(constant)


def _fields(value: object) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError(value)
    return value


def _elements(value: object) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def _partition(name: str) -> int:
    if not _INT.fullmatch(name) or _lowest_bits(int(name), _INT_BITS) != int(name):
        raise ValueError(name)
    return int(name)


def _number(value: object, bits: int) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    if isinstance(value, int):
        return _lowest_bits(value, bits)
    bound = 1 << bits - 1
    if math.isinf(value):
        return bound - 1 if value > 0 else -bound
    return max(-bound, min(int(value), bound - 1))


def _lowest_bits(value: int, bits: int) -> int:
    """The number that the lowest bits of a whole number mean in two's complement."""
    bound = 1 << bits - 1
    return (value + bound) % (2 * bound) - bound
