"""Spark's types for Arrow's, so that a schema is declared once: event models and dead letters are Arrow schemas.

And the name of a column in SQL.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from schemas.columns import arrow_schema
from schemas.event_model import EventModel


def spark_schema(model: type[EventModel]) -> StructType:
    """The columns of `model` as Spark has them; required fields are not nullable.

    Raises:
        UnsupportedFieldError: if a field has no column type.
    """
    return spark_struct(arrow_schema(model))


def spark_struct(schema: pa.Schema) -> StructType:
    """`schema` in Spark's types. Timestamps with a zone become TIMESTAMP, a point in time."""
    return from_arrow_schema(schema)


def nullable(schema: StructType) -> StructType:
    """The same columns, each nullable down to the elements of lists.

    That is how tables are declared: a column that was required can become optional later, not the other way round.
    """
    return StructType(
        [StructField(field.name, _nullable_type(field.dataType), True, field.metadata) for field in schema.fields]
    )


def _nullable_type(data_type: DataType) -> DataType:
    if isinstance(data_type, StructType):
        return nullable(data_type)
    if isinstance(data_type, ArrayType):
        return ArrayType(_nullable_type(data_type.elementType), containsNull=True)
    return data_type


def quoted(name: str) -> str:
    """A column's name as SQL has it, whatever characters are in it."""
    return f"`{name.replace('`', '``')}`"
