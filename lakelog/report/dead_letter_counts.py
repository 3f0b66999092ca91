"""Counts dead letters by reason, and lists the newest ones, from the Delta tables that ingest and export fill.

Only the needed columns are read, batch by batch. No key, value or header of a dead letter is ever loaded. deltalake is
imported only if a table exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from lakelog.dead_letter_tables import (
    UNKNOWN_TOPIC_DEAD_LETTERS,
    export_dead_letters_key,
    ingest_dead_letters_key,
)
from lakelog.delta_options import delta_options, shown_error
from lakelog.optional import optional
from storage_engine.errors import StorageError
from storage_engine.storage import Storage


class DeadLetterKind(StrEnum):
    """The job in which a record became a dead letter."""

    INGEST = "ingest"
    EXPORT = "export"


@dataclass(frozen=True)
class DeadLetters:
    """Dead letters of one reason and origin.

    kind: the job that refused them.
    origin: for an ingest the id of the streaming query, for an export the partition.
    first, last: for an ingest ids of micro-batches, for an export offsets.
    outcome: for an export, the result of a replay; empty while the dead letters are open.
    """

    kind: DeadLetterKind
    reason: str
    origin: str
    count: int
    first: int
    last: int
    outcome: str = ""

    @property
    def asks_for_attention(self) -> bool:
        """Whether an exported table may lack a row because of these dead letters. A tombstone never makes a row."""
        return self.kind is DeadLetterKind.EXPORT and not self.outcome and self.reason != "no value"


@dataclass(frozen=True)
class DeadLetter:
    """One dead letter, without its key, value and headers.

    detail: the exact error, without data of the record.
    origin: as in DeadLetters.
    place: for an ingest the id of the micro-batch, for an export the offset.
    timestamp_ms: the timestamp of the record in milliseconds since 1970; None for an ingest, or if there is none.
    outcome: as in DeadLetters.
    """

    reason: str
    detail: str
    origin: str
    place: int
    timestamp_ms: int | None
    outcome: str


_COLUMNS = {
    DeadLetterKind.INGEST: ("reason", "query_id", "batch_id"),
    DeadLetterKind.EXPORT: ("reason", "partition", "offset"),
}
_OUTCOME = "outcome"
_KEYS = {DeadLetterKind.INGEST: ingest_dead_letters_key, DeadLetterKind.EXPORT: export_dead_letters_key}


def count_dead_letters(storage: Storage, topic: str, kind: DeadLetterKind) -> tuple[DeadLetters, ...]:
    """The dead letters of a topic, the most frequent first; nothing if there is no table.

    Raises:
        StorageError: the path of the table exists, but is not a table of dead letters.
    """
    return _counted(storage, _KEYS[kind](topic), kind)


def count_dead_letters_of_no_topic(storage: Storage) -> tuple[DeadLetters, ...]:
    """Like count_dead_letters, for rows whose topic an ingest of several topics could not determine."""
    return _counted(storage, UNKNOWN_TOPIC_DEAD_LETTERS, DeadLetterKind.INGEST)


def newest_dead_letters(storage: Storage, topic: str, kind: DeadLetterKind, most: int) -> list[DeadLetter]:
    """The newest dead letters of a topic: those with the largest offsets or micro-batches, the largest first.

    Args:
        most: the largest number of dead letters.

    Raises:
        StorageError: the path of the table exists, but is not a table of dead letters.
    """
    key, columns = _KEYS[kind](topic), _COLUMNS[kind]
    if not _has_table(storage, key):
        return []
    path = f"{storage.uri}/{key}"
    newest: pa.Table | None = None
    with _table_errors(path, columns):
        for batch in _batches(path, columns, {_OUTCOME, "detail", "timestamp"}):
            rows = pa.Table.from_batches([batch])
            rows = rows if newest is None else pa.concat_tables([newest, rows])
            newest = rows.sort_by([(columns[2], "descending")]).slice(0, most)
    return [] if newest is None else [_dead_letter(row, columns) for row in newest.to_pylist()]


def _dead_letter(row: Mapping[str, Any], columns: tuple[str, str, str]) -> DeadLetter:
    time = row.get("timestamp")
    return DeadLetter(
        row["reason"], row.get("detail") or "", str(row[columns[1]]), row[columns[2]],
        None if time is None else round(time.timestamp() * 1000), row.get(_OUTCOME) or "",
    )  # fmt: skip


def _has_table(storage: Storage, key: str) -> bool:
    return next(storage.list(f"{key}/_delta_log/"), None) is not None


def _batches(path: str, columns: Sequence[str], further: Set[str]) -> Iterator[pa.RecordBatch]:
    """These columns of a table, and the further columns if the table has them."""
    with optional("deltalake", "lakelog[delta]", "The report on dead letters"):
        from deltalake import DeltaTable

    rows = DeltaTable(path, storage_options=delta_options(path)).to_pyarrow_dataset()
    yield from rows.to_batches(columns=[*columns, *sorted(further & set(rows.schema.names))])


@contextmanager
def _table_errors(path: str, columns: Sequence[str]) -> Iterator[None]:
    with optional("deltalake", "lakelog[delta]", "The report on dead letters"):
        from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, pa.ArrowException, OSError) as error:
        problem = f"expected a Delta table with {', '.join(columns)}; found {shown_error(path, error)}"
        raise StorageError(
            path, problem, "Restore the table. Or move it away: the next job then creates a new table."
        ) from error


def _counted(storage: Storage, key: str, kind: DeadLetterKind) -> tuple[DeadLetters, ...]:
    if not _has_table(storage, key):
        return ()
    path, columns = f"{storage.uri}/{key}", _COLUMNS[kind]
    with _table_errors(path, columns):
        batches = _batches(path, columns, {_OUTCOME})
        counted = [_count(pa.Table.from_batches([batch]), columns) for batch in batches if batch.num_rows]
    if not counted:
        return ()
    totals = pa.concat_tables(counted).group_by(["reason", "origin", "outcome"])
    totals = totals.aggregate([("count", "sum"), ("first", "min"), ("last", "max")])
    found = [
        DeadLetters(
            kind, row["reason"], str(row["origin"]), row["count_sum"], row["first_min"], row["last_max"], row["outcome"]
        )
        for row in totals.to_pylist()
    ]
    return tuple(sorted(found, key=lambda each: (-each.count, each.reason, each.origin, each.outcome)))


def _count(rows: pa.Table, columns: tuple[str, str, str]) -> pa.Table:
    """Count the rows of one batch by reason, origin and outcome. The result has the columns reason, origin, outcome,
    count, first and last."""
    place = columns[2]
    if _OUTCOME in rows.column_names:
        outcome = rows[_OUTCOME].cast(pa.string()).fill_null("")  # a column without any value can have the type null
    else:
        outcome = pa.array([""] * rows.num_rows, pa.string())
    rows = rows.select(columns).append_column(_OUTCOME, outcome)
    keys = [*columns[:2], _OUTCOME]
    counted = rows.group_by(keys).aggregate([(place, "count"), (place, "min"), (place, "max")])
    counted = counted.select([*keys, f"{place}_count", f"{place}_min", f"{place}_max"])
    return counted.rename_columns(["reason", "origin", "outcome", "count", "first", "last"])
