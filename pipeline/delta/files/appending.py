"""Exports into files that Spark's tasks write with Arrow (`pipeline.delta.files.row_files`). Upserts have a module of their
own (`pipeline.delta.files.upserting`). This way is used for two kinds of exports:

- an append: one pass over the log reads and decodes the records, and writes, hashes and counts the rows. Only records
  that cannot be decoded leave the tasks, and only their number and the files are known to the driver.
- the first export of an upsert table with very many keys: Spark finds the rows of all keys, and these rows are written.
  There is nothing to merge with.

`pipeline.delta.files.table_commits` commits the files.
"""

from __future__ import annotations

from functools import reduce
from operator import add

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakelog.spark.splits import RecordTask
from lakelog.spark.types import nullable, quoted, spark_struct
from pipeline.delta.export_plan import Export, ExportMode, ExportPlan
from pipeline.delta.files.row_files import LETTER_COLUMNS, RESULT, AppendRecords, WriteRows, Written
from pipeline.delta.files.table_commits import is_plain
from pipeline.delta.rows.row_columns import STALE_SINCE, row_columns, table_columns
from pipeline.delta.rows.upserted_rows import DECIDES


def can_append(export: Export, plan: ExportPlan) -> bool:
    """Whether an append adds rows only, and the table has no partitions, is plain and has all columns, or does not exist
    yet."""
    if export.mode is ExportMode.UPSERT or plan.replaced:
        return False
    return is_plain(export, None if plan.head is None else plan.head.version)


def appending(export: Export) -> RecordTask:
    """Writes the rows of records into files. The result has a row for each record that cannot be decoded, and a row for
    each task (`what_was_written`)."""
    return RecordTask(AppendRecords(export), LETTER_COLUMNS)


def what_was_written(rows: DataFrame) -> Written:
    """What the tasks wrote."""
    (name,) = RESULT.names
    found = rows.where(F.col(name).isNotNull()).select(name).collect()
    return reduce(add, (Written.from_json(each[name]) for each in found), Written())


def write_source(export: Export, source: DataFrame) -> Written:
    """Write the rows of an upsert into files. The table has no rows.

    Args:
        source: the result of `upserted_rows.upsert_source`.
    """
    names = [quoted(name) for name in table_columns(export).names if name in row_columns(export).names]
    rows = source.alias("s").where(f"{DECIDES} AND NOT s._tombstone")
    rows = rows.select(*names, F.col("_bad").alias(STALE_SINCE.name))
    return what_was_written(rows.mapInArrow(WriteRows(export), nullable(spark_struct(RESULT))))
