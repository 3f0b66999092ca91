"""Checks the columns of a table that already exists, before an export writes into the table. All functions are pure.

A user may have created or altered the table. Without these checks, the database would refuse a statement at the end of
the export, or would store changed values. The checks refuse:

    a column of the export that is missing, unless the export can add the column
    a column of the export whose type or character set cannot store each value unchanged
    a column of the export that the database writes by itself: a generated column, a counter, or a column with ON UPDATE
    a column of the export that is NOT NULL, if the export writes null into the column
    any other column that is NOT NULL and that the database cannot fill by itself
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline.jdbc.database import Column, ColumnRuleError, ColumnTypeError, Database

_OR_ELSE = "or export to another table. Nothing was exported."


@dataclass(frozen=True)
class WantedColumn:
    """A column that an export writes.

    type: the type with which an export creates the column.
    kind: the type of the values. The column may have any type that stores each value unchanged. None: the column must
        have the type `type`.
    gets_null: whether an export writes null into the column.
    can_be_added: whether an export adds the column if it is missing.
    """

    name: str
    type: str
    kind: pa.DataType | None
    gets_null: bool = True
    can_be_added: bool = False


def check_columns(database: Database, table: str, wanted: Sequence[WantedColumn], found: Mapping[str, Column]) -> None:
    """Check the columns of an existing table.

    Args:
        table: the name of the table in errors.

    Raises:
        ColumnTypeError: a column cannot store the values of the export, or is missing.
        ColumnRuleError: the database would refuse what the export writes into a column.
    """
    known = set[str]()
    for column in wanted:
        name = next((each for each in found if database.same_name(each, column.name)), None)
        if name is not None:
            known.add(name)
            _check_type(database, table, column, found[name])
            _check_rules(table, column, found[name])
        elif not column.can_be_added:
            raise ColumnTypeError(
                table,
                f"column {column.name} is missing; the export needs {column.type}",
                f"Add the column, {_OR_ELSE}",
            )
    for name, there in found.items():
        if name not in known and not there.can_be_left_out:
            raise ColumnRuleError(
                table,
                f"column {name} is NOT NULL and has no default, but the export does not write this column",
                f"Give the column a default, allow null in it, {_OR_ELSE}",
            )


def _check_type(database: Database, table: str, column: WantedColumn, found: Column) -> None:
    if column.kind is None:
        fits = found.type == column.type.split(" character set ", maxsplit=1)[0]
    else:
        fits = database.accepts(found.type, column.kind)
    if not fits:
        raise ColumnTypeError(
            table,
            f"column {column.name} has the type {found.type}; the export needs {column.type}",
            f"Alter the table, {_OR_ELSE}",
        )
    if found.character_set not in (None, database.character_set):
        raise ColumnTypeError(
            table,
            f"column {column.name} has the character set {found.character_set}, which cannot store every text; the export"
            f" needs {database.character_set}",
            f"Alter the column, {_OR_ELSE}",
        )


def _check_rules(table: str, column: WantedColumn, found: Column) -> None:
    if found.is_automatic:
        raise ColumnRuleError(
            table,
            f"the database writes column {column.name} by itself (a generated column, a counter or ON UPDATE), but the"
            " export writes this column",
            f"Make it an ordinary column, {_OR_ELSE}",
        )
    if column.gets_null and not found.allows_null:
        raise ColumnRuleError(
            table,
            f"column {column.name} is NOT NULL, but the export also writes null into this column",
            f"Allow null in the column, {_OR_ELSE}",
        )
