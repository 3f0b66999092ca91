"""The row with the position of an exported table, in the table `lakelog_positions` of the same schema.

    target        name of the exported table; the primary key
    topic         name of the topic
    topic_id      id of the topic
    version       number of commits of exports, from 0 on: the guard
    stamp         the stamp (`pipeline.delta.table_stamp`), as JSON, with the position of each partition
    committed_at  when the row was written, in UTC

The row changes in the same transaction as the table. This transaction first locks the row and compares it with the row
that the run read at its start. Two runs that read the same row cannot both commit: the second run waits for the lock,
and then finds a changed row.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.delta.table_stamp import Stamp, TableHead
from pipeline.jdbc.database import AGAIN, Database, DuplicateKeyError
from pipeline.jdbc.target_tables import create_if_missing
from storage_engine.errors import ConflictError

POSITIONS = "lakelog_positions"


@dataclass(frozen=True)
class Position:
    """The row of a table."""

    version: int
    stamp: Stamp

    @property
    def head(self) -> TableHead:
        """The position in the form in which an export is planned."""
        return TableHead(
            version=self.version,
            current=self.stamp,
            newest=self.stamp,
            next_guard=self.version + 1,
            table_id=self.stamp.table_id,
        )


def create_positions(database: Database) -> None:
    create_if_missing(
        database,
        POSITIONS,
        f"target {database.name_type} NOT NULL PRIMARY KEY, topic {database.text_type} NOT NULL,"
        f" topic_id {database.text_type} NOT NULL, version bigint NOT NULL, stamp {database.text_type} NOT NULL,"
        f" committed_at {database.moment_type} NOT NULL",
    )


def read_position(database: Database, *, lock: bool = False) -> Position | None:
    """The position of the target; None if there is none.

    Raises:
        NewerTableError: a newer Lakelog wrote the position.
    """
    if database.columns(POSITIONS) is None:
        return None
    found = database.rows(
        f"SELECT version, stamp FROM {database.table(POSITIONS)} WHERE target ="
        f" {database.literal(database.target.table)}{' FOR UPDATE' if lock else ''}"
    )
    if not found:
        return None
    version, text = found[0]
    try:
        stamp = Stamp.from_json(text)
    except (AttributeError, KeyError, TypeError, ValueError):
        stamp = None
    if stamp is None:
        raise ConflictError(
            str(database.target), f"another program changed its row in {POSITIONS}", "Restore the column stamp."
        )
    return Position(version, stamp)


def take_position(database: Database, before: Position | None, stamp: Stamp) -> None:
    """Lock the row, check that it is still the row `before`, and write the new position. Call this first in the
    transaction that changes the table.

    Raises:
        ConflictError: another run has committed since the run was planned.
    """
    target, table = database.literal(database.target.table), database.table(POSITIONS)
    values = (
        database.literal(stamp.topic), database.literal(stamp.topic_id), str(stamp.version),
        database.literal(stamp.to_json()), "CURRENT_TIMESTAMP(6)",
    )  # fmt: skip
    if before is None:
        # If two runs are the first at the same time, the primary key lets only one of them insert the row.
        try:
            database.run(
                f"INSERT INTO {table} (target, topic, topic_id, version, stamp, committed_at) VALUES"
                f" ({target}, {', '.join(values)})"
            )
        except DuplicateKeyError:
            raise ConflictError(str(database.target), "another run wrote the first position", AGAIN) from None
        return
    found = read_position(database, lock=True)
    if found is None or (found.version, found.stamp.id) != (before.version, before.stamp.id):
        now = "is gone" if found is None else f"has the version {found.version}"
        raise ConflictError(
            str(database.target),
            f"this run began at version {before.version} of the position, but another run has committed: the position"
            f" now {now}",
            AGAIN,
        )
    names = ("topic", "topic_id", "version", "stamp", "committed_at")
    changes = ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
    database.run(f"UPDATE {table} SET {changes} WHERE target = {target}")
