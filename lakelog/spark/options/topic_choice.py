"""Finds the topics and partitions of a read, from one of the options subscribe, subscribePattern and assign."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from lakelog.spark.options.bounds import assigned_partitions
from lakelog.spark.options.partition_json import Where
from lakelog.spark.options.patterns import in_python
from lakelog.spark.options.user_options import UserOptions, without_spaces, wrong
from storage_engine.config import shown

_CHOICES = ("subscribe", "subscribePattern", "assign")
_INTERNAL = ("__consumer_offsets", "__transaction_state")
"""A broker's internal topics, which no pattern matches. A root can contain them after an import."""


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
    """A regular expression of Java, as Python's.

    Raises:
        ConfigError: the pattern is not a regular expression, or contains something that is not translated.
    """
    try:
        return re.compile(in_python(pattern))
    except re.error as error:
        raise wrong(
            "subscribePattern", f"found {shown(pattern)}: {error}",
            "Correct the pattern. docs/SOURCES.md lists what is not supported.",
        ) from None  # fmt: skip
