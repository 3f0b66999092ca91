"""The tables that an export creates or checks: the target, and the table of its dead letters.

An export uses an existing table only if the table is empty, or if a position says that this export filled it. Each
column of the model must have a type that stores each value unchanged. A missing column is added. A column that is no
longer in the model becomes null in later rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from pipeline.delta.export_plan import Export
from pipeline.delta.rows.row_columns import COORDINATES
from pipeline.jdbc.database import ColumnTypeError, Database, DatabaseFailedError, NotExportedTableError
from pipeline.jdbc.staging import fields_of
from pipeline.settings.jdbc_settings import DatabaseTarget
from storage_engine.errors import ConflictError

STALE_COLUMNS = pa.schema(
    [
        ("_stale_since", COORDINATES.field("_timestamp").type),
        ("_stale_partition", pa.int32()),
        ("_stale_offset", pa.int64()),
    ]
)
"""The place of the first newer record of the key that could not be decoded or stored. Null: the row is current."""


def letters_table(target: DatabaseTarget) -> str:
    return f"{target.table}_dead_letters"


def wanted_columns(export: Export) -> pa.Schema:
    return pa.schema([*fields_of(export), *COORDINATES, *STALE_COLUMNS])


def check_target(database: Database, export: Export, *, has_position: bool) -> None:
    """Check that the target can be the table of this export, before anything is written.

    Raises:
        NotExportedTableError: the table has rows but no position, or there is a position but no table, or the table has
            a unique index that is not of _key.
        ColumnTypeError: a column cannot store the values of the model.
    """
    names = [each.name for each in fields_of(export)]
    for number, name in enumerate(names):
        if len(name.encode()) > 63:
            raise ColumnTypeError(
                export.table, f"the field {name} has a name of more than 63 bytes", "Rename the field."
            )
        if any(database.same_name(name, other) for other in names[:number]):
            raise ColumnTypeError(
                export.table, f"two fields are called {name} for this database", "Rename one of them."
            )
    table = database.target.table
    found = database.columns(table)
    if found is None:
        if has_position:
            raise NotExportedTableError(
                export.table,
                "the table is gone, but lakelog_positions still has its position",
                "Restore the table. Or delete its row in lakelog_positions: the next export then begins at the start of"
                " the log.",
            )
        return
    if not has_position:
        check_is_empty(database, export)
    if (problem := database.problem_of(table)) is not None:
        raise NotExportedTableError(export.table, problem, "Export to another table, or change this table.")
    _check_unique_indexes(database, export)
    _check_types(database, export, found)


def check_is_empty(database: Database, export: Export) -> None:
    """Refuse a table without a position that has rows."""
    if database.rows(f"SELECT 1 FROM {database.table(database.target.table)} LIMIT 1"):
        raise NotExportedTableError(
            export.table,
            "the table has rows, but lakelog_positions has no position of the table, so this export did not write the"
            " rows",
            "Export to another table, or delete the rows of this table.",
        )


def _check_unique_indexes(database: Database, export: Export) -> None:
    """Refuse an index that could let one key's row replace or refuse the row of another key."""
    found = database.unique_indexes(database.target.table)
    if not any(found.values()):
        raise NotExportedTableError(
            export.table,
            f"has no primary key or unique index of the column _key alone (unique indexes: {', '.join(found) or 'none'})",
            "Export to another table, or make _key the primary key.",
        )
    for name, is_of_key in found.items():
        if not is_of_key:
            raise NotExportedTableError(
                export.table,
                f"the index {name} is unique, but _key is not its only column",
                "Make this index an index that is not unique, because two keys may have equal values. Or export to"
                " another table.",
            )


def _check_types(database: Database, export: Export, found: Mapping[str, str]) -> None:
    for column in wanted_columns(export):
        there = next((kind for name, kind in found.items() if database.same_name(name, column.name)), None)
        fits = there is None or database.accepts(there, column.type)
        if column.name == "_key":
            fits = there == database.key_type
        elif there is None and column.name.startswith("_"):
            fits = False
        if not fits:
            wanted = database.key_type if column.name == "_key" else database.type_of(column.type)
            raise ColumnTypeError(
                export.table,
                f"column {column.name} {f'has the type {there}' if there else 'is missing'}; the export needs {wanted}",
                "Alter the table, or export to another table. Nothing was exported.",
            )


def fit_target(database: Database, export: Export) -> None:
    """Create the target and the table of its dead letters, and add the columns of new fields."""
    table = database.target.table
    kinds = {each.name: database.type_of(each.type) for each in wanted_columns(export)} | {"_key": database.key_type}
    needed = {"_key", "_partition", "_offset", "_timestamp"}
    columns = ", ".join(
        f"{database.name(name)} {kind}{' NOT NULL' if name in needed else ''}" for name, kind in kinds.items()
    )
    _create(database, table, f"{columns}, PRIMARY KEY (_key)")
    found = database.columns(table) or {}
    for each in fields_of(export):
        if not any(database.same_name(name, each.name) for name in found):
            _add_column(database, table, each.name, kinds[each.name])
    text, raw = database.text_type, database.bytes_type
    letters = {
        "reason": f"{text} NOT NULL", "detail": text, "topic": f"{text} NOT NULL",
        "topic_id": f"{database.name_type} NOT NULL", "partition": "integer NOT NULL", "offset": "bigint NOT NULL",
        "timestamp": database.moment_type, "key": raw, "value": raw, "headers": text,
    }  # fmt: skip
    columns = ", ".join(f"{database.name(name)} {kind}" for name, kind in letters.items())
    # If the topic is created again, its new records have the same offsets.
    primary = f"topic_id, {database.name('partition')}, {database.name('offset')}"
    _create(database, letters_table(database.target), f"{columns}, PRIMARY KEY ({primary})")


def _create(database: Database, table: str, columns: str) -> None:
    if database.columns(table) is None:
        create_if_missing(database, table, columns)


def create_if_missing(database: Database, table: str, columns: str) -> None:
    """Create a table, which another run may create at the same time."""
    try:
        database.run(f"CREATE TABLE IF NOT EXISTS {database.table(table)} ({columns}){database.table_options}")
    except (ConflictError, DatabaseFailedError):  # PostgreSQL's IF NOT EXISTS does not cover the same moment
        if database.columns(table) is None:
            raise


def _add_column(database: Database, table: str, name: str, kind: str) -> None:
    try:
        database.run(f"ALTER TABLE {database.table(table)} ADD COLUMN {database.name(name)} {kind}")
    except DatabaseFailedError:
        if name not in (database.columns(table) or {}):
            raise
