"""The columns of an exported table: created, extended, and compared with what the export's model says."""

from __future__ import annotations

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from pipeline.delta_table import PLAIN_TABLE_PROPERTIES, is_table
from pipeline.export_plan import Export, TableSchemaError
from pipeline.export_rows import table_columns
from pipeline.spark_types import nullable, spark_struct


def check_columns(spark: SparkSession, export: Export) -> bool:
    """Whether the table is there and has all columns.

    Raises:
        TableSchemaError: if a column is there with another type.
    """
    if not is_table(spark, export.table):
        return False
    found = DeltaTable.forPath(spark, export.table).toDF().schema
    return not _lacks(export.table, found, nullable(spark_struct(table_columns(export))), "")


def create_or_extend_table(spark: SparkSession, export: Export) -> bool:
    """Makes the table have the columns of the model and of its mode: an append of no rows, where something is missing.

    Returns:
        Whether it was.
    """
    if check_columns(spark, export):
        return False
    empty = spark.createDataFrame([], nullable(spark_struct(table_columns(export))))
    writer = empty.write.format("delta").mode("append").option("mergeSchema", "true")
    writer.options(**PLAIN_TABLE_PROPERTIES).save(export.table)
    return True


def _lacks(table: str, found: StructType, wanted: StructType, outer: str) -> bool:
    """Whether a wanted column is missing, at any depth.

    Raises:
        TableSchemaError: if a column is there with another type.
    """
    types: dict[str, DataType] = {each.name.lower(): each.dataType for each in found.fields}
    lacks = False
    for each in wanted.fields:
        name = f"{outer}{each.name}"
        there = types.get(each.name.lower())
        if there is None:
            lacks = True
        elif isinstance(there, StructType) and isinstance(each.dataType, StructType):
            lacks |= _lacks(table, there, each.dataType, f"{name}.")
        elif there.simpleString() != each.dataType.simpleString():
            raise TableSchemaError(
                table,
                f"column {name} is {there.simpleString()}, and the schema now says {each.dataType.simpleString()}",
                "Take the change back, give the field another name, or export to another table.",
            )
    return lacks
