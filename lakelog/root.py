"""A root, as Python programs use it. `lakelog.open` returns a Root."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lakelog.opening import open_topics
from lakelog.topic import Topic, warn
from storage_engine.topic.kafka.view import settle_committed
from storage_engine.topic.readers.group_positions import GroupPosition
from storage_engine.topic.topics import Topics


class Root:
    """The topics under one root. Several threads and several processes may use the same root at the same time."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @property
    def uri(self) -> str:
        """The path or URI of the root."""
        return self._topics.storage.uri

    def topics(self) -> list[str]:
        """The names of all topics, in order.

        Raises:
            CorruptionError: a topic's state is damaged.
        """
        return list(self._topics.names())

    def topic(self, name: str) -> Topic:
        """A topic.

        Raises:
            UnknownTopicError: there is no topic of this name.
            InvalidTopicNameError: no topic may have this name.
        """
        return Topic(self._topics, self._topics.state(name))

    def groups(self, *, unread: bool = False) -> list[GroupPosition]:
        """Where the groups of all topics are; as Topic.groups, topic by topic."""
        return [found for name in self.topics() for found in self.topic(name).groups(unread=unread)]

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None) -> Topic:
        """Create a topic.

        Args:
            config: Kafka's keys, such as {"cleanup.policy": "compact", "retention.ms": 604_800_000}. All keys are in
                docs/CONFIGURATION.md.

        Raises:
            TopicExistsError: there is a topic of this name.
            ConfigError, InvalidTopicNameError: a setting or the name is not allowed.
        """
        state = self._topics.create(name, partitions, config or {})
        settle_committed(self._topics, (name,), warn)
        return Topic(self._topics, state)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Its records can no longer be read; its files are deleted after file.delete.delay.ms.

        Raises:
            UnknownTopicError: there is no topic of this name.
        """
        self._topics.state(name)
        self._topics.delete(name)
        settle_committed(self._topics, (name,), warn)

    def __repr__(self) -> str:
        return f"lakelog.open({self.uri!r})"


def open_root(root: str | os.PathLike[str], *, create: bool = False) -> Root:
    """Open a root.

    Args:
        root: a directory, as a path or a file: URI.
        create: the directory may be missing, or contain other files. The first topic makes it a root.

    Raises:
        NoRootError: there is no root, and create is false. An empty directory counts as a root.
        UsageError: the path is not a directory of this host.
        CorruptionError: the root's stored settings are damaged.
    """
    return Root(open_topics(os.fspath(root), None, warn, creates=create, makes_topics=True))
