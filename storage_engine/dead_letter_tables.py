"""Where dead letters lie: one Delta table per topic and kind, below the root. pipeline.dead_letters has the columns."""

from __future__ import annotations

UNKNOWN_TOPIC_DEAD_LETTERS = "tables/dead_letters/unknown_topic"
"""Where the table of rows lies that an ingest of several topics could not tell the topic of."""


def ingest_dead_letters_key(topic: str) -> str:
    """Where the table of rows refused by the ingest of `topic` lies, below the root."""
    return f"tables/dead_letters/ingest/{topic}"


def export_dead_letters_key(topic: str) -> str:
    """Where the table of records that the export of `topic` could not decode lies, below the root."""
    return f"tables/dead_letters/export/{topic}"
