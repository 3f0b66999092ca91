"""Upserts rows into a plain table with Spark's tasks, and commits the files with the library deltalake.

    1. the tasks that read the records write the rows of the newest ones into new files, and list the keys
    2. the tasks of the second job look for these keys in the files of the table; a new table needs no such job
    3. the driver decides which rows are dropped, from the new files and from the files of the table
    4. the tasks of the third job write the files with such rows again; often there are none

So no row goes through Spark's shuffle, and the rows that are replaced are read once, also if they have digests. The driver
holds the list of the keys. If the list would be larger than INDEX_BYTES, the new files are deleted, and Spark makes the
upsert with a MERGE, as in all other tables (`pipeline.delta.table_writing`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from lakelog.spark.splits import RecordTask
from lakelog.spark.types import nullable, spark_struct
from pipeline.delta.chain.stamp_chain import NO_ROWS, RowSum, added
from pipeline.delta.export_plan import Export, ExportMode, ExportPlan
from pipeline.delta.files.key_index import INDEX, FileChange, KeyIndex, UpsertDecision
from pipeline.delta.files.row_files import Written, WrittenFile
from pipeline.delta.files.upsert_tasks import (
    FOUND_ROWS,
    REDUCED,
    REWRITTEN,
    FindRows,
    ReduceRecords,
    RewriteFiles,
    rewritten_of,
    unpacked,
)
from pipeline.delta.rows.row_columns import table_columns
from pipeline.delta.table_stamp import Stamp
from pipeline.delta.without_spark.plain_table import PlainTable, TableFile
from storage_engine.errors import ConflictError

INDEX_BYTES = 256 << 20
"""The largest size of the list of the keys: about five million keys of 20 bytes."""
_ATTEMPTS = 5
"""How often a commit is tried if other writers commit meanwhile, but change no file."""


@dataclass(frozen=True)
class ChangedFiles:
    """What an upsert does to the files of a table.

    before: the files of the table from which the changes were computed.
    files: the new files.
    removed: the files of the table that the new files replace.
    came, went: by partition, the rows that are added and removed; empty if the rows have no digests.
    """

    before: Sequence[TableFile]
    files: Sequence[WrittenFile]
    removed: Sequence[TableFile]
    decision: UpsertDecision
    came: Mapping[int, RowSum] = field(default_factory=dict)
    went: Mapping[int, RowSum] = field(default_factory=dict)


def can_upsert(export: Export, plan: ExportPlan) -> bool:
    """Whether an upsert deletes no rows whose keys have no record, and the table is plain and has all columns, or does
    not exist yet."""
    if export.mode is not ExportMode.UPSERT or plan.rebuilt or export.layout.needs_spark:
        return False
    if plan.head is None:
        return True
    table = PlainTable.open(export.table, plan.head.version, table_columns(export))
    # A clone has files of another folder, and the names of some files are encoded.
    return table is not None and not any({"%", ":"} & {*each.name} or each.name[0] == "/" for each in table.files)


def upserting(export: Export) -> RecordTask:
    """Writes the rows of the newest records into files. The result has a row for each record that cannot be decoded, and
    a row for each task (`what_was_reduced`)."""
    return RecordTask(ReduceRecords(export, INDEX_BYTES), REDUCED, by_key=True)


def what_was_reduced(rows: DataFrame) -> tuple[Written, pa.Table | None]:
    """What the tasks wrote, and the list of the records, columns as in INDEX; None if the list is too large. In the
    list, the files have their numbers in Written.files."""
    found = rows.where(F.col("_written").isNotNull()).select("_written", "_index").collect()
    parts = [Written.from_json(each["_written"]) for each in found]
    written = reduce(add, parts, Written())
    if any(each["_index"] is None for each in found) or sum(len(each["_index"]) for each in found) > INDEX_BYTES:
        return written, None
    index = [INDEX.empty_table()]
    first = 0
    for part, each in zip(parts, found, strict=True):
        entries = unpacked(each["_index"])
        number = entries.schema.get_field_index("file")
        files = pa.compute.add(entries["file"], pa.scalar(first, pa.int32()))
        index.append(entries.set_column(number, INDEX.field(number), files))
        first += len(part.files)
    return written, pa.concat_tables(index)


def change_files(spark: SparkSession, export: Export, version: int, written: Written, index: pa.Table) -> ChangedFiles:
    """Write the changed files.

    Args:
        version: the version of the table from which the changes are computed.
        written, index: from `what_was_reduced`.
    """
    table = PlainTable.open(export.table, version, table_columns(export))
    if table is None:
        raise _conflict(export)
    before = table.files
    keys = KeyIndex(index)
    find = FindRows(export, [(each.name, each.size) for each in before], keys.keys)
    found = {each["number"]: unpacked(each["found"]) for each in _run(spark, find, len(before), FOUND_ROWS)}
    decision = keys.decide(found)
    new = [(written.files[number], decision.new[number]) for number in sorted(decision.new)]
    there = [(before[number], decision.there[number]) for number in sorted(decision.there)]
    changed: list[tuple[WrittenFile | TableFile, FileChange]] = [*new, *there]
    rewrite = RewriteFiles(export, [(file.name, file.size, change) for file, change in changed])
    files = [each for number, each in enumerate(written.files) if number not in decision.new]
    sums: tuple[dict[int, RowSum], dict[int, RowSum]] = ({}, {})
    for each in _run(spark, rewrite, len(changed), REWRITTEN):
        made, dropped = rewritten_of(each["files"], each["went"])
        files += made
        is_old = each["number"] >= len(new)
        sums[is_old].update(added(sums[is_old], dropped))
    came = {each: total - sums[0].get(each, NO_ROWS) for each, total in written.came.items()}
    return ChangedFiles(before, files, [file for file, _ in there], decision, came, sums[1])


def _run(spark: SparkSession, function: Callable[..., object], count: int, columns: pa.Schema) -> list[Row]:
    """The rows of tasks that get the numbers from 0 to count - 1, one each."""
    if not count:
        return []
    numbers = spark.range(0, count, 1, count)
    return numbers.mapInArrow(function, nullable(spark_struct(columns))).collect()


def commit_changes(export: Export, changed: ChangedFiles, stamp: Stamp) -> None:
    """Commit the files on the newest version of the table, which must have the same files as the version from which the
    changes were computed.

    Raises:
        ConflictError: another writer changed the table.
    """
    for attempt in range(_ATTEMPTS):
        table = PlainTable.open(export.table, None, table_columns(export))
        if table is None or {*table.files} != {*changed.before}:
            raise _conflict(export)
        try:
            # Without another try, no commit can come between the version that was looked at and this commit.
            table.change_files(changed.files, stamp, changed.removed, retries=0)
        except ConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def _conflict(export: Export) -> ConflictError:
    return ConflictError(
        export.table, "another writer changed the table during the export", "Nothing is lost: start the job again."
    )
