"""Exports a small increment without Spark, in about two seconds.

The result is the same as the result of `pipeline.delta.exporting`: the same rows, the same dead letters, and one commit
with a stamp of the same form. Exports with and without Spark may write to one table in any order, and at the same time.
Both kinds of exports share the code for the plan, the guard, the limit of dead letters, and the check after the commit.

In five cases, Spark must do the export. Then `export_without_spark` writes nothing and returns None:

- the increment has `spark_records` records or more, or its records need more than 64 MiB in memory
- the table's columns must be changed, or the table is not plain (`pipeline.delta.without_spark.plain_table`). An upsert also
  writes to a table with deletion vectors (`pipeline.delta.vectors.vector_table`)
- a record cannot be decoded whose dead letter has an outcome, so the dead letter must be opened again
- the export computes existing rows again from the log (after a RESTORE, or with --from-offset)
- the settings ask for clustering columns, or for deletion vectors in a table that is not upserted

An upsert changes the files of the table as Spark's tasks do (`pipeline.delta.files.file_changes`), but in threads of this
process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.delta.chain.digest_sums import sums_by_partition
from pipeline.delta.dead_letter_share import (
    Counts,
    Place,
    ReasonCount,
    TooManyDeadLettersError,
    recent_after,
    too_many_dead_letters,
)
from pipeline.delta.dead_letters import EXPORT_DEAD_LETTERS
from pipeline.delta.export_plan import (
    Export,
    ExportMode,
    ExportPlan,
    ExportResult,
    Register,
    new_stamp,
)
from pipeline.delta.files.file_changes import change_files, commit_changes, run_here
from pipeline.delta.files.key_index import INDEX
from pipeline.delta.files.row_files import RowFiles, Written, counts_of, record_counts
from pipeline.delta.files.table_commits import create_empty, open_table
from pipeline.delta.files.upsert_tasks import listed
from pipeline.delta.layout_columns import as_partitioned
from pipeline.delta.reads.whole_reads import Newest, check_plan_read, no_other_work
from pipeline.delta.rows.row_columns import DIGEST, row_columns
from pipeline.delta.rows.row_decoding import counted, counted_columns, newest_of_keys
from pipeline.delta.table_history import as_in_table, check_committed, head_as_before, read_head
from pipeline.delta.table_properties import DEAD_LETTER_PROPERTIES
from pipeline.delta.table_stamp import NextLink, Recent, Stamp, TableHead, letters_stamp, perhaps_written
from pipeline.delta.vectors.vector_table import VectorTable
from pipeline.delta.without_spark.plain_table import PlainTable, conflict
from pipeline.delta.without_spark.topic_records import ReadBatches
from pipeline.settings.job_keys import DEFAULT_MAX_SHARE, DEFAULT_SPARK_RECORDS
from storage_engine.errors import ConflictError

_MOST_BYTES = 64 << 20
"""The largest size of an increment's records in memory, before they are decoded."""


def export_without_spark(
    export: Export,
    plan: ExportPlan,
    read: ReadBatches,
    register: Register = lambda _: None,
    max_share: float = DEFAULT_MAX_SHARE,
    spark_records: int = DEFAULT_SPARK_RECORDS,
    *,
    accepted: bool = False,
    newest: Newest = no_other_work,
) -> ExportResult | None:
    """Make the planned export, or return None: then Spark must make it.

    Args:
        plan: there are records to read.
        read: called at most once, with the partitions that have new records.
        register: called with the table's positions before any record is read.
        max_share: the largest allowed share of dead letters.
        spark_records: Spark exports at least this many records.
        accepted: the command line accepts the dead letters.
        newest: called after the records were read.

    Raises:
        TooManyDeadLettersError: more records than allowed cannot be decoded. Nothing was committed.
        LogChangedError: tombstones may be missing among the records. Nothing was committed.
        ConflictError: another writer changed the table meanwhile. Nothing is lost.
        StorageError: a table cannot be read or written.
    """
    export = as_in_table(export, plan.head)
    head = plan.head
    upserts = export.mode is ExportMode.UPSERT
    needs_spark = export.layout.cluster_by or (export.layout.deletion_vectors and not upserts)
    if plan.rebuilt or spark_records == 0 or needs_spark:
        return None
    table = None if head is None else open_table(export, head.version)
    letters = read_head(export.dead_letters)
    letters_fit = letters is None or _open_letters(export, letters) is not None
    if (head is not None and table is None) or not letters_fit:
        return None
    if table is not None:
        export = as_partitioned(export, table.partition_by)  # the settings need not say it again
        if isinstance(table, VectorTable) and export.layout.deletion_vectors is False:
            return None
    register(plan.before)
    batches = _read(read, plan, spark_records)
    if batches is None:
        return None
    check_plan_read(export, plan, newest)
    decode = newest_of_keys if upserts else counted
    decoded = pa.Table.from_batches(decode(batches, export), schema=counted_columns(export))
    bad = decoded.filter(decoded["_reason"].is_valid())
    counts = counts_of(Written(counts=record_counts(decoded, bad)))
    recent = recent_after(plan.recent, counts, max_share, accepted=accepted)
    if recent is None:
        raise _too_many(export, plan, bad, counts, max_share)
    return _write_increment(export, plan, table, decoded, bad, counts, recent)


