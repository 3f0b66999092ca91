"""Stores dead letters in Delta tables. A dead letter is a whole row or record that was refused. It is stored with its
origin and with the reason of the refusal.

The tables are below the root:

    tables/dead_letters/ingest/<topic>/   rows of a stream: the topic does not accept the row (no key, too large),
                                          the row does not fit the source's schema, or an expression of the settings
                                          fails on the row
    tables/dead_letters/unknown_topic/    refused rows of a stream for several topics: the topic of the row is unknown
    tables/dead_letters/export/<topic>/   records whose value does not fit the topic's schema

Each table begins with the columns `reason` (one or two words, for grouping), `detail` (the exact error, without data of
the record) and `topic`. The columns of the row's origin follow. The last columns are key, value and headers as bytes,
so the row can be sent again.

A run first writes its dead letters, and then commits. If the run is killed between these two steps, the next run finds
the same dead letters again, and must not write them a second time. So each append has Delta's guard against repeated
writes: an application id and a version. Delta skips an append if the same application id has already committed the same
version, or a higher version. The caller chooses a version that is the same if a run is repeated, such as the id of a
micro-batch.

Executors stage the dead letters of an ingest as Parquet files. The driver adds the rows of these files to the table
with the deltalake library, without a Spark job. This takes ten milliseconds per micro-batch; Spark's own writer takes
one to three seconds. If an export runs on Spark, Spark writes its dead letters from a DataFrame. In all cases, the
guard is a `txn` action in the table's log.

With the properties of a new table, Delta writes a checkpoint of the table's log after each hundred commits, and
collects no statistics. No query of Lakelog uses statistics to skip files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from pipeline.delta.table_properties import DEAD_LETTER_PROPERTIES
from pipeline.delta.without_spark.deltalake_errors import deltalake_errors
from pipeline.delta.without_spark.table_opening import create_table, open_or_none
from storage_engine.errors import ConflictError
from storage_engine.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
        pa.field("row", pa.int64(), nullable=False),  # number within the task
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
        pa.field("table_id", pa.string()),  # Delta's id of the exported table
        pa.field("outcome", pa.string()),  # null: open
    ]
)


class Refusal(IntEnum):
    """The reason why a row is refused before it becomes a record. A column of the rows contains the number of the
    reason."""

    MALFORMED = 1
    KEY_FAILED = 2
    VALUE_FAILED = 3
    HEADERS_FAILED = 4
    TIMESTAMP_FAILED = 5
    PARTITION_FAILED = 6
    TOPIC_FAILED = 7
    NO_POSITION = 8

    @property
    def setting(self) -> str:
        """The setting that the row does not fit. For a malformed row, this can also be the setting of the topic's
        schema."""
        if self is Refusal.MALFORMED:
            return "ingest.source.schema"
        if self is Refusal.TOPIC_FAILED:
            return "ingest.topic.column"
        if self is Refusal.NO_POSITION:
            return "ingest.position.columns"
        return f"ingest.{self.name.removesuffix('_FAILED').lower()}"

    @property
    def reason(self) -> str:
        return {Refusal.MALFORMED: "malformed", Refusal.NO_POSITION: "no_position"}.get(self, "expression_failed")

    @property
    def detail(self) -> str:
        if self is Refusal.MALFORMED:
            return f"the row does not fit {self.setting}"
        if self is Refusal.NO_POSITION:
            return f"a column of {self.setting} is null"
        return f"{self.setting} cannot be evaluated on the row"


_MOST_ATTEMPTS = 10
"""The largest number of attempts of one append. An attempt fails if another process commits at the same time."""


def append_staged_dead_letters(storage: Storage, staged: Sequence[str], table: str, app_id: str, version: int) -> None:
    """Append the rows of staged Parquet files, unless they were appended before. A missing table is created.

    Args:
        staged: storage keys of files with the columns of INGEST_DEAD_LETTERS; the files are read one row group at a
            time.
        table: storage key of the table.
        app_id: the application id of the guard.
        version: the version of the guard. The append is skipped if this or a higher version was committed before.

    Raises:
        ConflictError: other processes committed to the table during every attempt.
        StorageError: the table cannot be read or written.
    """
    path = f"{storage.uri}/{table}"
    for _ in range(_MOST_ATTEMPTS):
        try:
            with deltalake_errors(path, "Nothing of the batch was committed."):
                found = open_or_none(path)
                if found is None:
                    create_table(path, INGEST_DEAD_LETTERS, DEAD_LETTER_PROPERTIES)
                    continue
                committed = found.transaction_version(app_id)
                if committed is not None and committed >= version:
                    return
                rows = pa.RecordBatchReader.from_batches(INGEST_DEAD_LETTERS, _staged_rows(storage, staged))
                guard = CommitProperties(app_transactions=[Transaction(app_id, version)])
                write_deltalake(found, rows, mode="append", commit_properties=guard)
            return
        except CommitFailedError:
            continue  # another process has committed meanwhile, perhaps this very append
    raise ConflictError(
        path,
        f"was changed by another writer {_MOST_ATTEMPTS} times during one append",
        "Find the other writer of this table.",
    )


def _staged_rows(storage: Storage, staged: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for key in staged:
        yield from pq.ParquetFile(pa.BufferReader(storage.read(key))).iter_batches()


def append_dead_letters(
    rows: DataFrame, path: str, app_id: str, version: int, user_metadata: str | None = None
) -> None:
    """Append `rows` to the table at `path`, unless they were appended before. A missing table is created.

    Args:
        rows: rows with the columns of the table.
        app_id: the application id of the guard.
        version: the version of the guard. Delta silently skips the append if this or a higher version of `app_id` was
            committed before.
        user_metadata: the user metadata of the commit.
    """
    writer = rows.coalesce(1).write.format("delta").mode("append").options(**DEAD_LETTER_PROPERTIES)
    writer = writer.option("txnAppId", app_id).option("txnVersion", version)
    writer = writer.option("mergeSchema", "true")  # a table of an older Lakelog has fewer columns
    if user_metadata is not None:
        writer = writer.option("userMetadata", user_metadata)
    writer.save(path)
