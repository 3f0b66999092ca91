"""Defines the declaration of one key of Kafka's configuration, and parses a value by it.

A declaration is the metadata of a dataclass field: the field's name is the Python name, its default is the key's. From
the declarations of a class `declared_keys` makes the table of its keys. Immutable, for use from any thread.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from storage_engine.errors import ConfigError

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

Kind = Literal["boolean", "int", "long", "double", "choice", "list"]
Scope = Literal["topic", "broker", "producer"]
Value = bool | int | float | str | frozenset[str]

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
_DECIMAL_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BOOLEANS: Final = {"true": True, "false": False}


def nearest(word: str, candidates: Iterable[str]) -> str:
    """The candidate that looks most like the word, for error messages. There must be one candidate at least."""
    return difflib.get_close_matches(word, candidates, n=1, cutoff=0.0)[0]


def shown(value: object) -> str:
    """A setting's value as an error message names it: the value, and its type where that may be the mistake."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"{str(value).lower()} (true or false)"
        case Mapping():
            return "a section of keys"
        case list() | tuple():
            return "a list"
        case str():
            return f"{value!r}"
        case _:
            return f"{value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSynonym:
    """A broker's key that gives a topic's key its default, in its own unit and with its own bound."""

    key: str
    unit: str = ""
    kind: Kind | None = None
    minimum: int | None = None
    negative_is_unlimited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key of Kafka's configuration and all that is known about it.

    Attributes:
        key: Kafka's name.
        name: the attribute that holds the value; empty for a broker's key that only sets the default of a topic's key.
        default: None where another broker's key decides when this one is absent.
        also: single values beyond minimum and maximum that have a meaning of their own.
        negative_is_unlimited: any negative number is taken, and read as -1.
        synonyms: for a topic's key, the broker's keys that set its default, the first that is given wins.
        sets: for a broker's key, the topic's key whose default it sets.
        cost: what changing it costs, and when the change is felt.
    """

    key: str
    scope: Scope
    kind: Kind
    doc: str
    cost: str
    default: Value | None
    name: str = ""
    unit: str = ""
    minimum: int | None = None
    maximum: int | None = None
    also: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    negative_is_unlimited: bool = False
    synonyms: tuple[BrokerSynonym, ...] = ()
    sets: str = ""

    @property
    def bound(self) -> str:
        """The allowed values in words."""
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.kind == "boolean":
            return "true or false"
        if self.kind == "list":
            return "any of " + ", ".join(self.choices) + ", separated by commas"
        low, high = self.minimum, self.maximum
        if low is not None and high is not None:
            text = f"{low} to {high}"
        else:
            text = "" if low is None else f"at least {low}"
        others = ("-1 for no limit",) if self.negative_is_unlimited else tuple(str(value) for value in self.also)
        return " or ".join(part for part in (text, *others) if part)

    def parse(self, value: object, place: str) -> Value:
        """The value of a YAML scalar or of its text.

        Raises:
            ConfigError: at `place`: the type is wrong or the value lies outside the bound.
        """
        parsed: Value | None
        if self.kind == "choice":
            parsed = value.strip() if isinstance(value, str) and value.strip() in self.choices else None
        elif self.kind == "list":
            parsed = self._parse_list(value)
        elif self.kind == "boolean":
            parsed = _BOOLEANS.get(str(value).strip().lower())
        else:
            parsed = self._parse_number(value)
        if parsed is None:
            nouns = {"int": "a whole number", "long": "a whole number", "double": "a number"}
            noun = nouns.get(self.kind, "")
            of_unit = f" of {self.unit}" if noun and self.unit else ""
            expected = ", ".join(part for part in (noun + of_unit, self.bound) if part)
            remedy = "" if self.default is None else f"The default is {as_text(self.default)}."
            raise ConfigError(place, f"expected {expected}; found {shown(value)}", remedy)
        return parsed

    def _parse_list(self, value: object) -> frozenset[str] | None:
        words = value.split(",") if isinstance(value, str) else value
        if not isinstance(words, list | tuple | frozenset) or not all(isinstance(word, str) for word in words):
            return None
        names = frozenset(word.strip() for word in words if word.strip() or len(words) > 1)
        return names if names <= set(self.choices) else None

    def _parse_number(self, value: object) -> int | float | None:
        text = value.strip() if isinstance(value, str) else repr(value)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return None
        number: int | float
        if self.kind == "double":
            if not _DECIMAL_NUMBER.fullmatch(text):
                return None
            number = float(text)
        else:
            if not _WHOLE_NUMBER.fullmatch(text) or len(text) > 20:
                return None
            number = int(text)
            largest = INT_MAX if self.kind == "int" else LONG_MAX
            if not -largest - 1 <= number <= largest:
                return None
        if self.negative_is_unlimited and number < 0:
            return -1
        low = -math.inf if self.minimum is None else self.minimum
        high = math.inf if self.maximum is None else self.maximum
        return number if low <= number <= high or number in self.also else None


def as_text(value: Value) -> str:
    """A parsed value as Kafka's tools print it and as a topic's state keeps it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def declared_field(key: str, scope: Scope, kind: Kind, default: Value | None, **facts: Any) -> Any:
    """A field of a configuration class that holds this key's value. facts are further attributes of ConfigKey."""
    return field(
        default=default, metadata={"key": ConfigKey(key=key, scope=scope, kind=kind, default=default, **facts)}
    )


def declared_keys(config: type, *, beyond: type | None = None) -> dict[str, ConfigKey]:
    """The keys that a configuration class declares, by Kafka's name; without those that `beyond`, its parent, declares."""
    inherited = set() if beyond is None else {each.name for each in dataclasses.fields(beyond)}
    found = [each for each in dataclasses.fields(config) if "key" in each.metadata and each.name not in inherited]
    return {(key := dataclasses.replace(each.metadata["key"], name=each.name)).key: key for each in found}