def _create(export: Export) -> PlainTable | VectorTable:
    table = open_table(export, 0) if create_empty(export) else None
    if table is None:
        raise conflict(export.table)
    return table


def _write_increment(
    export: Export,
    plan: ExportPlan,
    table: PlainTable | VectorTable | None,
    decoded: pa.Table,
    bad: pa.Table,
    counts: Counts,
    recent: Recent,
) -> ExportResult | None:
    """Create the table if there is none. Then write the dead letters. Then write the rows and the position. None: Spark
    must write them."""
    head = plan.head
    if table is None or head is None:
        table = _create(export)
        head = head_as_before(export, None)
    table_id = head.table_id or table.table_id
    stamp = new_stamp(export, head, table_id, plan.positions, recent, plan.began)
    if counts.dead_letters:
        letters = _look_up_letters(export, bad, table_id, plan.start, plan.positions)
        if letters.reopens:
            return None
        _append_letters(export, letters, stamp)
    link = NextLink(head, plan.to_read[0], counts.by_partition) if export.digest else None
    changes, stamp = _write(export, table, decoded, stamp, link)
    commit = check_committed(export.table, head.version, stamp)
    return ExportResult(
        records=counts.records,
        tombstones=counts.tombstones,
        written=changes.written,
        deleted=changes.deleted,
        became_stale=changes.became_stale,
        reasons=counts.reasons,
        without_row=changes.without_row,
        plan=plan,
        table_version=commit.version,
    )


def _read(read: ReadBatches, plan: ExportPlan, spark_records: int) -> list[pa.RecordBatch] | None:
    """The records of the partitions that have new records; None if they are too many or too large."""
    batches = []
    count = size = 0
    for batch in read(*plan.to_read, plan.required):
        batches.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if count >= spark_records or size > _MOST_BYTES:
            return None
    return batches


class _Changes(NamedTuple):
    """How many rows an export has changed, as in ExportResult."""

    written: int
    deleted: int = 0
    became_stale: int = 0
    without_row: int = 0


def _write(
    export: Export, table: PlainTable | VectorTable, decoded: pa.Table, stamp: Stamp, link: NextLink | None
) -> tuple[_Changes, Stamp]:
    """Write the rows and the position, in one commit. Returns also the stamp with the chain.

    Args:
        link: continues the chain; None: the rows have no digests.
    """
    if isinstance(table, VectorTable) or export.mode is ExportMode.UPSERT:
        return _change_files(export, table, decoded, stamp, link)
    rows = decoded.filter(decoded["_reason"].is_null()).select(row_columns(export).names)
    if link is not None:
        stamp = link.add_to(stamp, sums_by_partition(rows["_partition"], rows[DIGEST.name]))
    table.append(rows, stamp, stamp.version)
    return _Changes(len(rows)), stamp


