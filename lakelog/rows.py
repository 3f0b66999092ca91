"""Converts records to the rows that readers get: rows with the columns of Spark's Kafka source. Spark and
`lakelog.Topic.read` return such rows.

key            binary                  null if the record has none
value          binary                  null in a tombstone
topic          string
partition      int32
offset         int64
timestamp      timestamp[us, UTC]      Kafka's milliseconds
timestampType  int32                   0 CreateTime, 1 LogAppendTime, -1 no timestamp
headers        list of {key, value}    empty if there are none
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.record.record_columns import HEADERS, with_binary

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


def as_rows(records: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
    """Rows with the columns of ROWS, made from the records of one partition. The records have the columns of
    record.record_columns.RECORDS."""
    count = records.num_rows
    records = with_binary(records)  # Spark, pandas and other libraries cannot read Arrow's view types
    return pa.RecordBatch.from_arrays(
        [
            records["key"],
            records["value"],
            pa.repeat(pa.scalar(topic), count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            records["offset"],
            pc.multiply(records["timestamp"], 1000).cast(pa.timestamp("us", tz="UTC")),
            records["timestamp_type"].cast(pa.int32()),
            records["headers"],
        ],
        schema=ROWS,
    )
