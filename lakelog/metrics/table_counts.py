"""Counts the dead letters and the stale rows of a topic, in the Delta tables that ingests and exports fill.

To count, this module reads columns of these tables. So it counts only if the operator asks for the counts, and not at
every look.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lakelog.metrics.figures import TopicFigures
from lakelog.report.dead_letter_counts import DeadLetterKind, DeadLetters, count_dead_letters
from lakelog.report.exported_tables import StaleRows, count_stale_rows
from storage_engine.errors import LogError
from storage_engine.storage import Storage
from storage_engine.topic.readers.consumer_files import Consumer, exported_table

Counts = tuple[tuple[DeadLetters, ...] | None, tuple[StaleRows, ...] | None]
"""Dead letters and stale rows; None for a count that could not be made."""


def count_tables(storage: Storage, topic: str, consumers: Iterable[Consumer]) -> tuple[Counts, list[LogError]]:
    """The counts of a topic, and an error for each table that cannot be read."""
    errors: list[LogError] = []
    letters: list[DeadLetters] | None = []
    for kind in DeadLetterKind:
        try:
            found = count_dead_letters(storage, topic, kind)
        except LogError as error:
            errors.append(error)
            letters = None
        else:
            letters = letters if letters is None else [*letters, *found]
    consumers = list(consumers)
    tables = {table for each in consumers if (table := exported_table(each)) is not None}
    try:
        stale = {each.table: each for each in count_stale_rows(storage, consumers)}
    except LogError as error:
        errors.append(error)
        return (None if letters is None else tuple(letters), None), errors
    rows = tuple(stale.get(table, StaleRows(table, 0)) for table in sorted(tables))
    return (None if letters is None else tuple(letters), rows), errors


def with_counts(figures: TopicFigures, counts: Counts) -> TopicFigures:
    """The figures with these counts."""
    return replace(figures, dead_letters=counts[0], stale_rows=counts[1])
