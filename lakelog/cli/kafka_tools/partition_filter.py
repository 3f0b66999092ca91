"""Chooses topics and partitions as kafka-get-offsets does, by names that are regular expressions.

A list of topics is one regular expression: a comma means `or`, and the whole name must match. A rule of --topic-partitions
is TOPICS, TOPICS:PARTITIONS or :PARTITIONS. PARTITIONS is a number, FROM-TO (TO excluded), FROM- or -TO.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from storage_engine.errors import UnknownTopicError, UsageError

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
"""The topics in which Kafka stores data of its own."""
_RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|([0-9]*)-([0-9]*)))?")
_QUOTES = "\"'"
_SPECIAL = re.compile(r"[\[\](){}*+?|^$\\,\"']")


def is_plain(text: str) -> bool:
    """Whether a text can be the name of one topic: except for dots, it has no character that is special in an expression."""
    return not _SPECIAL.search(text)


def topic_pattern(text: str, option: str) -> re.Pattern[str]:
    """The expression that the whole name of a topic must match.

    Args:
        option: the option with this text, for errors.

    Raises:
        UsageError: the text is not a regular expression.
    """
    alternatives = text.strip().replace(",", "|").replace(" ", "").strip(_QUOTES)
    try:
        return re.compile(alternatives)
    except re.error as error:
        raise UsageError(option, f"{text!r} is not a regular expression: {error}") from None


@dataclass(frozen=True)
class PartitionFilter:
    """Which partitions are wanted.

    rules: for each rule, the expression for topics and a test of the partition's number. One rule must fit.
    without_internal: leave out the topics of Kafka itself.
    """

    rules: tuple[tuple[re.Pattern[str], Callable[[int], bool]], ...]
    without_internal: bool

    def is_topic_wanted(self, topic: str) -> bool:
        """Whether partitions of this topic can be wanted."""
        if self.without_internal and topic in INTERNAL_TOPICS:
            return False
        return any(pattern.fullmatch(topic) for pattern, _ in self.rules)

    def chosen(self, partitions: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """The wanted partitions, sorted by `topic-partition` as text, as in Kafka's tool.

        Raises:
            UnknownTopicError: no partition is wanted.
        """
        found = [
            (topic, number)
            for topic, number in partitions
            if self.is_topic_wanted(topic)
            and any(pattern.fullmatch(topic) and has(number) for pattern, has in self.rules)
        ]
        if not found:
            raise UnknownTopicError(
                "lakelog offsets", "there is no such partition",
                "Name topics and partitions that exist. A regular expression must match the whole name of a topic.",
            )  # fmt: skip
        return sorted(found, key=lambda each: f"{each[0]}-{each[1]}")


def partition_filter(
    topic: str | None, partitions: str | None, rules: str | None, *, without_internal: bool
) -> PartitionFilter:
    """The filter of the options --topic, --partitions, --topic-partitions and --exclude-internal-topics.

    Raises:
        UsageError: the options contradict one another, or an option is malformed.
    """
    if rules is not None:
        if topic is not None or partitions is not None:
            raise UsageError(
                "--topic-partitions", "--topic, --partition or --partitions is given, too", "Give only one."
            )
        return PartitionFilter(tuple(map(_rule, rules.split(","))), without_internal)
    pattern = topic_pattern(".*" if topic is None else topic, "--topic")
    if not partitions:
        return PartitionFilter(((pattern, lambda _: True),), without_internal)
    try:
        numbers = frozenset(int(each) for each in partitions.split(","))
    except ValueError:
        raise UsageError("--partitions", f"expected numbers, separated by commas; found {partitions!r}") from None
    return PartitionFilter(((pattern, numbers.__contains__),), without_internal)


def _rule(text: str) -> tuple[re.Pattern[str], Callable[[int], bool]]:
    found = _RULE.fullmatch(text)
    if found is None:
        raise UsageError(
            "--topic-partitions", f"found the rule {text!r}", "A rule is TOPICS, TOPICS:PARTITIONS or :PARTITIONS."
        )
    pattern = topic_pattern(found[1] or ".*", "--topic-partitions")
    if found[2]:
        only = int(found[2])
        return pattern, lambda number: number == only
    low, high = int(found[3] or 0), int(found[4]) if found[4] else None
    return pattern, lambda number: low <= number and (high is None or number < high)
