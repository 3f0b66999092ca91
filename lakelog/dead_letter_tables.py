"""Defines the names of the tables of dead letters.

Each topic has a Delta table for its ingest and a Delta table for its export. pipeline.delta.dead_letters defines their
columns. An export into a database writes its dead letters into a table of the database. To read this table, a program
needs the password of the database. So this table is only named, and not counted.
"""

from __future__ import annotations

from collections.abc import Iterable

from storage_engine.topic.readers.consumer_files import Consumer, database_table

DATABASE_DEAD_LETTERS_SUFFIX = "_dead_letters"
"""In a database, the table of the dead letters has the name of the exported table with this suffix."""
UNKNOWN_TOPIC_DEAD_LETTERS = "tables/dead_letters/unknown_topic"
"""The key of the table with rows for which an ingest of several topics could not determine the topic."""


def ingest_dead_letters_key(topic: str) -> str:
    """The key of the table with the rows that the ingest of `topic` refused."""
    return f"tables/dead_letters/ingest/{topic}"


def export_dead_letters_key(topic: str) -> str:
    """The key of the table with the records that the export of `topic` could not decode."""
    return f"tables/dead_letters/export/{topic}"


def database_dead_letters(consumers: Iterable[Consumer]) -> tuple[str, ...]:
    """The databases and tables with the dead letters of these consumers, as text for people."""
    tables = (database_table(each) for each in consumers)
    return tuple(sorted(f"{table}{DATABASE_DEAD_LETTERS_SUFFIX}" for table in tables if table is not None))
