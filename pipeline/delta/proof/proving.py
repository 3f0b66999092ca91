"""Proves that an exported table equals its topic, without Spark.

Each record of the log below the table's position is decoded again, and compared with the table. There are three results
for a row:

    equal                   the row has the values of its record, and the log has no record that must be the row instead
    different               no honest export can have made the row; or a record that must be a row has none
    no longer provable      the log no longer has the record, because of compaction or retention; or today's model no
                            longer accepts the record; or the row is older than a column of the table

If the table has digests, the proof also checks the chain of its stamps (`pipeline.delta.proof.chain_proof`), which
covers rows that the log can no longer prove. Without digests, it compares only the positions in the stamps.

The log may change during the proof. So the proof first reads the table's version and position, then the log. Last, it
reads the offsets below which compaction and retention may have removed records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.delta.export_plan import Export, ExportMode, PartitionOffsets, decide_export
from pipeline.delta.layout_columns import as_partitioned
from pipeline.delta.proof.appended_rows import compare_appended
from pipeline.delta.proof.chain_proof import ChainProof, Since, changed_since, prove_chain
from pipeline.delta.proof.compared_rows import Places
from pipeline.delta.proof.exported_table import ExportedTable
from pipeline.delta.proof.findings import Findings, PartitionEvidence
from pipeline.delta.proof.slices import Slice, slices_of
from pipeline.delta.proof.stamp_order import compare_stamps
from pipeline.delta.proof.upserted_rows import compare_upserted
from pipeline.delta.rows.field_paths import shown_field
from pipeline.delta.rows.row_columns import DIGEST, table_columns
from pipeline.delta.rows.row_decoding import decode_batches, decoded_columns
from pipeline.delta.without_spark.topic_records import ReadBatches

Offsets = Mapping[int, PartitionOffsets]
"""The offsets of the topic's partitions, from one version of its state."""


@dataclass
class Proof:
    """The result of a proof.

    version: the version of the table.
    rows: the number of its rows.
    records: the number of records that were read from the log.
    not_compared: columns that the table and the model do not have in common.
    chain: the proof of the chain of digests; None if the table has none.
    has_digests: whether the table has the column of digests, perhaps without a chain.
    foreign: a commit of another writer that changed rows after the last export; None if there is none.
    was_restored: whether the table has the rows of an older version, because nothing was exported after a RESTORE.
    """

    version: int
    rows: int = 0
    records: int = 0
    not_compared: tuple[str, ...] = ()
    findings: Findings = field(default_factory=Findings)
    chain: ChainProof | None = None
    has_digests: bool = False
    foreign: int | None = None
    was_restored: bool = False

    @property
    def covered(self) -> int:
        """The number of rows and records that the log can no longer prove, but that the chain of stamps covers."""
        if self.chain is None or self.chain.findings.differing:
            return 0
        return self.findings.unprovable.total() - self.findings.unprovable_stale

    @property
    def answer(self) -> str:
        """The result in words."""
        if self.findings.differing:
            return "different"
        return "equal as far as the log can tell" if self.findings.unprovable.total() else "equal"


def prove_table(
    export: Export,
    table: ExportedTable,
    ranges: Offsets,
    read: ReadBatches,
    ranges_after: Callable[[], Offsets],
    since: int | None = None,
) -> Proof:
    """Compare a table with the log.

    Args:
        ranges: read after the table was opened.
        read: reads records of the log. It is called once for each part of the table.
        ranges_after: called when the log was read.
        since: a version of the table; only what changed after it is compared. None: the whole table.

    Raises:
        ExportRefusedError: the table belongs to another topic or mode, or is ahead of the log.
        StorageError: the table or the log cannot be read.
        CorruptionError: committed bytes have changed.
    """
    decide_export(export, table.head, table.positions, ranges)  # checks the topic, the mode and the position
    export = replace(export, digest=False)  # the chain compares the digests
    export = as_partitioned(export, table.partition_columns)
    changed = None if since is None else changed_since(table, since)
    absent = [name for name in table_columns(export).names if name not in table.columns.names]
    proof = Proof(
        table.head.version,
        not_compared=tuple(map(shown_field, (*absent, *sorted(table.inner_absent, key=shown_field), *table.others))),
        has_digests=DIGEST.name in table.all_columns,
        foreign=table.head.foreign,
        was_restored=table.head.newest != table.head.current,
    )
    proof.chain = prove_chain(table, changed)
    later_columns = table.later_columns(is_unchanged=proof.chain is not None and not proof.chain.findings.differing)
    keyed = export.mode is ExportMode.UPSERT
    size = sum(each.last_stable_offset - each.log_start_offset for each in ranges.values())
    for part in slices_of(table.count() + size, by_key=keyed):
        records, later = _records(export, table, ranges, read, part, changed)
        rows = table.rows(part, None if changed is None else _changed_rows(changed, records, keyed=keyed))
        proof.rows += len(rows)
        rows = _with_place(rows, proof.findings)
        evidence = _evidence(table, ranges, ranges_after(), changed)
        places = Places(records)
        is_open = table.is_open_letter(places.partitions, places.offsets)
        if keyed:
            first_partitions = table.began.partitions if table.began is not None else 1
            found = compare_upserted(
                records, is_open, later, rows, evidence, later_columns, first_partitions, table.export_of
            )
        else:
            found = compare_appended(records, is_open, rows, evidence, later_columns)
        proof.findings.add(found)
        proof.records += len(records)
    if proof.chain is not None:
        proof.findings.add(proof.chain.findings)
    elif table.head.current is not None:
        compare_stamps(table.commits, table.head.current, None, proof.findings)
    return proof