def _change_files(
    export: Export, table: PlainTable | VectorTable, decoded: pa.Table, stamp: Stamp, link: NextLink | None
) -> tuple[_Changes, Stamp]:
    """As `_write`, for an upsert."""
    index = [INDEX.empty_table()]
    with RowFiles(export) as files:
        for batch in decoded.combine_chunks().to_batches():  # one batch, so each partition of the table gets one file
            is_bad = batch["_reason"].is_valid()
            index += listed(batch.filter(pc.invert(is_bad)), batch.filter(is_bad), files)
    changed = change_files(run_here, export, table, files.written, pa.concat_tables(index))
    found = changed.decision
    if link is not None:
        stamp = link.add_to(stamp, changed.came, changed.went, found.newly_stale)
    commit_changes(export, changed, stamp)
    return _Changes(found.written, found.deleted, found.newly_stale.total(), found.without_row), stamp


# --- Dead letters -----------------------------------------------------------------------------------------------


def _too_many(
    export: Export, plan: ExportPlan, bad: pa.Table, counts: Counts, max_share: float
) -> TooManyDeadLettersError:
    bad = bad.filter(pc.invert(bad["_tombstone"]))
    by_reason = Counter(zip(bad["_reason"].to_pylist(), bad["_detail"].to_pylist(), strict=True))
    offsets: dict[int, list[int]] = {}
    for partition, offset in zip(bad["_partition"].to_pylist(), bad["_offset"].to_pylist(), strict=True):
        offsets.setdefault(partition, []).append(offset)
    ordered = sorted(by_reason.items(), key=lambda each: (-each[1], each[0][0], each[0][1] or ""))
    return too_many_dead_letters(
        export.table, export.section, counts.decodable, plan.recent, max_share,
        [ReasonCount(reason, detail, count) for (reason, detail), count in ordered],
        [Place(partition, min(found), max(found), len(found)) for partition, found in sorted(offsets.items())],
        plan.to_read[1],
    )  # fmt: skip


class _Letters(NamedTuple):
    """The dead-letter table before an export.

    table: None if there is no table yet.
    new: the records that are not in the table as open dead letters.
    reopens: whether some of these records are in the table as dead letters with an outcome.
    """

    head: TableHead | None
    table: PlainTable | None
    new: pa.Table
    reopens: bool = False


def _open_letters(export: Export, head: TableHead) -> PlainTable | None:
    return PlainTable.open(export.dead_letters, head.version, EXPORT_DEAD_LETTERS)


def _look_up_letters(
    export: Export, bad: pa.Table, table_id: str, start: Mapping[int, int], end: Mapping[int, int]
) -> _Letters:
    """Look up which records are dead letters already.

    As with Spark (`pipeline.delta.table_writing.append_undecodable`), only dead letters below the positions of the
    dead-letter table are looked up.

    Args:
        bad: the records that cannot be decoded.
        start, end: by partition, the first offset that was read, and the offset after the last one.
    """
    head = read_head(export.dead_letters, table_id)
    if head is None:
        return _Letters(None, None, bad)
    table = _open_letters(export, head)
    if table is None:
        raise ConflictError(
            export.dead_letters,
            "another writer changed the table's columns",
            "Nothing is lost: start the job again.",
        )
    repeated = perhaps_written(head, start, end)
    if not repeated:
        return _Letters(head, table, bad)
    is_open = table.letters_below(repeated, table_id)
    there = [
        is_open.get(place) for place in zip(bad["_partition"].to_pylist(), bad["_offset"].to_pylist(), strict=True)
    ]
    return _Letters(head, table, bad.filter(pa.array([not each for each in there], pa.bool_())), False in there)


def _append_letters(export: Export, found: _Letters, stamp: Stamp) -> None:
    """Append the dead letters that are not in their table already."""
    bad, count = found.new, len(found.new)
    if not count:
        return
    table = found.table or PlainTable.create(export.dead_letters, EXPORT_DEAD_LETTERS, DEAD_LETTER_PROPERTIES)
    letters = {
        "reason": bad["_reason"],
        "detail": bad["_detail"],
        "topic": pa.repeat(pa.scalar(export.topic), count),
        "partition": bad["_partition"],
        "offset": bad["_offset"],
        "timestamp": bad["_timestamp"],
        "key": bad["_key"],
        "value": bad["_value"],
        "headers": bad["_bad_headers"],
        "table_id": pa.repeat(pa.scalar(stamp.table_id), count),
        "outcome": pa.nulls(count, pa.string()),
    }
    guard = 0 if found.head is None else found.head.next_guard
    table.append(pa.table(letters, schema=EXPORT_DEAD_LETTERS), letters_stamp(stamp, found.head), guard)
