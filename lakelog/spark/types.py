"""Converts Arrow's types to Spark's, so that each schema is declared only once. Quotes the name of a column for SQL."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType


def spark_struct(schema: pa.Schema) -> StructType:
    """`schema` in Spark's types. Timestamps with a zone become TIMESTAMP, a point in time."""
    return from_arrow_schema(schema)


def nullable(schema: StructType) -> StructType:
    """The same columns, each nullable down to the elements of lists and the values of maps.

    Tables have only nullable columns, because a required field can become optional later. (An optional field can never
    become required.)
    """
    return StructType(
        [StructField(field.name, _nullable_type(field.dataType), True, field.metadata) for field in schema.fields]
    )


def _nullable_type(data_type: DataType) -> DataType:
    if isinstance(data_type, StructType):
        return nullable(data_type)
    if isinstance(data_type, ArrayType):
        return ArrayType(_nullable_type(data_type.elementType), containsNull=True)
    if isinstance(data_type, MapType):
        return MapType(data_type.keyType, _nullable_type(data_type.valueType), valueContainsNull=True)
    return data_type


def quoted(name: str) -> str:
    """A column's name quoted for SQL, whatever characters are in it."""
    return f"`{name.replace('`', '``')}`"
