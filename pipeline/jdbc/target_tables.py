"""The tables that an export creates or checks: the target, and the table of its dead letters.

An export uses an existing table only if the table is empty, or if a position says that this export filled it.
`column_checks` describes the columns that the table may have. A missing column of the model is added. A column that is
no longer in the model becomes null in later rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from lakelog.dead_letter_tables import DATABASE_DEAD_LETTERS_SUFFIX
from pipeline.delta.export_plan import Export
from pipeline.delta.rows.row_columns import COORDINATES, decoded_fields, nullable_fields
from pipeline.jdbc.column_checks import WantedColumn, check_columns
from pipeline.jdbc.database import ColumnTypeError, Database, DatabaseFailedError, NotExportedTableError
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
    return f"{target.table}{DATABASE_DEAD_LETTERS_SUFFIX}"


def wanted_columns(database: Database, export: Export) -> list[WantedColumn]:
    """The columns of the target."""
    nullable = nullable_fields(export)
    columns = [
        WantedColumn(each.name, database.type_of(each.type), each.type, each.name in nullable, can_be_added=True)
        for each in decoded_fields(export)
    ]
    columns.append(WantedColumn("_key", database.key_type, None, gets_null=False))
    for each in (*COORDINATES, *STALE_COLUMNS):
        if each.name != "_key":
            gets_null = each.name in STALE_COLUMNS.names
            columns.append(WantedColumn(each.name, database.type_of(each.type), each.type, gets_null))
    return columns


def letters_columns(database: Database) -> list[WantedColumn]:
    """The columns of the table of dead letters."""
    moment = COORDINATES.field("_timestamp").type
    kinds = [
        ("reason", pa.string(), False), ("detail", pa.string(), True), ("topic", pa.string(), False),
        ("topic_id", None, False), ("partition", pa.int32(), False), ("offset", pa.int64(), False),
        ("timestamp", moment, False), ("key", pa.binary(), True), ("value", pa.binary(), True),
        ("headers", pa.string(), True),
    ]  # fmt: skip
    return [
        WantedColumn(name, database.name_type if kind is None else database.type_of(kind), kind, gets_null)
        for name, kind, gets_null in kinds
    ]


def check_target(database: Database, export: Export, *, has_position: bool) -> None:
    """Check that the target and the table of its dead letters can be the tables of this export, before anything is
    written.

    Raises:
        NotExportedTableError: the table has rows but no position, or there is a position but no table, or the table has
            a unique index that is not of _key.
        ColumnTypeError: a column, or the database, cannot store the values of the export.
        ColumnRuleError: the database would refuse what the export writes into a column.
    """
    if (encoding := database.lossy_encoding()) is not None:
        raise ColumnTypeError(
            export.table,
            f"the database has the encoding {encoding}, which cannot store every text; the export needs UTF8",
            "Export into another database. Nothing was exported.",
        )
    names = [each.name for each in decoded_fields(export)]
    for number, name in enumerate(names):
        if len(name.encode()) > 63:
            raise ColumnTypeError(
                export.table, f"the field {name} has a name of more than 63 bytes", "Rename the field."
            )
        if name in database.system_columns:
            raise ColumnTypeError(
                export.table, f"the field {name} has the name of a system column of the database", "Rename the field."
            )
        if any(database.same_name(name, other) for other in names[:number]):
            raise ColumnTypeError(
                export.table, f"two fields are called {name} for this database", "Rename one of them."
            )
    _check_letters(database)
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
    check_columns(database, export.table, wanted_columns(database, export), found)


def _check_letters(database: Database) -> None:
    table = letters_table(database.target)
    found = database.columns(table)
    if found is not None:
        place = str(replace(database.target, table=table))
        if (problem := database.problem_of(table)) is not None:
            raise NotExportedTableError(place, problem, "Export to another table, or move this table away.")
        check_columns(database, place, letters_columns(database), found)


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


def fit_target(database: Database, export: Export) -> None:
    """Create the target and the table of its dead letters, and add the columns of new fields."""
    table, wanted = database.target.table, wanted_columns(database, export)
    _create(database, table, wanted, "_key")
    found = database.columns(table) or {}
    for each in wanted:
        if each.can_be_added and not any(database.same_name(name, each.name) for name in found):
            _add_column(database, table, each)
    # If the topic is created again, its new records have the same offsets.
    primary = f"topic_id, {database.name('partition')}, {database.name('offset')}"
    _create(database, letters_table(database.target), letters_columns(database), primary)


def _create(database: Database, table: str, columns: Sequence[WantedColumn], primary: str) -> None:
    if database.columns(table) is None:
        # A field may be null in old rows, even if the model needs a value.
        defined = [
            f"{database.name(each.name)} {each.type}{'' if each.gets_null or each.can_be_added else ' NOT NULL'}"
            for each in columns
        ]
        create_if_missing(database, table, ", ".join([*defined, f"PRIMARY KEY ({primary})"]))


def create_if_missing(database: Database, table: str, columns: str) -> None:
    """Create a table, which another run may create at the same time."""
    try:
        database.run(f"CREATE TABLE IF NOT EXISTS {database.table(table)} ({columns}){database.table_options}")
    except (ConflictError, DatabaseFailedError):  # PostgreSQL's IF NOT EXISTS does not cover the same moment
        if database.columns(table) is None:
            raise


def _add_column(database: Database, table: str, column: WantedColumn) -> None:
    try:
        database.run(f"ALTER TABLE {database.table(table)} ADD COLUMN {database.name(column.name)} {column.type}")
    except DatabaseFailedError:
        if column.name not in (database.columns(table) or {}):
            raise
