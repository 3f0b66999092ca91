"""Upserts rows into a table with Spark's tasks, which write files.

    1. the tasks that read the records write the rows of the newest ones into new files, and list the keys
    2. the tasks of the second job look for these keys in the files of the table; a new table needs no such job
    3. the driver decides which rows are dropped
    4. the tasks of the third job write the files with such rows again

`pipeline.delta.files.file_changes` has the steps 2 to 4, and the commit. No row goes through Spark's shuffle, and the rows
that are replaced are read once, also if they have digests. The driver holds the list of the keys. If the list would be
larger than INDEX_BYTES, the new files are deleted, and Spark makes the upsert with a MERGE, as in all other tables
(`pipeline.delta.table_writing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import add

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakelog.spark.splits import RecordTask
from lakelog.spark.types import nullable, spark_struct
from pipeline.delta.export_plan import Export, ExportMode, ExportPlan
from pipeline.delta.files.file_changes import Results, RunTasks
from pipeline.delta.files.key_index import INDEX
from pipeline.delta.files.row_files import Written
from pipeline.delta.files.table_commits import is_plain
from pipeline.delta.files.upsert_tasks import REDUCED, ReduceRecords, unpacked

INDEX_BYTES = 128 << 20
"""The largest size of the list of the keys: about 2.5 million keys of 20 bytes."""


def can_upsert(export: Export, plan: ExportPlan) -> bool:
    """Whether an upsert deletes no rows whose keys have no record, and the table has no partitions and all columns, is plain
    or has deletion vectors, or does not exist yet."""
    if export.mode is not ExportMode.UPSERT or plan.rebuilt:
        return False
    return is_plain(export, None if plan.head is None else plan.head.version)


def upserting(export: Export) -> RecordTask:
    """Writes the rows of the newest records into files. The result has a row for each record that cannot be decoded, and
    a row for each task (`what_was_reduced`)."""
    return RecordTask(ReduceRecords(export, INDEX_BYTES), REDUCED, by_key=True)


def run_tasks(spark: SparkSession) -> RunTasks:
    """Runs tasks with Spark."""

    def run(
        function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], count: int, columns: pa.Schema
    ) -> Results:
        numbers = spark.range(0, count, 1, count)
        found = numbers.mapInArrow(function, nullable(spark_struct(columns))).collect()
        return [each.asDict() for each in found]

    return run


def results_of(rows: DataFrame) -> Results:
    """What the tasks of `upserting` return, without the records that cannot be decoded. If the lists of all tasks together
    are too large, the driver does not load them: each list is null."""
    done = rows.where(F.col("_written").isNotNull())
    lists = F.col("_index")
    sizes = done.select(F.length(lists)).collect()  # a sum in Python needs no shuffle
    if sum(size or 0 for (size,) in sizes) > INDEX_BYTES:
        lists = F.lit(None).cast("binary")
    return [each.asDict() for each in done.select("_written", lists.alias("_index")).collect()]


def what_was_reduced(results: Results) -> tuple[Written, pa.Table | None]:
    """What the tasks wrote, and the list of the records, columns as in INDEX; None if the list is too large. In the
    list, the files have their numbers in Written.files."""
    parts = [Written.from_json(each["_written"]) for each in results]
    written = reduce(add, parts, Written())
    lists = [each["_index"] for each in results]
    if None in lists:
        return written, None
    index = [INDEX.empty_table()]
    first = 0
    for part, packed_list in zip(parts, lists, strict=True):
        entries = unpacked(packed_list)
        files = pc.add(entries["file"], pa.scalar(first, pa.int32()))
        index.append(entries.set_column(INDEX.get_field_index("file"), INDEX.field("file"), files))
        first += len(part.files)
    return written, pa.concat_tables(index)
