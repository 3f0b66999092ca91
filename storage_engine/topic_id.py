"""Makes topic ids: random UUIDs, as Kafka makes them (org.apache.kafka.common.Uuid)."""

from __future__ import annotations

import base64
import uuid


def new_topic_id() -> str:
    """Return a random UUID in Kafka's notation: 22 characters of base64url.

    The id never begins with '-', because command-line tools would read it as an option. Kafka has the same rule.
    """
    while True:
        topic_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not topic_id.startswith("-"):
            return topic_id
