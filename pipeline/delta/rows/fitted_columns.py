"""Gives the columns of rows the fields that only the table has, with null. Delta's MERGE refuses a struct without one of
the table's fields; for whole columns, the caller names NULL itself.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from pipeline.delta.rows.field_paths import Field, fields_in_json, outermost


def absent_fields(there: StructType, given: StructType) -> list[Field]:
    """The columns of a table, and the fields inside its columns, that rows do not have. Fields inside an absent column or
    field are left out."""
    return outermost(fields_in_json(there.json()) - fields_in_json(given.json()))


def fitted(column: Column, given: DataType, there: DataType) -> Column:
    """A column with the fields of the table's column, in all structs, also those in lists and in the values of maps.

    Args:
        given: the type of the column.
        there: the type of the table's column.
    """
    if not _lacks(given, there):
        return column
    if isinstance(there, StructType) and isinstance(given, StructType):
        own = {field.name.lower(): field for field in given}
        fields = [
            fitted(column[own[name].name], own[name].dataType, field.dataType).alias(field.name)
            if (name := field.name.lower()) in own
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in there
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(there, ArrayType) and isinstance(given, ArrayType):
        inner, wanted = given.elementType, there.elementType
        return F.transform(column, lambda each: fitted(each, inner, wanted))
    assert isinstance(there, MapType)
    assert isinstance(given, MapType)
    values, needed = given.valueType, there.valueType
    return F.transform_values(column, lambda _, value: fitted(value, values, needed))


def _lacks(given: DataType, there: DataType) -> bool:
    """Whether a struct in the type has no field that the table's struct has."""
    if isinstance(given, StructType) and isinstance(there, StructType):
        own = {field.name.lower(): field.dataType for field in given}
        return any(field.name.lower() not in own or _lacks(own[field.name.lower()], field.dataType) for field in there)
    if isinstance(given, ArrayType) and isinstance(there, ArrayType):
        return _lacks(given.elementType, there.elementType)
    if isinstance(given, MapType) and isinstance(there, MapType):
        return _lacks(given.valueType, there.valueType)
    return False
