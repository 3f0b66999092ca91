"""Gives an exported table the layout for which the settings ask, with Spark.

    the settings ask for      the table has another layout                     the table has this layout
    deletion vectors          they are switched on, in one commit              none
    no deletion vectors       the export is refused: readers could not read    none
                              the table
    partition columns         the export is refused: only a rebuild can        none
                              partition the rows that are there
    clustering columns        the columns are changed, in one commit. The      none
                              export is refused if the table is partitioned
    nothing                   none                                             none

With deletion vectors (`export.readers`), a MERGE marks changed and deleted rows in small files, and does not write the
other rows of a data file again. Clustering columns change no row: Spark's OPTIMIZE clusters by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from delta.tables import DeltaTable
from deltalake import DeltaTable as PlainDeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from lakelog.delta.rows import DELETION_VECTORS
from lakelog.delta_options import delta_options
from lakelog.spark.types import nullable, quoted
from pipeline.delta.export_plan import Export, ExportRefusedError, TableSchemaError
from pipeline.delta.files.skipping_columns import named_columns, skipping_property
from pipeline.delta.layout_columns import as_partitioned
from pipeline.delta.table_properties import DELETION_VECTORS_PROPERTY, SKIPPING_PROPERTY

CLUSTERING = frozenset({"clustering", "domainMetadata"})
"""Delta's names of the features of a table with clustering columns."""


_KEPT_FEATURES = {
    "appendOnly", "changeDataFeed", "checkConstraints", "deletionVectors", "inCommitTimestamp", "invariants",
    "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck",
}  # fmt: skip
"""Table features that a rewrite preserves. A rewrite would lose generated columns, clustering and identity columns."""


class TableReadersError(ExportRefusedError):
    """Not all programs that the settings name can read the table."""


class TableLayoutError(ExportRefusedError):
    """The table has other partition columns than the settings."""


def check_layout(spark: SparkSession, export: Export) -> Export:
    """Check, before any record is read, that an existing table fits the layout of the export. Returns the export with the
    partition columns of the table.

    Raises:
        TableReadersError: the table has deletion vectors, and the settings name a program that cannot read them.
        TableLayoutError: the table has other partition columns than the settings.
    """
    there = partition_columns(spark, export.table)
    check_readers(spark, as_partitioned(export, there))
    wanted = export.layout.partition_by
    if export.layout.cluster_by and there:
        raise _other_layout(export, there, f"{export.section}.cluster.by asks for a table without partitions")
    if wanted is not None and list(wanted) != there:
        raise _other_layout(export, there, f"{export.section}.partition.by says {_named(wanted)}")
    return as_partitioned(export, there)


def check_readers(spark: SparkSession, export: Export) -> None:
    """Check that all programs that the settings name can read the table.

    Raises:
        TableReadersError: the table has deletion vectors, and a program cannot read them.
    """
    if export.layout.deletion_vectors is False and DELETION_VECTORS in _details(spark, export.table)["tableFeatures"]:
        where = " in these partitions" if export.layout.by_polars and export.layout.partitions else ""
        raise TableReadersError(
            export.table,
            f"may have deletion vectors, but {export.section}.readers names a program that cannot read them{where}",
            f"Nothing was exported. Remove the program from {export.section}.readers. Or run in Spark: ALTER TABLE"
            f" delta.`{export.table}` DROP FEATURE {DELETION_VECTORS}",
        )


def fit_layout(spark: SparkSession, export: Export) -> bool:
    """Give an existing table the layout of the export. Returns whether this needed a commit."""
    layout = export.layout
    if not layout.deletion_vectors and layout.cluster_by is None:
        return False
    changes = []
    details = _details(spark, export.table)
    if layout.deletion_vectors and details["properties"].get(DELETION_VECTORS_PROPERTY) != "true":
        changes.append(f"SET TBLPROPERTIES ('{DELETION_VECTORS_PROPERTY}' = 'true')")
    if layout.cluster_by is not None and list(layout.cluster_by) != list(details["clusteringColumns"]):
        columns = ", ".join(map(quoted, layout.cluster_by))
        changes += _named_for_clustering(details["properties"], layout.cluster_by)
        changes.append(f"CLUSTER BY ({columns})" if columns else "CLUSTER BY NONE")
    for change in changes:
        spark.sql(f"ALTER TABLE delta.{quoted(export.table)} {change}")
    return bool(changes)


def _named_for_clustering(properties: Mapping[str, str], columns: Sequence[str]) -> list[str]:
    """The change of the property that names the columns with statistics: Delta clusters only by these columns."""
    there = named_columns(properties.get(SKIPPING_PROPERTY, ""))
    names = list(dict.fromkeys([*there, *columns]))
    if SKIPPING_PROPERTY not in properties or names == there:
        return []
    return [f"SET TBLPROPERTIES ('{SKIPPING_PROPERTY}' = '{skipping_property(names)[SKIPPING_PROPERTY]}')"]


def check_rewritable(spark: SparkSession, export: Export, columns: StructType, why: str, remedy: str) -> list[str]:
    """The columns by which a table is partitioned.

    Args:
        why: why the table is rewritten.

    Raises:
        TableSchemaError: a property forbids a rewrite, or a rewrite would lose a property of the table.
    """
    table = export.table
    details = _details(spark, table)
    problem = None
    # If the settings name clustering columns, the table gets them again after a rewrite.
    kept = _KEPT_FEATURES if export.layout.cluster_by is None else _KEPT_FEATURES | CLUSTERING
    if not details["clusteringColumns"]:
        kept = kept | CLUSTERING
    if lost := sorted(set(details["tableFeatures"]) - kept):
        problem = f"it has the Delta feature {', '.join(lost)}, which a rewrite may lose"
    elif details["properties"].get("delta.appendOnly", "false").lower() == "true":
        problem = "its property delta.appendOnly forbids a rewrite"
    elif columns != nullable(columns):
        problem = "it has a NOT NULL column, which a rewrite would lose"
    if problem is not None:
        raise TableSchemaError(table, f"must be rewritten because {why}, but {problem}", remedy)
    partitions: list[str] = details["partitionColumns"]
    return partitions


def partition_columns(spark: SparkSession, table: str) -> list[str]:
    """The columns by which a table is partitioned."""
    try:  # unlike a query of Spark, this takes some milliseconds
        return list(PlainDeltaTable(table, storage_options=delta_options(table)).metadata().partition_columns)
    except DeltaError:  # deltalake does not know a feature of the table
        return list(_details(spark, table)["partitionColumns"])


def _other_layout(export: Export, there: list[str], asked: str) -> TableLayoutError:
    return TableLayoutError(
        export.table,
        f"is {'partitioned by ' + _named(there) if there else 'not partitioned'}, but {asked}",
        "Nothing was exported. To make the table again with this layout, run the export once with --rebuild. Or change the"
        " setting back.",
    )


def _named(columns: list[str] | tuple[str, ...]) -> str:
    return ", ".join(columns) or "no columns"


def _details(spark: SparkSession, table: str) -> Row:
    found = DeltaTable.forPath(spark, table).detail().first()
    assert found is not None, "a table has exactly one row there"
    return found
