"""Defines ConfigKey, the declaration of one configuration key, and uses it to parse values.

A declaration is stored in the metadata of a dataclass field. The field has the Python name and the default of the key.
For a class with such fields, `declared_keys` returns a dict that maps Kafka's name of each key to the key's
declaration. All values are immutable.
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

ValueKind = Literal["boolean", "int", "long", "double", "choice", "list"]
Scope = Literal["topic", "broker", "producer"]
Value = bool | int | float | str | frozenset[str]

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
_DECIMAL_NUMBER = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)([fFdD]?)")
_BOOLEANS: Final = {"true": True, "false": False}
_NO_CHARACTER = re.compile(r"[\0\ud800-\udfff]")
"""NUL, which no path can have, and surrogates, which UTF-8 cannot encode. Python uses surrogates for undecodable
bytes.
"""


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return the candidate most similar to the word, for error messages. There must be at least one candidate."""
    return difflib.get_close_matches(word, candidates, n=1, cutoff=0.0)[0]


def shown(value: object) -> str:
    """Return a value as text for an error message. The text shows the type if a wrong type may be the mistake."""
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


def check_text(text: str, place: str) -> None:
    """Check that a text has only characters that paths and Spark can contain. Files of settings and shells allow more.

    Raises:
        ConfigError: the text has another character.
    """
    found = _NO_CHARACTER.search(text)
    if found:
        raise ConfigError(
            place,
            f"found U+{ord(found[0]):04X} at position {found.start()}; settings may not contain this character",
            "Remove the character.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSynonym:
    """A broker's key that sets the default of a topic's key. The broker's key may have a different unit and a different
    bound.
    """

    key: str
    unit: str = ""
    kind: ValueKind | None = None
    minimum: int | None = None
    negative_is_unlimited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """The declaration of one configuration key.

    Attributes:
        key: Kafka's name.
        name: the attribute that holds the value; empty for a broker's key that only sets the default of a topic's key.
        doc: what the key does.
        cost: what a change of the value costs, and when it takes effect.
        default: None if another broker's key gives the value when this key is not set.
        also: single values outside minimum and maximum that are allowed and have a special meaning.
        negative_is_unlimited: any negative number is allowed, and is read as -1.
        synonyms: for a topic's key: the broker's keys that set its default. Only the first of them that is set has an
            effect.
        sets: for a broker's key: the topic's key whose default the broker's key sets.
    """

    key: str
    scope: Scope
    kind: ValueKind
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
        """The allowed values as text."""
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
        """Parse a YAML scalar, or its text.

        Raises:
            ConfigError: at `place`: the type is wrong, or the value is not allowed.
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
            decimal = _DECIMAL_NUMBER.fullmatch(text)
            if decimal is None or (decimal[2] and self.scope == "producer"):  # Java's suffixes are for Kafka's keys
                return None
            number = float(decimal[1])
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
    """Return a parsed value as text, as Kafka's tools print it and a topic's state stores it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def declared_field(key: str, scope: Scope, kind: ValueKind, default: Value | None, **facts: Any) -> Any:
    """Return a dataclass field for the value of this key. `facts` are further attributes of ConfigKey."""
    return field(
        default=default, metadata={"key": ConfigKey(key=key, scope=scope, kind=kind, default=default, **facts)}
    )


def declared_keys(config: type, *, beyond: type | None = None) -> dict[str, ConfigKey]:
    """Return the keys that a class declares, by Kafka's name. Keys of its parent class `beyond` are omitted."""
    inherited = set() if beyond is None else {each.name for each in dataclasses.fields(beyond)}
    found = [each for each in dataclasses.fields(config) if "key" in each.metadata and each.name not in inherited]
    return {(key := dataclasses.replace(each.metadata["key"], name=each.name)).key: key for each in found}
