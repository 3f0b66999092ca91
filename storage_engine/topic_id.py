"""Makes the ids of topics: random, as Kafka makes them (org.apache.kafka.common.Uuid)."""

from __future__ import annotations

import base64
import uuid


def new_topic_id() -> str:
    """A random UUID as Kafka writes it: 22 characters of base64url. One that begins with '-' would look like an option
    to command-line tools, so Kafka draws again; so do we."""
    while True:
        topic_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not topic_id.startswith("-"):
            return topic_id
