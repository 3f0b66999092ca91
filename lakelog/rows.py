"""Converts records to the rows that readers get: rows with the columns of Spark's Kafka source. Spark and
`lakelog.Topic.read` return such rows.

key            binary                  null if the record has none
value          binary                  null in a tombstone
topic          string
partition      int32
offset         int64
timestamp      timestamp[us, UTC]      Kafka's milliseconds; outside the years 1 to 9999, the first or the last of these years
timestampType  int32                   0 CreateTime, 1 LogAppendTime, -1 no timestamp
headers        list of {key, value}    empty if there are none
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.optional import optional
from storage_engine.record.record_columns import HEADERS, with_binary

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

ROWS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS),
    ]
)
"""Columns of Spark's Kafka source, with includeHeaders."""
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The first and the last millisecond of the years 1 to 9999, which Python, Spark and databases can represent."""


def as_rows(records: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
    """Rows with the columns of ROWS, made from the records of one partition. The records have the columns of
    record.record_columns.RECORDS."""
    count = records.num_rows
    times = pc.min_element_wise(records["timestamp"], LAST_MS, skip_nulls=False)
    times = pc.max_element_wise(times, FIRST_MS, skip_nulls=False)
    records = with_binary(records)  # Spark, pandas and other libraries cannot read Arrow's view types
    return pa.RecordBatch.from_arrays(
        [
            records["key"],
            records["value"],
            pa.repeat(pa.scalar(topic), count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            records["offset"],
            pc.multiply(times, 1000).cast(pa.timestamp("us", tz="UTC")),
            records["timestamp_type"].cast(pa.int32()),
            records["headers"],
        ],
        schema=ROWS,
    )


class ArrowRows:
    """Rows in record batches, which a subclass reads, and their other forms."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The rows in Arrow record batches."""
        raise NotImplementedError

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as an Arrow stream. Reading the stream raises the same errors as a loop over the rows."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows as a stream for Polars, DuckDB and other programs that can read Arrow's C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """All rows, in memory. Raises the same errors as a loop over the rows."""
        return pa.Table.from_batches(self, self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """All rows, in memory.

        Raises:
            MissingPackageError: pandas is not installed.
            LogError: the same errors as in a loop over the rows.
        """
        with optional("pandas", "pandas", "to_pandas"):
            import pandas as pd  # noqa: F401 - Arrow imports it in a deeper place, without saying what it is for
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> pl.DataFrame:
        """All rows, in memory.

        Raises:
            MissingPackageError: Polars is not installed.
            LogError: the same errors as in a loop over the rows.
        """
        with optional("polars", "polars", "to_polars"):
            import polars

        frame = polars.from_arrow(self.to_arrow())
        assert isinstance(frame, polars.DataFrame)
        return frame