def _with_place(rows: pa.Table, findings: Findings) -> pa.Table:
    """The rows that have a partition, an offset and a timestamp. Each other row is a difference."""
    is_placed = pc.and_(
        pc.and_(rows["_partition"].is_valid(), rows["_offset"].is_valid()), rows["_timestamp"].is_valid()
    )
    chosen = rows.filter(is_placed)
    for _ in range(len(rows) - len(chosen)):
        findings.differs(None, None, "the row has null in _partition, _offset or _timestamp")
    return chosen


def _changed_rows(since: Since, records: pa.Table, *, keyed: bool) -> Callable[[pa.RecordBatch], pa.BooleanArray]:
    """Chooses the rows that changed, and in an upsert table also the rows that had to change."""
    keys = records["_key"].filter(records["_reason"].is_null()).combine_chunks()

    def are_changed(rows: pa.RecordBatch) -> pa.BooleanArray:
        starts = _positions_of(since.first, rows["_partition"])
        changed = pa.array(np.array(rows["_offset"].fill_null(-1).to_numpy(zero_copy_only=False), np.int64) >= starts)
        return pc.or_(changed, pc.is_in(rows["_key"], keys)) if keyed else changed

    return are_changed


def _records(
    export: Export, table: ExportedTable, ranges: Offsets, read: ReadBatches, part: Slice, since: Since | None
) -> tuple[pa.Table, pa.ChunkedArray]:
    """The records of a part below the table's positions, decoded, and the keys of its records above the positions."""
    keyed = export.mode is ExportMode.UPSERT
    starts = {} if since is None else since.first
    first = {number: max(each.log_start_offset, starts.get(number, 0)) for number, each in ranges.items()}
    end = {
        number: each.last_stable_offset if keyed else table.positions.get(number, 0) for number, each in ranges.items()
    }
    waiting = [number for number in first if first[number] < end[number]]
    later: list[pa.Array] = []

    def exported(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            chosen = batch.filter(part.contains(batch["key"], batch["offset"]))
            positions = _positions_of(table.positions, chosen["partition"])
            is_exported = np.array(chosen["offset"].to_numpy(zero_copy_only=False), np.int64) < positions
            later.append(chosen["key"].filter(pa.array(~is_exported)))
            yield chosen.filter(pa.array(is_exported))

    batches = read({each: first[each] for each in waiting}, {each: end[each] for each in waiting}, {})
    decoded = pa.Table.from_batches(decode_batches(exported(batches), export), schema=decoded_columns(export))
    return decoded, pa.chunked_array(later, pa.binary())


def _positions_of(positions: Mapping[int, int], partitions: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    numbers, places = np.unique(partitions.fill_null(-1).to_numpy(zero_copy_only=False), return_inverse=True)
    return np.array([positions.get(int(each), 0) for each in numbers], np.int64)[places]


def _evidence(table: ExportedTable, read: Offsets, after: Offsets, since: Since | None) -> dict[int, PartitionEvidence]:
    began = table.began
    return {
        number: PartitionEvidence(
            table.positions.get(number, 0),
            each.log_start_offset,
            each.compacted_end,
            each.tombstones_end,
            number not in read or each.compacted_end > read[number].last_stable_offset,
            None if began is None else began.offsets.get(number, 0),
            0 if since is None else since.first.get(number, 0),
        )
        for number, each in after.items()
    }
