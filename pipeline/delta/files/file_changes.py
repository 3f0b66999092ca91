"""Changes the files of an upsert table, and commits them. The table is plain, or has deletion vectors.

    1. the rows of the newest records are in new files already, and the records are listed by key
       (`pipeline.delta.files.upsert_tasks`)
    2. tasks look for these keys in the files of the table
    3. it is decided which rows are dropped, from the new files and from the files of the table
       (`pipeline.delta.files.key_index`)
    4. tasks write the files with such rows again; often there are none. Small files are written into one file

If the table has deletion vectors, step 4 does not write files of the table again. Instead, deletion vectors with the dropped
rows are written. Only rows that become stale are written again, into new files.

The tasks are tasks of Spark, or threads of this process. This module needs no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.delta.chain.digest_sums import sums_by_partition
from pipeline.delta.chain.stamp_chain import NO_ROWS, RowSum, added
from pipeline.delta.export_plan import Export
from pipeline.delta.files.key_index import FOUND, FileChange, KeyIndex, UpsertDecision
from pipeline.delta.files.row_files import TableFile, Written, WrittenFile
from pipeline.delta.files.table_commits import open_table
from pipeline.delta.files.upsert_tasks import (
    FOUND_ROWS,
    REWRITTEN,
    FindRows,
    RewriteFiles,
    rewritten_of,
    unpacked,
)
from pipeline.delta.rows.row_columns import DIGEST
from pipeline.delta.table_stamp import Stamp
from pipeline.delta.vectors.vector_files import DeletionVector, read_vector, write_vectors
from pipeline.delta.vectors.vector_table import VectorTable
from pipeline.delta.without_spark.plain_table import PlainTable, conflict
from storage_engine.errors import ConflictError
from storage_engine.storage.storage_opening import open_storage

_ATTEMPTS = 5
"""How often a commit is tried if other writers commit meanwhile, but change no file."""
_THREADS = 4
"""How many tasks run at the same time without Spark. Each has one row group of a file in memory."""
_GROUP_BYTES = 32 << 20
"""The largest size of files that are written again together. So many small exports do not make many small files."""


@dataclass(frozen=True)
class ChangedFiles:
    """What an upsert does to the files of a table.

    table: the table from which the changes were computed.
    files: the new files.
    removed: the files of the table that have no rows any more, or that the new files replace.
    marked: the files of the table that stay, with their new deletion vectors.
    came, went: by partition, the rows that are added and removed; empty if the rows have no digests.
    """

    table: PlainTable | VectorTable
    files: Sequence[WrittenFile]
    removed: Sequence[TableFile]
    decision: UpsertDecision
    marked: Sequence[tuple[TableFile, DeletionVector]] = ()
    came: Mapping[int, RowSum] = field(default_factory=dict)
    went: Mapping[int, RowSum] = field(default_factory=dict)


Results = Sequence[Mapping[str, Any]]
"""Rows that tasks return."""
RunTasks = Callable[[Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], int, pa.Schema], Results]
"""Runs tasks that get the numbers from 0 to a count - 1, one each. The schema has the columns of their results."""


def run_here(
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], count: int, _: pa.Schema
) -> Results:
    """Runs tasks in threads of this process."""

    def run(number: int) -> list[Mapping[str, Any]]:
        numbers = pa.record_batch([pa.array([number])], names=["id"])
        return [row for batch in function(iter([numbers])) for row in batch.to_pylist()]

    with ThreadPoolExecutor(_THREADS) as threads:
        return [row for rows in threads.map(run, range(count)) for row in rows]


def change_files(
    run: RunTasks, export: Export, table: PlainTable | VectorTable, written: Written, index: pa.Table
) -> ChangedFiles:
    """Write the changed files.

    Args:
        table: the table from which the changes are computed, from `open_table`.
        written: the new files.
        index: the list of the records, columns as in INDEX. The files have their numbers in `written`.
    """
    before = table.files
    has_vectors = isinstance(table, VectorTable)
    with_digests = export.digest and has_vectors
    keys = KeyIndex(index)
    found = {}
    if before and len(keys.keys):
        results = run(FindRows(export, before, keys.keys, with_digests), len(before), FOUND_ROWS)
        found = {each["number"]: unpacked(each["found"]) for each in results}
    decision = keys.decide({number: rows.select(FOUND.names) for number, rows in found.items()})
    made = [TableFile(each.name, each.size, tuple(each.partition_values.items())) for each in written.files]
    new = [(made[number], decision.new[number]) for number in sorted(decision.new)]
    there = [(before[number], decision.there[number]) for number in sorted(decision.there)]
    changed = there
    if has_vectors:
        changed = [(file, replace(change, stays=True)) for file, change in there if change.stale]
    files = [each for number, each in enumerate(written.files) if number not in decision.new]
    came = dict(written.came)
    went = _dropped_sums(decision, found) if with_digests else {}
    new_groups = _grouped(new)
    groups = [*new_groups, *_grouped(changed)]
    for each in run(RewriteFiles(export, groups), len(groups), REWRITTEN) if groups else ():
        rewritten, dropped = rewritten_of(each["files"], each["went"])
        files += rewritten
        if each["number"] < len(new_groups):
            came = {partition: total - dropped.get(partition, NO_ROWS) for partition, total in came.items()}
        else:
            went = added(went, dropped)
    if isinstance(table, VectorTable):
        removed, marked = _marked(export, table, there)
    else:
        removed, marked = [file for file, _ in there], []
    return ChangedFiles(table, files, removed, decision, marked, came, went)


def _grouped(changed: Sequence[tuple[TableFile, FileChange]]) -> list[list[tuple[TableFile, FileChange]]]:
    """Groups of files of the same partition, each of at most _GROUP_BYTES, or of one file."""
    groups: list[list[tuple[TableFile, FileChange]]] = []
    size = 0
    for file, change in sorted(changed, key=lambda each: [value or "" for _, value in each[0].partition_values]):
        size += file.size
        if groups and size <= _GROUP_BYTES and groups[-1][0][0].partition_values == file.partition_values:
            groups[-1].append((file, change))
        else:
            groups.append([(file, change)])
            size = file.size
    return groups


def _dropped_sums(decision: UpsertDecision, found: Mapping[int, pa.Table]) -> dict[int, RowSum]:
    """By partition, the sums of the rows of the table that are dropped. found: the rows with their digests."""
    sums: dict[int, RowSum] = {}
    for number, change in decision.there.items():
        rows = found[number]
        dropped = rows.filter(pc.is_in(rows["row"], pa.array(change.dropped)))
        sums = added(sums, sums_by_partition(dropped["_partition"], dropped[DIGEST.name]))
    return sums


def _marked(
    export: Export, table: VectorTable, changed: Sequence[tuple[TableFile, FileChange]]
) -> tuple[list[TableFile], list[tuple[TableFile, DeletionVector]]]:
    """Write the new deletion vectors of files of the table. Returns the files that have no rows any more, and the others
    with their vectors."""
    storage = open_storage(export.table)
    gone = [(file, np.union1d(change.gone, read_vector(storage, file.vector))) for file, change in changed]
    staying = [(file, rows) for file, rows in gone if table.has_rows_left(file, len(rows))]
    vectors = write_vectors(storage, [rows for _, rows in staying])
    stays = {file for file, _ in staying}
    marked = [(file, vector) for (file, _), vector in zip(staying, vectors, strict=True)]
    return [file for file, _ in gone if file not in stays], marked


def commit_changes(export: Export, changed: ChangedFiles, stamp: Stamp) -> None:
    """Commit the files on the version of the table from which the changes were computed. If other writers have committed
    meanwhile, but changed no file, commit on the newest version.

    Raises:
        ConflictError: another writer changed the table.
    """
    table: PlainTable | VectorTable | None = changed.table
    for attempt in range(_ATTEMPTS):
        if attempt:
            table = open_table(export, None, knows_files=True)
        if table is None or type(table) is not type(changed.table) or {*table.files} != {*changed.table.files}:
            raise conflict(export.table)
        try:
            # Without another try, no commit can come between the version that was looked at and this commit.
            if isinstance(table, VectorTable):
                table.change_files(changed.files, stamp, changed.removed, changed.marked)
            else:
                table.change_files(changed.files, stamp, changed.removed, retries=0)
        except ConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return
