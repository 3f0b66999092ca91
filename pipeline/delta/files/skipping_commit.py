"""Keeps the property delta.dataSkippingStatsColumns of an existing table right (`pipeline.delta.files.skipping_columns`).

A table without the property gets it in one commit that changes nothing else: it names the columns of which every file of
the table has bounds. A column is never added later, because the older files have no statistics of it. A column is
removed from the property before its type changes to a type without exact bounds, and before a rebuild drops it. Spark
refuses a table whose property names a column that does not exist.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from deltalake import DeltaTable

from pipeline.delta.files.skipping_columns import (
    named_columns,
    skipping_columns,
    skipping_property,
    still_fitting,
    with_whole_statistics,
)
from pipeline.delta.table_properties import INDEXED_PROPERTY, SKIPPING_PROPERTY
from pipeline.delta.vectors.table_files import read_files
from pipeline.delta.without_spark.metadata_commit import change_metadata
from storage_engine.storage.storage_opening import open_storage

_UNTOUCHED = "The rows are right, but readers that skip files may find too few of them."
_REMEDY = f"Set the table's property {SKIPPING_PROPERTY} with ALTER TABLE in Spark, without decimals and doubles."


def fit_skipping(
    path: str, wanted: pa.Schema | None = None, partition_by: Collection[str] | None = None, *, rebuilt: bool = False
) -> int | None:
    """Give the table the right property, if it has another one.

    Args:
        wanted: the columns that the next export needs; None: the table keeps its columns.
        partition_by: the partition columns after a rebuild; None: the table keeps them.
        rebuilt: the table will have only the wanted columns.

    Returns:
        The version that was committed; None if there is no table, or nothing had to be changed.

    Raises:
        UnsupportedError: the table needs a feature for which Lakelog cannot commit properties.
        ConflictError: other writers committed again and again.
        StorageError: the table cannot be read or written.
    """

    def changed(table: DeltaTable) -> dict[str, str] | None:
        there = dict(table.metadata().configuration)
        names = _names(path, table, there)
        if names is None:
            return None
        if wanted is not None:
            names = still_fitting(names, pa.schema(table.schema().to_arrow()), wanted, rebuilt=rebuilt)
        names = [name for name in names if name not in (partition_by or ())]
        if SKIPPING_PROPERTY in there and names == named_columns(there[SKIPPING_PROPERTY]):
            return None
        return {**there, **skipping_property(names)}

    return change_metadata(
        path, "SET TBLPROPERTIES", "the names of its columns with statistics", _UNTOUCHED, _REMEDY, properties=changed
    )


def _names(path: str, table: DeltaTable, properties: dict[str, str]) -> list[str] | None:
    """The columns that the property names, or would name; None if the table has no statistics of columns."""
    if SKIPPING_PROPERTY in properties:
        return named_columns(properties[SKIPPING_PROPERTY])
    first = int(properties.get(INDEXED_PROPERTY, "-1"))
    if first == 0:
        return None
    columns = pa.schema(table.schema().to_arrow())
    if first > 0:  # somebody wants the statistics of the first columns only
        columns = pa.schema(list(columns)[:first])
    names = skipping_columns(columns, table.metadata().partition_columns)
    files = read_files(open_storage(path), table.version()).files
    return with_whole_statistics(names, (each.stats for each in files))
