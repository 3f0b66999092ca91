"""Proves that the rows of a table are the rows that its exports wrote, with the digests in the table and in the stamps.

A row of the table can be right in two ways. The log may still have its record, so the row can be compared with the
record. Or the chain of stamps shows that the row has not changed since an export wrote it. This module checks the
chain:

- Each row has the content of its digest.
- For each partition, the number of rows and the sum of their digests are those of the newest stamp.
- Each stamp follows from the stamp before it (`pipeline.delta.proof.stamp_order`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from pipeline.delta.chain.digest_sums import sums_by_partition
from pipeline.delta.chain.row_digest import row_digests
from pipeline.delta.chain.stamp_chain import NO_ROWS, Chain, RowSum, added
from pipeline.delta.export_plan import ExportRefusedError
from pipeline.delta.proof.exported_table import ExportedTable
from pipeline.delta.proof.findings import Findings
from pipeline.delta.proof.stamp_order import compare_stamps
from pipeline.delta.rows.row_columns import DIGEST, STALE_SINCE
from pipeline.delta.table_history import find_head, stamp_in


@dataclass(frozen=True)
class Since:
    """The part of a table that changed after a version.

    version: the version of the table.
    first: by partition, the offset below which no later commit changed rows.
    """

    version: int
    first: Mapping[int, int]

    def is_changed(self) -> ds.Expression:
        """The filter of the rows that changed."""
        changed = ds.scalar(False)
        others = ds.scalar(True)
        for partition, offset in self.first.items():
            here = ds.field("_partition") == partition
            changed = changed | (here & (ds.field("_offset") >= offset))
            others = others & ~here
        return changed | others


@dataclass(frozen=True)
class ChainProof:
    """The result.

    rows: the number of rows that were compared with their digests.
    stamps: the number of stamps that were checked.
    oldest: the version of the oldest of these stamps.
    findings: the differences.
    """

    rows: int
    stamps: int
    oldest: int
    findings: Findings = field(default_factory=Findings)


def changed_since(table: ExportedTable, version: int) -> Since:
    """The part of a table that changed after a version.

    Raises:
        ExportRefusedError: the log does not have this version, or has no stamp with a chain up to it.
    """
    older = [each for each in table.commits if each.version <= version]
    before = find_head(older, lambda: older[-1].version, lambda _: True).current if older else None
    if table.chain is None or before is None or before.chain is None or older[0].version != version:
        stamps = ((each.version, stamp_in(each)) for each in table.commits)
        chained = [number for number, stamp in stamps if stamp is not None and stamp.chain is not None]
        raise ExportRefusedError(
            table.path,
            f"has no version {version} with a chain of digests in its log",
            f"Choose a version from {min(chained)} to {table.head.version}, or run prove without --since."
            if table.chain is not None and chained
            else "Run prove without --since. A rebuild of the table begins a chain.",
        )
    later = (each for each in table.commits if each.version > version)
    first = dict(before.positions)
    for stamp in map(stamp_in, later):
        if stamp is None:
            continue
        links = {} if stamp.chain is None else stamp.chain.partitions
        for partition in stamp.positions:
            start = links[partition].first if partition in links else stamp.positions[partition]
            first[partition] = min(first.get(partition, 0), start)
    first = {each: min(offset, table.positions.get(each, 0)) for each, offset in first.items()}
    return Since(version, first)


def prove_chain(table: ExportedTable, since: Since | None) -> ChainProof | None:
    """Check the chain of a table; None if it has none.

    Args:
        since: compare only rows of this part with their digests, and only stamps after its version with one another. The
            sums cover all rows in any case. If another writer changed rows after the last export, all rows are compared
            with their digests.

    Raises:
        StorageError: the table cannot be read.
        UnsupportedError: a column has a type that no export writes.
    """
    current, chain = table.head.current, table.chain
    if current is None or chain is None:
        return None
    findings = Findings()
    sums: dict[int, RowSum] = {}
    stamps = compare_stamps(table.commits, current, None if since is None else since.version, findings)
    if table.digest_type != DIGEST.type:
        findings.differs(None, None, f"column {DIGEST.name} is {table.digest_type or 'missing'}")
        return ChainProof(0, len(stamps), stamps[-1], findings)
    rows = 0
    left_out = {STALE_SINCE.name, *table.made_by_delta}
    names = [name for name in table.all_columns if name not in left_out]
    changed = None if since is None or table.head.foreign is not None else since.is_changed()
    if changed is not None:
        for batch in table.batches(["_partition", DIGEST.name]):
            sums = added(sums, sums_by_partition(batch["_partition"], batch[DIGEST.name]))
    for batch in table.batches(names, changed):
        rows += batch.num_rows
        _compare_content(batch, table, findings)
        if changed is None:
            sums = added(sums, sums_by_partition(batch["_partition"], batch[DIGEST.name]))
    _compare_sums(table, chain, stamps[0], sums, findings)
    return ChainProof(rows, len(stamps), stamps[-1], findings)


def _compare_content(batch: pa.RecordBatch, table: ExportedTable, findings: Findings) -> None:
    for row in _differing(batch, table).select(["_partition", "_offset", DIGEST.name]).to_pylist():
        has_digest = row[DIGEST.name] is not None
        problem = "the row does not fit its digest" if has_digest else "the row has no digest"
        findings.differs(row["_partition"], row["_offset"], problem)


def _differing(batch: pa.RecordBatch, table: ExportedTable) -> pa.RecordBatch:
    """The rows that do not fit their digest. The model may have got or lost a column with a default since a row was
    written, so the digest of a row may contain the column or not."""
    usual = table.with_default.difference(table.columns.names)
    for number in range(len(table.with_default) + 1):
        for others in combinations(sorted(table.with_default), number):
            if batch.num_rows:
                left_out = usual.symmetric_difference(others)
                digests = row_digests(batch.select([each for each in batch.schema.names if each not in left_out]))
                batch = batch.filter(pc.invert(pc.fill_null(pc.equal(batch[DIGEST.name], digests), False)))
    return batch


def _compare_sums(
    table: ExportedTable, chain: Chain, version: int, sums: Mapping[int, RowSum], findings: Findings
) -> None:
    wanted = chain.sums
    who = "" if table.head.foreign is None else f"; another writer committed version {table.head.foreign}"
    for partition in sorted({*wanted, *sums}):
        there, stamped = sums.get(partition, NO_ROWS), wanted.get(partition, NO_ROWS)
        if there.rows != stamped.rows:
            findings.differs(
                partition, None, f"{there.rows} rows, but {stamped.rows} in the stamp of version {version}{who}"
            )
        elif there != stamped:
            findings.differs(partition, None, f"another sum of digests than in the stamp of version {version}{who}")
