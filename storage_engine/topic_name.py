"""Checks the names of topics by Kafka's rule, from org.apache.kafka.common.internals.Topic.

The name of a topic becomes a part of directory names (`orders-0`) and of storage keys. So each name is checked before a
file is written. Kafka's metrics replace '.' by '_', so topics named `a.b` and `a_b` share their metrics. As in Kafka,
both topics may exist, because their files have different names.
"""

from __future__ import annotations

import re

from storage_engine.errors import InvalidTopicNameError

MAX_LENGTH = 249
"""Kafka's limit. A directory name adds "-", a partition number and perhaps ".deleted", and must be shorter than 255
bytes.
"""

_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]")


def check_topic_name(name: object) -> str:
    """Return the name if Kafka allows it.

    Raises:
        InvalidTopicNameError: the name is no text, is empty, is longer than 249 characters, is "." or "..", or contains an
            illegal character.
    """
    if not isinstance(name, str):
        problem = f"expected a text, found {type(name).__name__}"
        raise InvalidTopicNameError(f"topic {name!r:.60}", problem, "Give the name of a topic.")
    illegal = _ILLEGAL.search(name)
    if not name:
        problem = "a topic's name may not be empty"
    elif name in (".", ".."):
        problem = f"a topic may not be called {name!r}, which is the name of a directory"
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
