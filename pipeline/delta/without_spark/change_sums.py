"""Sums the digests of the rows that an increment adds to a table, and of those that it removes. All functions are pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa

from pipeline.delta.chain.digest_sums import sums_by_partition
from pipeline.delta.chain.stamp_chain import RowSum
from pipeline.delta.rows.row_columns import DIGEST
from pipeline.delta.without_spark.row_changes import RowChanges, TableRow


def sums_of_rows(rows: pa.Table) -> dict[int, RowSum]:
    """The rows with these coordinates and digests, by partition."""
    return sums_by_partition(rows["_partition"], rows[DIGEST.name])


def removed_sums(changes: RowChanges, decoded: pa.Table, rows: Mapping[bytes, TableRow]) -> dict[int, RowSum]:
    """The rows that are deleted or replaced, by partition.

    Args:
        decoded: the records to which the indices of `changes` refer.
        rows: the rows that the table has for the increment's keys.
    """
    replaced = decoded["_key"].take(pa.array(list(changes.written), pa.int64())).to_pylist()
    gone = [rows[key] for key in (*replaced, *changes.deleted) if key in rows]
    return sums_by_partition(
        pa.array([each.place.partition for each in gone], pa.int32()),
        pa.array([each.digest for each in gone], pa.binary()),
    )


def stale_counts(changes: RowChanges, rows: Mapping[bytes, TableRow]) -> dict[int, int]:
    """The number of rows that become stale, by partition."""
    return dict(Counter(rows[key].place.partition for key in changes.stale if rows[key].stale_since is None))
