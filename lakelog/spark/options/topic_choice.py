"""Finds the topics and partitions of a read, from one of the options subscribe, subscribePattern and assign."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from lakelog.spark.options.bounds import assigned_partitions
from lakelog.spark.options.partition_json import Where
from lakelog.spark.options.user_options import UserOptions, without_spaces, wrong
from storage_engine.config import shown

_CHOICES = ("subscribe", "subscribePattern", "assign")
_INTERNAL = ("__consumer_offsets", "__transaction_state")
"""A broker's internal topics, which no pattern matches. A root can contain them after an import."""
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)
_JAVA_CLASSES = {
    "Lower": "a-z", "Upper": "A-Z", "Alpha": "a-zA-Z", "Digit": "0-9", "Alnum": "a-zA-Z0-9", "Punct": "._-",
    "L": "a-zA-Z", "Lu": "A-Z", "Ll": "a-z", "N": "0-9", "Nd": "0-9", "IsAlphabetic": "a-zA-Z", "IsDigit": "0-9",
}  # fmt: skip
"""Java's named character classes, limited to the characters that a topic's name may contain."""
_JAVA_CLASS = re.compile(r"\\p(?:\{(\w+)\}|(\w))")


@dataclass(frozen=True)
class Subscribed:
    """Topics by name. Each topic must exist."""

    topics: tuple[str, ...]

    def may_read(self, topic: str) -> bool:
        return topic in self.topics


@dataclass(frozen=True)
class SubscribedPattern:
    """The topics whose names contain a match of a pattern, at the time of each look-up."""

    pattern: str

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return _compiled(self.pattern)

    def may_read(self, topic: str) -> bool:
        return topic not in _INTERNAL and self._regex.search(topic) is not None


@dataclass(frozen=True)
class Assigned:
    """Partitions by number. Their topics must exist; a partition that does not exist is skipped."""

    partitions: frozenset[Where]

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({topic for topic, _ in self.partitions}))

    def may_read(self, topic: str) -> bool:
        return topic in self.topics


TopicChoice = Subscribed | SubscribedPattern | Assigned


def topic_choice(given: UserOptions) -> TopicChoice:
    """
    Raises:
        ConfigError: none or several of the three options are given, or the given option names nothing.
    """
    named = [name for name in _CHOICES if given.get(name) is not None]
    if len(named) != 1:
        found = f"{' and '.join(named)} are given" if named else "none is given, so the topics to read are unknown"
        raise wrong(" or ".join(_CHOICES), found, f"Give exactly one of {', '.join(_CHOICES)}.")
    text = given.get(named[0]) or ""
    if named[0] == "assign":
        return Assigned(assigned_partitions(text))
    if named[0] == "subscribe":
        topics = tuple(sorted({name for part in text.split(",") if (name := without_spaces(part))}))
        if not topics:
            raise wrong("subscribe", f"found {shown(text)}, which names no topic", "Name a topic.")
        return Subscribed(topics)
    if not without_spaces(text):
        raise wrong("subscribePattern", f"found {shown(text)}, an empty pattern", "Give a regular expression.")
    choice = SubscribedPattern(without_spaces(text))
    choice.may_read("")  # compiles the pattern
    return choice


def _compiled(pattern: str) -> re.Pattern[str]:
    """A regular expression of Java, translated for Python. Only syntax that can matter for a topic's name is translated.

    Raises:
        ConfigError: the pattern is not a regular expression, or uses a feature that Python's expressions do not have.
    """
    unquoted = _QUOTED.sub(lambda quoted: re.escape(quoted[1]), pattern)
    try:
        return re.compile(_in_python(re.sub(r"\(\?<(?=[a-zA-Z])", "(?P<", unquoted)))
    except re.error as error:
        raise wrong("subscribePattern", f"found {shown(pattern)}: {error}", "Correct the pattern.") from None


def _in_python(pattern: str) -> str:
    """The pattern, in which each of Java's named classes is replaced by its characters, inside and outside brackets.

    Raises:
        re.error: a character class of the pattern contains another character class, or an intersection of classes.
    """
    parts, in_class, at = [], False, 0
    while at < len(pattern):
        found = _JAVA_CLASS.match(pattern, at)
        if found is not None and (letters := _JAVA_CLASSES.get(found[1] or found[2])) is not None:
            parts.append(letters if in_class else f"[{letters}]")
            at = found.end()
            continue
        if in_class and pattern.startswith(("[", "&&"), at):
            raise re.error("a character class within a character class is not supported")
        step = 2 if pattern[at] == "\\" else 1
        if step == 1 and pattern[at] in "[]":
            in_class = pattern[at] == "["
        parts.append(r"\Z" if pattern.startswith(r"\z", at) else pattern[at : at + step])
        at += step
    return "".join(parts)
