"""Proves that the rows of a table are the rows that its exports wrote, with the digests in the table and in the stamps.

A row of the table can be right in two ways. The log may still have its record, so the row can be compared with the
record. Or the chain of stamps shows that the row has not changed since an export wrote it. This module checks the
chain:

- Each row has the content of its digest.
- For each partition, the number of rows and the sum of their digests are those of the newest stamp.
- Each stamp follows from the stamp before it, as far as the table's log goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from pipeline.delta.chain.digest_sums import sums_by_partition
from pipeline.delta.chain.row_digest import row_digests
from pipeline.delta.chain.stamp_chain import NO_ROWS, Chain, RowSum, added, seal_of
from pipeline.delta.export_plan import ExportRefusedError
from pipeline.delta.proof.exported_table import ExportedTable
from pipeline.delta.proof.findings import Findings
from pipeline.delta.rows.row_columns import DIGEST, STALE_SINCE
from pipeline.delta.table_history import Commit, find_head
from pipeline.delta.table_stamp import Stamp, stamp_document


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
    if not older or older[0].version != version or table.head.version < version:
        raise ExportRefusedError(
            table.path,
            f"has no commit of version {version} in its log, or the version is not older than version"
            f" {table.head.version}",
            f"Choose a version from {table.commits[-1].version} to {table.head.version}.",
        )
    before = find_head(older, lambda: older[-1].version, lambda _: True).current
    if before is None or before.chain is None or table.chain is None:
        raise ExportRefusedError(
            table.path,
            f"has no chain of digests in the stamp of version {version}, or in the newest stamp",
            "Run prove without --since. A rebuild of the table begins a chain.",
        )
    later = (each for each in table.commits if each.version > version)
    first = dict(before.positions)
    for stamp in (Stamp.from_json(each.user_metadata) for each in later):
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
            sums cover all rows in any case.

    Raises:
        StorageError: the table cannot be read.
        UnsupportedError: a column has a type that no export writes.
    """
    chain = table.chain
    if chain is None:
        return None
    findings = Findings()
    sums: dict[int, RowSum] = {}
    rows = 0
    left_out = {STALE_SINCE.name, *table.made_by_delta}
    names = [name for name in table.all_columns if name not in left_out]
    if since is not None:
        for batch in table.batches(["_partition", DIGEST.name]):
            sums = added(sums, sums_by_partition(batch["_partition"], batch[DIGEST.name]))
    for batch in table.batches(names, None if since is None else since.is_changed()):
        rows += batch.num_rows
        _compare_content(batch, findings)
        if since is None:
            sums = added(sums, sums_by_partition(batch["_partition"], batch[DIGEST.name]))
    versions = list(_walk(table.commits, table.head.current, since, findings))
    _compare_sums(table, chain, versions[0], sums, findings)
    return ChainProof(rows, len(versions), versions[-1], findings)


def _compare_content(batch: pa.RecordBatch, findings: Findings) -> None:
    digests = batch[DIGEST.name]
    is_same = pc.fill_null(pc.equal(digests, row_digests(batch)), False)
    for index in np.flatnonzero(~np.array(is_same.to_numpy(zero_copy_only=False), np.bool_)):
        place = batch["_partition"][index].as_py(), batch["_offset"][index].as_py()
        has_digest = digests[index].is_valid
        findings.differs(*place, "the row does not fit its digest" if has_digest else "the row has no digest")


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


def _walk(commits: Sequence[Commit], current: Stamp | None, since: Since | None, findings: Findings) -> Iterator[int]:
    """The versions of the stamps, from the newest to the first of the chain or to the end of the log. Compares each with
    the stamp before it."""
    stamps = [(each, stamp) for each in commits if (stamp := Stamp.from_json(each.user_metadata)) is not None]
    stamps = stamps[next(number for number, (_, stamp) in enumerate(stamps) if stamp == current) :]
    while True:
        commit, stamp = stamps[0]
        yield commit.version
        chain = stamp.chain
        assert chain is not None, "the newest stamp has a chain, and so has each stamp before it"
        document = stamp_document(commit.user_metadata) or {}
        if seal_of(document) != chain.seal:
            findings.differs(None, None, f"the stamp of version {commit.version} does not fit its seal")
        if since is not None and commit.version <= since.version:
            return
        stamps = _from_seal(stamps[1:], chain.previous)
        if chain.previous is not None and not stamps:
            if commits[-1].version == 0:
                findings.differs(
                    None, None, f"the stamp before that of version {commit.version} is not in the table's log"
                )
            return
        before = stamps[0][1].chain if stamps else None
        if not chain.follows(before):
            findings.differs(None, None, f"the sums of version {commit.version} do not follow from the stamp before it")
        if before is None:
            return


def _from_seal(stamps: Iterable[tuple[Commit, Stamp]], seal: str | None) -> list[tuple[Commit, Stamp]]:
    """The stamps from the one with this seal on; none if there is no such stamp."""
    found = list(stamps)
    for number, (_, stamp) in enumerate(found):
        if seal is not None and stamp.chain is not None and stamp.chain.seal == seal:
            return found[number:]
    return []
