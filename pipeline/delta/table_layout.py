"""Gives an exported table the layout for which the settings ask, with Spark.

The setting `export.readers` decides whether an upserted table has deletion vectors. With deletion vectors, a MERGE marks
changed and deleted rows in small files, and does not write the other rows of a data file again.

    the settings ask for    the table has no such feature               the table has the feature
    deletion vectors        they are switched on, in one commit         none
    none                    none                                        the export is refused: readers could not read it
    nothing                 none                                        none
"""

from __future__ import annotations

from delta.tables import DeltaTable
from pyspark.sql import Row, SparkSession

from lakelog.delta.rows import DELETION_VECTORS
from lakelog.spark.types import quoted
from pipeline.delta.export_plan import Export, ExportRefusedError
from pipeline.delta.table_properties import DELETION_VECTORS_PROPERTY


class TableReadersError(ExportRefusedError):
    """Not all programs that the settings name can read the table."""


def check_layout(spark: SparkSession, export: Export) -> None:
    """Check, before any record is read, that an existing table fits the layout of the export.

    Raises:
        TableReadersError: the table has deletion vectors, and the settings name a program that cannot read them.
    """
    if export.layout.deletion_vectors is False and DELETION_VECTORS in _details(spark, export.table)["tableFeatures"]:
        raise TableReadersError(
            export.table,
            f"may have deletion vectors, but {export.section}.readers names a program that cannot read them",
            f"Nothing was exported. Remove the program from {export.section}.readers. Or run in Spark: ALTER TABLE"
            f" delta.`{export.table}` DROP FEATURE {DELETION_VECTORS}",
        )


def fit_layout(spark: SparkSession, export: Export) -> bool:
    """Give an existing table the layout of the export. Returns whether this needed a commit."""
    if not export.layout.deletion_vectors:
        return False
    if _details(spark, export.table)["properties"].get(DELETION_VECTORS_PROPERTY) == "true":
        return False
    spark.sql(f"ALTER TABLE delta.{quoted(export.table)} SET TBLPROPERTIES ('{DELETION_VECTORS_PROPERTY}' = 'true')")
    return True


def _details(spark: SparkSession, table: str) -> Row:
    found = DeltaTable.forPath(spark, table).detail().first()
    assert found is not None, "a table has exactly one row there"
    return found
