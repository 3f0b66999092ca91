"""A root, as Python programs use it. `lakelog.open` returns a Root."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from lakelog.opening import open_topics
from lakelog.topic import Topic, warn
from lakelog.transaction import Transaction
from storage_engine.arguments import boolean, refused, whole_number
from storage_engine.errors import ConfigError, UnknownTopicError
from storage_engine.quantities import milliseconds_of
from storage_engine.topic.kafka.view import settle_committed
from storage_engine.topic.readers.group_positions import GroupPosition
from storage_engine.topic.topics import Topics

if TYPE_CHECKING:
    from lakelog.inspection.describing import TopicDescription
    from lakelog.inspection.verifying import Verification
    from storage_engine.topic.clean.cleaning_plan import Plan


class Root:
    """The topics under one root. Several threads and several processes may use the same root at the same time."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @property
    def uri(self) -> str:
        """The path or URI of the root."""
        return self._topics.storage.uri

    def topics(self) -> list[str]:
        """The names of all topics, in the order of the names with a `/` at the end: `p.q` comes before `p`.

        Raises:
            CorruptionError: a topic's state is damaged.
        """
        return list(self._topics.names())

    def topic(self, name: str) -> Topic:
        """A topic.

        Args:
            name: the name of the topic.

        Raises:
            CorruptionError: the topic's state is damaged.
            UnknownTopicError: there is no topic of this name.
            InvalidTopicNameError: the name is not allowed for a topic.
        """
        return Topic(self._topics, self._topics.state(name))

    def groups(self, *, unread: bool = False) -> list[GroupPosition]:
        """The positions of the groups of all topics, one topic after another. Topic.groups returns the positions for
        one topic.

        Args:
            unread: also return the number, the size in bytes and the age of the unread records, as in Topic.groups.

        Raises:
            ConfigError: `unread` is no boolean.
            CorruptionError: a topic's state, the file of a group, or a part of the log is damaged.
        """
        boolean("unread", unread)
        found: list[GroupPosition] = []
        for name in self.topics():
            with suppress(UnknownTopicError):  # another process has deleted the topic
                found += self.topic(name).groups(unread=unread)
        return found

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None) -> Topic:
        """Create a topic.

        Args:
            name: 1 to 249 letters, digits, dots, underscores and hyphens.
            partitions: the number of partitions.
            config: Kafka's keys, such as {"cleanup.policy": "compact", "retention.ms": 604_800_000}. All keys are in
                docs/CONFIGURATION.md.

        Raises:
            TopicExistsError: there is a topic of this name.
            ConfigError, InvalidTopicNameError: the number of partitions, a setting or the name is not allowed.
        """
        count = whole_number("partitions", partitions, "Give the number of partitions.")
        if not isinstance(config, Mapping | None):
            raise refused("config", "expected a dict", config, "Give Kafka's keys and their values.")
        for key in config or ():
            if not isinstance(key, str):
                raise refused("config", "expected a text as each key", key, "Give Kafka's keys and their values.")
        state = self._topics.create(name, count, config or {})
        settle_committed(self._topics, (name,), warn)
        return Topic(self._topics, state)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. No new read can begin. The topic's files are deleted after file.delete.delay.ms. Until then, a
        read that has begun can end.

        Args:
            name: the name of the topic.

        Raises:
            UnknownTopicError: there is no topic of this name.
        """
        self._topics.state(name)
        self._topics.delete(name)
        settle_committed(self._topics, (name,), warn)

    def transaction(self, *, timeout_seconds: float = 900) -> Transaction:
        """Begin a transaction. The transaction can append to any number of topics. All its appends become visible
        together at the end of a `with` block.

        Args:
            timeout_seconds: if the transaction is still open after this time, other processes may abort it. The time is
                counted from the first append.

        Raises:
            ConfigError: timeout_seconds is not a positive number.
        """
        return Transaction(self._topics, timeout_seconds)

    def describe(self, *topics: str) -> list[TopicDescription]:
        """The partitions, segments, writer and settings of topics, as `lakelog topics describe` shows them.

        Args:
            topics: the names of the topics; by default all.

        Raises:
            UnknownTopicError: one of the topics does not exist.
            InvalidTopicNameError: a name is not allowed for a topic.
            CorruptionError: a topic's state is damaged.
        """
        from lakelog.inspection import describing, states

        found, errors = states.readable_states(self._topics, topics or None)
        for error in errors:
            raise error
        return [describing.describe(self._topics, state) for state in found]

    def plan(self, *topics: str, at: datetime | None = None, force: bool = False) -> Plan:
        """The plan for retention, compaction and merging: what they would do to each segment, and why. `lakelog plan`
        shows the same plan. A plan changes nothing.

        Args:
            topics: the names of the topics; by default all.
            at: decide as if this were the current time. The time must have a time zone. By default now.
            force: plan to compact every partition that can be compacted, even if its compaction is not due.

        Raises:
            UnknownTopicError: one of the topics does not exist.
            InvalidTopicNameError: a name is not allowed for a topic.
            ConfigError: `at` is no datetime with a time zone, or is before 1970; another argument has a wrong type; or a
                topic's settings are wrong.
            CorruptionError: a topic's state is damaged, or a segment that the plan had to read is damaged.
        """
        from lakelog.inspection import planning

        boolean("force", force)
        if not isinstance(at, datetime | None):
            raise refused("at", "expected a datetime", at, "Give a datetime with a time zone.")
        if at is not None and at.utcoffset() is None:
            raise ConfigError("at", "found a time without a time zone", "Add a time zone, such as timezone.utc.")
        now_ms = None if at is None else milliseconds_of(at)
        if now_ms is not None and now_ms < 0:
            raise ConfigError("at", f"found {at}", "Give a time from 1970 on.")
        planned, errors = planning.make_plan(self._topics, topics or None, now_ms, force=force)
        for error in errors:
            raise error
        return planned

    def verify(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        deep: bool = False,
        repair: bool = False,
        threads: int | None = None,
    ) -> Verification:
        """Read the files of the root and check every invariant, as `lakelog verify` does. Damage is returned as a
        finding, and does not raise an error.

        Args:
            topic, partition: only this topic, and only this partition; by default all.
            deep: also decompress and decode every record.
            repair: restore damaged files if other files show the correct content.
            threads: how many partitions to check at the same time; by default one per core.

        Raises:
            UnknownTopicError: there is no such topic or partition.
            InvalidTopicNameError: the name is not allowed for a topic.
            ConfigError: an argument has a wrong type, or threads is below 1.
            StorageError: the repair could not write a file.
        """
        from lakelog.inspection import verifying
        from storage_engine.verify.segment_check import Options

        boolean("deep", deep)
        boolean("repair", repair)
        if partition is not None:
            partition = whole_number("partition", partition, "Give the number of a partition.")
        if threads is not None and whole_number("threads", threads, "Give 1 or more.") < 1:
            raise ConfigError("threads", f"found {threads}", "Give 1 or more.")
        scope = verifying.Scope(topic, partition, threads, repair)
        return verifying.verify_root(self._topics, scope, Options(deep=deep))

    def __repr__(self) -> str:
        return f"lakelog.open({self.uri!r})"


def open_root(root: str | os.PathLike[str], *, create: bool = False) -> Root:
    """Open a root.

    Args:
        root: the path of a directory, a file: URI, or the URI of an object store or of HDFS (docs/STORAGE.md).
        create: if true, `open` also accepts a directory that does not exist, or that contains other files. The
            directory becomes a root when its first topic is created.

    Raises:
        NoRootError: there is no root, and create is false. An empty directory counts as a root.
        ConfigError: `root` is no string and no path, or `create` is no boolean.
        UsageError: the path or the URI cannot be used as a root.
        CorruptionError: the root's stored settings are damaged.
    """
    return Root(open_topics(root_path(root), None, warn, creates=boolean("create", create), makes_topics=True))


def root_path(root: str | os.PathLike[str]) -> str:
    """The argument `root` as a path or a URI.

    Raises:
        ConfigError: the argument is no string and no path.
    """
    path = os.fspath(root) if isinstance(root, os.PathLike) else root
    if not isinstance(path, str):
        raise refused("root", "expected a path or a URI", path, "Give the path or the URI of the root.")
    return path
