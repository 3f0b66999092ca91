"""Reads the states of the topics that a caller names."""

from __future__ import annotations

from collections.abc import Iterable

from storage_engine.errors import LogError, TopicError
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.topics import Topics
from storage_engine.topic_name import check_topic_name


def readable_states(topics: Topics, named: Iterable[str] | None) -> tuple[list[TopicState], list[LogError]]:
    """The newest states of topics, and the errors of the topics that cannot be read.

    Args:
        named: the names of the topics; None for all.

    Raises:
        TopicError: a named topic does not exist, or the name is not a valid topic name.
    """
    if named is None:
        states, unreadable = topics.states()
        return states, list(unreadable.values())
    found, errors = [], []
    for name in dict.fromkeys(map(check_topic_name, named)):
        try:
            found.append(topics.state(name))
        except TopicError:
            raise
        except LogError as error:
            errors.append(error)
    return found, errors
