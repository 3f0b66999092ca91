"""Registers an exported Delta table in a catalog of Spark, under the name of `export.catalog.table` (decision 0072).

A catalog keeps, for a name, the folder of the table. Columns, comments and rows come from the table itself, so the entry
of a table is written once and stays right. The table notes its name in its property `lakelog.catalog.table`. So an export
without Spark sees that the table is registered, and needs no catalog.

    the table's property       what an export does
    the name and the folder    nothing if it exports without Spark. Otherwise it registers the table again if the name is
                               gone from the catalog
    something else, or none    it starts Spark, registers the table, and then sets the property

Before an export writes rows, it checks that the table can be registered. After a clone or a move of the table, the
property names another folder, so the new table is registered, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.delta.table_properties import CATALOG_PROPERTY
from pipeline.delta.without_spark.deltalake_errors import deltalake_errors
from pipeline.delta.without_spark.metadata_commit import change_metadata
from pipeline.delta.without_spark.table_opening import open_or_none
from pipeline.job import JobContext
from storage_engine.errors import UnsupportedError

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from pipeline.export.spark_catalog import Entry


def prepare_name(context: JobContext, table: str) -> None:
    """Check, before rows are written, that the table can be registered. Does nothing if the settings have no name for it,
    or if the table notes this name.

    Args:
        table: the path or URI of the table, which need not exist.

    Raises:
        CatalogError: the name cannot be used. Nothing was changed.
    """
    name = context.settings.required_export().catalog_table
    if name is not None and _noted(table) != _note(name, table):
        _entry(context, name, table).is_there()


def register_name(context: JobContext, table: str) -> None:
    """Register the table if the settings have a name for it, and if it is not registered. Does nothing if there is no
    table.

    Raises:
        CatalogError: the table cannot be registered. All rows are exported.
    """
    name = context.settings.required_export().catalog_table
    if name is None:
        return
    noted, note = _noted(table), _note(name, table)
    if noted is None or (noted == note and not context.has_spark):
        return
    entry = _entry(context, name, table)
    entry.make()
    if noted == note:
        return
    try:
        _write_note(note, table)
    except UnsupportedError:  # Spark knows more of Delta's features, but refuses columns with a space in their names
        entry.note({CATALOG_PROPERTY: note})


def _entry(context: JobContext, name: str, table: str) -> Entry:
    from pipeline.export.spark_catalog import Entry  # an export without Spark does not import PySpark

    return Entry(context.spark, name, table, context.settings.place_of("export.catalog.table"))


def _noted(table: str) -> str | None:
    """The property of the table; an empty text if it has none; None if there is no table.

    Raises:
        StorageError: the table cannot be read.
    """
    with deltalake_errors(table, "Nothing was registered.", "cannot be read"):
        opened = open_or_none(table)
    return None if opened is None else opened.metadata().configuration.get(CATALOG_PROPERTY, "")


def _write_note(note: str, table: str) -> None:
    """Set the property of the table, without Spark.

    Raises:
        UnsupportedError: the table needs a feature for which Lakelog cannot commit the property.
        ConflictError: other writers committed again and again.
        StorageError: the table cannot be read or written.
    """

    def changed(there: DeltaTable) -> dict[str, str] | None:
        properties = dict(there.metadata().configuration)
        return None if properties.get(CATALOG_PROPERTY) == note else {**properties, CATALOG_PROPERTY: note}

    change_metadata(
        table, "SET TBLPROPERTIES", "the property with its name", "All rows are exported.", "", properties=changed
    )


def _note(name: str, table: str) -> str:
    return f"{name} at {table}"
