"""Checks the names of topics by Kafka's rule, from org.apache.kafka.common.internals.Topic.

A name becomes a directory (`orders-0`) and a storage key, so a name that Kafka refuses is refused here before a file is
written. Kafka's metrics turn '.' into '_': topics named `a.b` and `a_b` collide there. That is a matter of metrics
only: both may exist, here as in Kafka, and nothing on storage mixes them up.
"""

from __future__ import annotations

import re

from storage_engine.errors import InvalidTopicNameError

MAX_LENGTH = 249
"""Kafka's limit: with "-", a partition number and a suffix such as ".deleted" the directory stays below 255 bytes."""

_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]")


def check_topic_name(name: str) -> str:
    """Return the name if Kafka allows it.

    Raises:
        InvalidTopicNameError: it is empty, longer than 249 characters, "." or "..", or holds an illegal character.
    """
    illegal = _ILLEGAL.search(name)
    if not name:
        problem = "a topic's name may not be empty"
    elif name in (".", ".."):
        problem = f"a topic may not be called {name!r}, which means a directory"
    elif len(name) > MAX_LENGTH:
        problem = f"a topic's name has at most {MAX_LENGTH} characters, found {len(name)}"
    elif illegal:
        problem = f"{illegal[0]!r} at position {illegal.start()} is not allowed in a topic's name"
    else:
        return name
    shown = name if len(name) <= 60 else f"{name[:60]}..."
    raise InvalidTopicNameError(f"topic {shown!r}", problem, "Use letters, digits, '.', '_' and '-'.")


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows the name."""
    try:
        check_topic_name(name)
    except InvalidTopicNameError:
        return False
    return True
