"""Opens a table to which an export commits files that it has written (`pipeline.delta.files.row_files`), and commits them.

This way is for plain tables (`pipeline.delta.without_spark.plain_table`) and for upsert tables with deletion vectors
(`pipeline.delta.vectors.vector_table`). A commit fails if another export has committed meanwhile.
"""

from __future__ import annotations

from pipeline.delta.export_plan import Export, ExportMode
from pipeline.delta.files.row_files import Written
from pipeline.delta.files.skipping_columns import skipping_columns, skipping_property
from pipeline.delta.layout_columns import as_partitioned
from pipeline.delta.rows.row_columns import nullable_columns, table_columns
from pipeline.delta.table_stamp import Stamp
from pipeline.delta.vectors.vector_table import VectorTable
from pipeline.delta.without_spark.plain_table import PlainTable, conflict
from pipeline.delta.without_spark.table_opening import create_table
from storage_engine.storage.storage_opening import open_storage


def new_properties(export: Export) -> dict[str, str]:
    """The properties of the table of an export when it is created."""
    columns = nullable_columns(table_columns(export))
    return {**export.layout.properties, **skipping_property(skipping_columns(columns, export.layout.partitions))}


def create_empty(export: Export) -> bool:
    """Create the table of an export, without rows. False: another process has created it.

    Raises:
        StorageError: the table cannot be written.
    """
    columns = nullable_columns(table_columns(export))
    return create_table(export.table, columns, new_properties(export), export.layout.partitions)


def is_plain(export: Export, version: int | None) -> bool:
    """Whether `open_table` opens the table, and the settings ask for no other layout.

    Args:
        version: None if the table does not exist yet.
    """
    if export.layout.cluster_by or export.layout.partitions:
        return False
    return version is None or open_table(as_partitioned(export, ()), version) is not None


def open_table(export: Export, version: int | None, *, knows_files: bool = False) -> PlainTable | VectorTable | None:
    """The table at a version, or at its newest version; None if it is neither plain nor an upsert table with deletion
    vectors, or has other columns than the export, or other partition columns than the settings name.

    Args:
        knows_files: the caller has opened a version with the same files before, so their footers are not read again.
    """
    columns, partition_by = table_columns(export), export.layout.partition_by
    wanted = export.layout.deletion_vectors
    if not wanted:
        plain = PlainTable.open(export.table, version, columns, partition_by, knows_files=knows_files)
        if plain is not None:
            return plain
    if wanted is False or export.mode is not ExportMode.UPSERT:
        return None
    return VectorTable.open(export.table, version, columns, partition_by, knows_files=knows_files)


def reopened(export: Export, version: int) -> PlainTable | VectorTable:
    """The table at a version which `is_plain` has looked at, or that is empty.

    Raises:
        ConflictError: the table cannot be opened any more.
    """
    table = open_table(export, version, knows_files=True)
    if table is None:
        raise conflict(export.table)
    return table


def commit_files(export: Export, written: Written, stamp: Stamp) -> None:
    """Commit the files on the newest version of the table. The guard shows whether another export has committed.

    Raises:
        ConflictError: another writer changed the table.
    """
    table = open_table(export, None)
    if table is None or (export.mode is ExportMode.UPSERT and not table.has_no_rows):
        raise conflict(export.table)
    table.change_files(written.files, stamp)


def delete_files(export: Export, written: Written) -> None:
    """Delete files that no commit names."""
    storage = open_storage(export.table)
    for each in written.files:
        storage.delete(each.name)
