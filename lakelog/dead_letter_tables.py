"""Defines the keys (paths below the root) of the Delta tables of dead letters. Each topic has a table for its ingest
and a table for its export. pipeline.delta.dead_letters defines their columns.
"""

from __future__ import annotations

UNKNOWN_TOPIC_DEAD_LETTERS = "tables/dead_letters/unknown_topic"
"""The key of the table with rows for which an ingest of several topics could not determine the topic."""


def ingest_dead_letters_key(topic: str) -> str:
    """The key of the table with the rows that the ingest of `topic` refused."""
    return f"tables/dead_letters/ingest/{topic}"


def export_dead_letters_key(topic: str) -> str:
    """The key of the table with the records that the export of `topic` could not decode."""
    return f"tables/dead_letters/export/{topic}"
