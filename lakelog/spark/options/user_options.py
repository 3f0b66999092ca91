"""Reads the options that a user gave to the source, one by one. Upper case and lower case in the names of options are
not distinguished. The values are read as in Spark's Kafka source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from storage_engine.config import shown
from storage_engine.errors import ConfigError

LAKELOG = "lakelog"
"""The source's name."""

_JAVA_SPACES = "".join(map(chr, range(ord(" ") + 1)))
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DURATION = re.compile(r"(-?[0-9]+)([a-z]*)")
_UNITS_MS = {
    "": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "us": 1 / 1000,
}  # fmt: skip


class UserOptions:
    """The options of one read."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    def __iter__(self) -> Iterator[str]:
        """The names, in lower case."""
        return iter(self._options)

    def get(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def flag(self, name: str, *, default: bool) -> bool:
        """
        Raises:
            ConfigError: the value is neither true nor false.
        """
        value = self.get(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise wrong(name, f"found {shown(value)}", "Give true or false.")
        return value.lower() == "true"

    def whole_number(self, name: str, *, bits: int = 64, trimmed: bool = False) -> int | None:
        """
        Args:
            trimmed: whether spaces around the number are allowed.

        Raises:
            ConfigError: the value is not a whole number of this many bits.
        """
        value = self.get(name)
        if value is None:
            return None
        number = without_spaces(value) if trimmed else value
        if not _WHOLE.fullmatch(number) or not -(1 << bits - 1) <= int(number) < 1 << bits - 1:
            raise wrong(name, f"found {shown(value)}", f"Give a whole number of at most {bits} bits.")
        return int(number)

    def positive(self, name: str, *, bits: int = 64) -> int | None:
        """
        Raises:
            ConfigError: the value is not a whole number above 0, of this many bits.
        """
        number = self.whole_number(name, bits=bits)
        if number is not None and number <= 0:
            raise wrong(name, f"found {number}", "Give a whole number above 0.")
        return number

    def duration_ms(self, name: str, default: str) -> int:
        """A duration as Spark writes it, such as 500ms, 10s or 15m; without a unit, milliseconds.

        Raises:
            ConfigError: the value is not a duration.
        """
        value = self.get(name)
        found = _DURATION.fullmatch(without_spaces(default if value is None else value).lower())
        if found is None or found[2] not in _UNITS_MS:
            raise wrong(name, f"found {shown(value)}", "Give a duration, such as 500ms, 10s or 15m.")
        return int(int(found[1]) * _UNITS_MS[found[2]])

    def choice(self, name: str, *words: str) -> str:
        """The value of an option that must be one of these words, in upper or lower case. If the option is not given,
        the first word.

        Raises:
            ConfigError: the value is not one of these words.
        """
        value = self.get(name)
        if value is not None and value.lower() not in words:
            raise wrong(name, f"found {shown(value)}", f"Choose {' or '.join(words)}.")
        return words[0] if value is None else value.lower()


def without_spaces(text: str) -> str:
    """The text without spaces and control characters at its two ends, as in Java. Python would also remove other spaces,
    such as a no-break space."""
    return text.strip(_JAVA_SPACES)


def wrong(option: str, problem: str, remedy: str) -> ConfigError:
    """The error about an option."""
    return ConfigError(f"format {LAKELOG}, option {option}", problem, remedy)
