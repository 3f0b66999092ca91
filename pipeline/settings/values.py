"""Defines the types of the settings' values. Each type has a check, and a noun for messages and documentation.

A check raises a `mistake`. pydantic collects all mistakes, and settings_loading.py turns a mistake into a ConfigError
that names its place.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, get_args

from pydantic import AfterValidator, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from storage_engine.config import LONG_MAX, ConfigKey, shown
from storage_engine.errors import ConfigError, InvalidTopicNameError
from storage_engine.topic_name import check_topic_name

AVAILABLE_NOW: Final = "available-now"
DEAD_LETTERS: Final = "tables/dead_letters"
"""The directory of the dead-letter tables; no export may write its table there."""


@dataclass(frozen=True, slots=True)
class Noun:
    """What a value is, in words, for messages and documentation. A Noun is part of the Annotated type of a field."""

    words: str


def noun(field: FieldInfo) -> str:
    """What a field's values are, in words."""
    return _noun_in(*field.metadata, field.annotation) or "a section of keys"


def _noun_in(*annotations: object) -> str:
    """The first noun among the annotations. If there is none, the first noun inside one of the annotations."""
    own = next((annotation.words for annotation in annotations if isinstance(annotation, Noun)), "")
    return own or next((words for annotation in annotations if (words := _noun_in_parts(annotation))), "")


def _noun_in_parts(annotation: object) -> str:
    parts = get_args(annotation)
    return _noun_in(*parts) if parts else ""


def mistake(problem: str, remedy: str = "") -> PydanticCustomError:
    """An error that a validator raises and that loading turns into a ConfigError with a place."""
    return PydanticCustomError("mistake", "{problem}", {"problem": problem, "remedy": remedy})


def by_key(declared: ConfigKey) -> BeforeValidator:
    def parse(value: object) -> object:
        try:
            return declared.parse(value, declared.key)
        except ConfigError as error:
            raise mistake(error.problem, error.remedy) from None

    return BeforeValidator(parse)


def _not_empty(value: str) -> str:
    stripped = value.strip()
    if not stripped:
        raise mistake("expected some text; found none", "Remove the key if you do not need it.")
    return stripped


def _topic_name(value: str) -> str:
    try:
        return check_topic_name(value)
    except InvalidTopicNameError as error:
        raise mistake(f"{error.problem}; found {shown(value)}", error.remedy) from None


def _absolute(value: str) -> str:
    """The path as an absolute one, so that Spark and Delta use the same path. A relative path is below the current
    directory. A URI is not changed."""
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", value):
        return value
    try:
        return os.path.abspath(Path(value).expanduser())
    except RuntimeError:
        raise mistake(f"found {shown(value)}, but this user has no home directory", "Write the full path.") from None


def _key_under_root(value: str) -> str:
    """The storage key of a path that is relative to the root and stays inside the root."""
    remedy = "Give a path relative to the root, for example tables/flights."
    if value.startswith(("/", "~")) or re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", value):
        raise mistake(f"expected a path below the root; found the absolute path {shown(value)}", remedy)
    if not value.isprintable():
        raise mistake(f"expected a path of printable characters; found {shown(value)}", remedy)
    parts = [part for part in value.split("/") if part not in ("", ".")]
    if ".." in parts or not parts:
        where = "which contains '..'" if parts else "which is the root itself"
        raise mistake(f"expected a path below the root; found {shown(value)}, {where}", remedy)
    return "/".join(parts)


def _outside(*reserved: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        first = value.split("/", maxsplit=1)[0]
        if first in reserved:
            raise mistake(
                f"{first}/ below the root is reserved for other files; found {shown(value)}",
                "Choose another directory.",
            )
        return value

    return check


def _beside_dead_letters(value: str) -> str:
    if f"{value}/".startswith(f"{DEAD_LETTERS}/") or f"{DEAD_LETTERS}/".startswith(f"{value}/"):
        raise mistake(
            f"{DEAD_LETTERS} is reserved for dead letters; found {shown(value)}", "Give the table another path."
        )
    return value


def _not_in_log(value: str) -> str:
    if "_delta_log" in value.split("/"):
        raise mistake(
            f"_delta_log is the folder of a table's log; found {shown(value)}", "Give the table another path."
        )
    return value


def _trigger(value: str) -> str:
    if value == AVAILABLE_NOW:
        return value
    remedy = f'Write {AVAILABLE_NOW}, or an interval such as "10 seconds" or "1 minute".'
    milliseconds = interval_ms(value)
    if milliseconds is None or milliseconds < 0:
        raise mistake(f"expected a trigger; found {shown(value)}", remedy)
    return value


_MS_PER_UNIT: Final = {
    "microsecond": 0.001,
    "millisecond": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]{0,9})?|\.[0-9]{1,9})"
_INTERVAL = re.compile(rf"(?:interval\s+)?((?:{_NUMBER}\s+[a-z]+(?:\s+|$))+)", re.IGNORECASE)
_LONGEST_MS: Final = LONG_MAX // 1000  # Spark counts in microseconds


def interval_ms(text: str) -> float | None:
    """The length in milliseconds of an interval of Spark's processing-time trigger, or None if Spark would refuse it.

    The units are microseconds to weeks, each with or without a final s, and several intervals are added up. Only seconds
    may have a fraction. Months and years are refused, because they have no fixed length.
    """
    matched = _INTERVAL.fullmatch(text.strip())
    if not matched:
        return None
    total = 0.0
    words = matched[1].lower().split()
    for number, unit in zip(words[::2], words[1::2], strict=True):
        singular = unit.removesuffix("s")
        if singular not in _MS_PER_UNIT or ("." in number and singular != "second"):
            return None
        total += float(number) * _MS_PER_UNIT[singular]
    return total if abs(total) <= _LONGEST_MS else None


def distinct_options(value: dict[str, str]) -> dict[str, str]:
    seen: dict[str, str] = {}
    for name in value:
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise mistake(f"{other} and {name} are the same option, because Spark ignores case", "Keep one of them.")
    return value


def listed(value: object) -> object:
    """The list. A text is split at its commas. As in YAML, brackets can be around the list, and quotes around its items."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].strip()
        if not text:
            return []
    return [word.strip().strip("\"'") for word in text.split(",")]


Text = Annotated[str, Noun("text"), AfterValidator(_not_empty)]
Sql = Annotated[str, Noun("a Spark SQL expression"), AfterValidator(_not_empty)]
TopicName = Annotated[str, Noun("a topic's name"), AfterValidator(_topic_name)]
Location = Annotated[str, Noun("a path or URI"), AfterValidator(_not_empty), AfterValidator(_absolute)]
Trigger = Annotated[str, Noun(f'{AVAILABLE_NOW}, or an interval such as "10 seconds"'), AfterValidator(_trigger)]
Checkpoint = Annotated[
    str,
    Noun("a path below the root"),
    AfterValidator(_key_under_root),
    AfterValidator(_outside("meta", "data", "staging", "log", "tables")),
]
Table = Annotated[
    str,
    Noun("a path below the root"),
    AfterValidator(_key_under_root),
    AfterValidator(_outside("meta", "data", "staging", "log", "checkpoints")),
    AfterValidator(_beside_dead_letters),
    AfterValidator(_not_in_log),
]
