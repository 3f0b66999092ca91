"""Checks the parameters of an address, and the fields of a form."""

from __future__ import annotations

from collections.abc import Iterable

from storage_engine.config import LONG_MAX, shown
from storage_engine.errors import ConfigError
from storage_engine.quantities import parse_moment

MOST_SHOWN = 80
"""At most this many characters of a wrong value are shown."""


class BadParameterError(ConfigError):
    """A parameter of an address, or a field of a form, has a wrong value."""


class Parameters:
    """The parameters of one request. An empty parameter counts as missing, because a form sends its empty fields."""

    def __init__(self, items: Iterable[tuple[str, str]], noun: str = "parameter") -> None:
        """
        Args:
            items: names and values. If a name is repeated, its last value applies.
            noun: what an error calls a parameter.
        """
        self._values = dict(items)
        self._noun = noun

    def text(self, name: str) -> str | None:
        """The value; None if it is missing."""
        return self._values.get(name) or None

    def required(self, name: str, remedy: str) -> str:
        """The value.

        Raises:
            BadParameterError: it is missing.
        """
        value = self.text(name)
        if value is None:
            raise BadParameterError(f"{self._noun} {name}", "found none", remedy)
        return value

    def whole(self, name: str, default: int, low: int, high: int, remedy: str = "") -> int:
        """The value as a whole number; the default if it is missing.

        Raises:
            BadParameterError: it is no whole number from low to high.
        """
        value = self.text(name)
        if value is None:
            return default
        number = int(value) if value.isascii() and value.isdecimal() and len(value) < 20 else -1
        if not low <= number <= high:
            problem = f"expected a whole number from {low} to {high}; found {shown(value[:MOST_SHOWN])}"
            raise BadParameterError(f"{self._noun} {name}", problem, remedy or "Correct the number, or leave it out.")
        return number

    def moment_ms(self, name: str) -> int | None:
        """The value as a time, in milliseconds since 1970; None if it is missing. The value is such a number, or ISO 8601
        text. Text without a zone is UTC.

        Raises:
            BadParameterError: it is no time from 1970 on.
        """
        value = self.text(name)
        if value is None:
            return None
        if value.isascii() and value.isdecimal() and 8 < len(value) < 20:
            found = int(value)
        else:
            try:
                found = parse_moment(value)
            except (ValueError, OverflowError):
                found = -1
        if not 0 <= found <= LONG_MAX:
            problem = f"expected a time; found {shown(value[:MOST_SHOWN])}"
            remedy = "For example 2026-01-31T12:00:00Z, or milliseconds since 1970."
            raise BadParameterError(f"{self._noun} {name}", problem, remedy)
        return found
