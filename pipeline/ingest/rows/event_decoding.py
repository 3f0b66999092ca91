"""Decodes the value of a message in Avro or Protobuf, for the column `event` of an ingest's source.

Spark parses JSON itself. Values in Avro and Protobuf need a function of Python, which decodes as many values per second
as an export. So only an ingest whose expressions name `event` decodes them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import BooleanType, StructField, StructType

from lakelog.spark.types import nullable, spark_struct
from schemas.event_schema import EventSchema

DECODED, MALFORMED = "decoded", "malformed"
"""The fields of the result: the columns of the schema, which are null for a value that is null or malformed; and whether
the value is malformed."""


def event_decoder(schema: EventSchema) -> Callable[[Column, Column], Column]:
    """A function that decodes a column of values. Its second argument are the headers of the messages."""

    def decode(values: pa.Array, headers: pa.Array) -> pa.Array:
        found = schema.decode(values.cast(pa.binary()), headers)
        is_malformed = np.zeros(len(values), np.bool_)
        is_malformed[[error.row for error in found.errors]] = True
        has_event = pa.array(~is_malformed & values.is_valid().to_numpy(zero_copy_only=False))
        missing = pc.invert(has_event)
        event = pa.StructArray.from_arrays(found.columns.columns, fields=list(found.columns.schema), mask=missing)
        return pa.StructArray.from_arrays([event, pa.array(is_malformed)], [DECODED, MALFORMED])

    columns = nullable(spark_struct(schema.columns))
    result = StructType([StructField(DECODED, columns), StructField(MALFORMED, BooleanType())])
    # Spark would call a deterministic function once for each expression that names its result.
    of_values = arrow_udf(decode, result)  # type: ignore[call-overload]  # PySpark's types lack functions of pa.Array
    function: Callable[[Column, Column], Column] = of_values.asNondeterministic()
    return function
