"""Dead letters: what could not go on, kept whole in a Delta table, with reason and coordinates.

Two kinds have a table per topic each, below the root:

    tables/dead_letters/ingest/<topic>/   rows of a stream that may not go into the topic: no key, too large
    tables/dead_letters/export/<topic>/   records of the topic whose value is no event of its schema

Both begin with `reason` (a word or two to group by), `detail` (what exactly, without a part of the record) and `topic`,
then tell where the row comes from, and end with key, value and headers as bytes, from which it can be sent again.

A dead letter is written in the pass that meets it and before that pass commits. An interrupted pass is made again and
must find them there, not add them twice: hence Delta's guard, which skips an append whose version it has seen from that
application. Whoever calls chooses a version that a repetition repeats, such as the id of a micro-batch.

An append costs two small files and a commit. What makes it quick is set where the table is created (no statistics,
which nobody skips files by here; a checkpoint every hundredth commit) and in conf/spark-defaults.conf
(spark.databricks.delta.snapshotPartitions: Delta's default of 50 tasks for each commit costs seconds on two cores).
"""

from __future__ import annotations

from pathlib import PurePosixPath

import pyarrow as pa
from pyspark.sql import DataFrame

from pipeline.delta_table import PLAIN_TABLE_PROPERTIES

_REASON = [
    pa.field("reason", pa.string(), nullable=False),
    pa.field("detail", pa.string()),
    pa.field("topic", pa.string(), nullable=False),
]
_RECORD = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
]

INGEST_DEAD_LETTERS: pa.Schema = pa.schema(
    [
        *_REASON,
        pa.field("query_id", pa.string(), nullable=False),
        pa.field("batch_id", pa.int64(), nullable=False),
        pa.field("task", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # within the task
        pa.field("source", pa.string()),
        *_RECORD,
    ]
)
"""Columns of the Parquet files that executors stage, and of the table."""

EXPORT_DEAD_LETTERS: pa.Schema = pa.schema(
    [
        *_REASON,
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        *_RECORD,
    ]
)

_TABLE_PROPERTIES = {
    **PLAIN_TABLE_PROPERTIES,
    "delta.dataSkippingNumIndexedCols": "0",
    "delta.checkpointInterval": "100",
}


def ingest_dead_letters_key(topic: str) -> str:
    """Where the table of rows refused by the ingest of `topic` lies, below the root."""
    return str(PurePosixPath("tables", "dead_letters", "ingest", topic))


def export_dead_letters_key(topic: str) -> str:
    """Where the table of records that the export of `topic` could not decode lies, below the root."""
    return str(PurePosixPath("tables", "dead_letters", "export", topic))


def append_dead_letters(
    rows: DataFrame, path: str, app_id: str, version: int, user_metadata: str | None = None
) -> None:
    """Appends `rows` to the table at `path`, which is created if need be, unless this was done before.

    Without rows nothing is written. `rows` is evaluated twice, up to its first row and then whole.

    Args:
        rows: with the columns of the table.
        app_id: whose `version` it is.
        version: Delta skips the append, in silence, if it has committed this or a higher version of `app_id`.
        user_metadata: what the commit shall carry.
    """
    if rows.isEmpty():
        return
    writer = rows.coalesce(1).write.format("delta").mode("append").options(**_TABLE_PROPERTIES)
    writer = writer.option("txnAppId", app_id).option("txnVersion", version)
    if user_metadata is not None:
        writer = writer.option("userMetadata", user_metadata)
    writer.save(path)
