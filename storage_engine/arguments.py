"""Checks the types of arguments that a Python program gives, so that a wrong type is a ConfigError that names the
argument, and not a TypeError from somewhere in Lakelog.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

from storage_engine.errors import ConfigError


def whole_number(argument: str, value: object, remedy: str) -> int:
    """An argument as int. Integers of other libraries, such as NumPy, are accepted; booleans are not.

    Args:
        argument: the name of the argument.
        remedy: what to give.

    Raises:
        ConfigError: the value is no whole number.
    """
    number = as_integer(value)
    if number is None:
        raise refused(argument, "expected a whole number", value, remedy)
    return number


def as_integer(value: object) -> int | None:
    """A value as int; None if it is no integer. Integers of other libraries count, and booleans do not."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def whole_numbers(argument: str, values: object, remedy: str) -> list[int]:
    """An argument with several whole numbers. The arguments and errors are those of whole_number."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise refused(argument, "expected several whole numbers", values, remedy)
    return [whole_number(argument, value, remedy) for value in values]


def boolean(argument: str, value: object) -> bool:
    """An argument that is True or False.

    Raises:
        ConfigError: the value is not a boolean.
    """
    if not isinstance(value, bool):
        raise refused(argument, "expected a boolean", value, "Give True or False.")
    return value


def known_options(argument: str, given: Iterable[str], allowed: Collection[str]) -> None:
    """Check the names of options.

    Raises:
        ConfigError: an option does not exist. The error names the option with the most similar name.
    """
    for name in given:
        if name not in allowed:
            close = get_close_matches(name, allowed, 1)
            remedy = f"Did you mean {close[0]}?" if close else f"The options are {', '.join(allowed)}."
            raise ConfigError(argument, f"found the unknown option {name!r:.60}", remedy)


def seconds(argument: str, value: object, least: float, most: float, remedy: str) -> float:
    """An argument with a number of seconds.

    Raises:
        ConfigError: the value is no number, or is not between the two bounds.
    """
    try:
        if not isinstance(value, bool | str | bytes) and least <= float(value) <= most:  # type: ignore[arg-type]
            return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        pass
    raise refused(argument, "expected a number of seconds", value, remedy)


def refused(argument: str, expected: str, value: object, remedy: str) -> ConfigError:
    """The error for an argument with a wrong value."""
    return ConfigError(argument, f"{expected}, found {type(value).__name__} {value!r:.60}", remedy)
