"""Reads the Delta table of an export through Spark: its head (the newest version and the stamps), its id, and whether a
commit took place.

A stamp is the metadata that an export writes into its commit (pipeline.delta.table_stamp).

**The guard.** Delta silently skips a write whose txnVersion is not higher than the last txnVersion of the same
txnAppId. The guard of an export is the txnVersion of its commit: the table version of the newest commit with a stamp,
plus one. A guard that is derived from the position would not work. RESTORE restores the older rows and their position,
but not the older txnVersion, so Delta would skip all later commits. Table versions never decrease, so a new guard is
higher than all earlier ones.

Two exports that continue from the same stamp have the same guard, whatever other writers have committed, and Delta
accepts only one of them. `check_committed` detects that a write was skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
from delta.tables import DeltaTable
from pyspark.sql import Row, SparkSession

from pipeline.delta.table_stamp import Stamp, TableHead, find_head
from storage_engine.errors import ConflictError

PLAIN_TABLE_PROPERTIES = {
    # Other readers than Spark (deltalake, DuckDB, Polars) read version 1 of the protocol; these features would raise it.
    "delta.enableDeletionVectors": "false",
    "delta.columnMapping.mode": "none",
    "delta.checkpointPolicy": "classic",
}
"""Properties that are set when a table is created, because the defaults of the session may differ."""

_CONFLICTS = (
    DeltaConcurrentModificationException,  # in Python, unlike in Scala, not a base class of the other conflicts
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)


def is_table(spark: SparkSession, path: str) -> bool:
    return DeltaTable.isDeltaTable(spark, path)


def read_head(spark: SparkSession, path: str, table_id: str | None = None) -> TableHead:
    """The head of the table at `path`. If a table id is given, only stamps with this id count."""

    def counts(stamp: Stamp) -> bool:
        return table_id is None or stamp.table_id == table_id

    [newest] = _history(spark, path, limit=1)
    stamp = Stamp.from_json(newest.userMetadata)
    if stamp is not None and counts(stamp):  # the usual case, much cheaper than the whole history
        return TableHead.of_stamp(newest.version, stamp)
    return find_head(_history(spark, path), counts)


def read_table_id(spark: SparkSession, path: str) -> str:
    """Delta's id of the table at `path`. The query takes a second."""
    details = DeltaTable.forPath(spark, path).detail().select("id").first()
    assert details is not None, "a table has exactly one row there"
    table_id: str = details["id"]
    return table_id


@contextmanager
def named_conflicts(path: str, during: str) -> Iterator[None]:
    """Turn Delta's errors about another writer of the table at `path` into a ConflictError.

    Args:
        during: the name of the operation in the message, such as "export".
    """
    try:
        yield
    except _CONFLICTS as error:
        raise ConflictError(
            path, f"another writer changed the table during the {during}", "Nothing is lost: start the job again."
        ) from error


def check_committed(spark: SparkSession, path: str, planned_from: int, stamp: Stamp) -> Row:
    """The history entry of the commit that carries `stamp`.

    Args:
        planned_from: the table's version when the positions of the stamp were decided.

    Raises:
        ConflictError: Delta skipped the write because another export committed first, or the table was restored between
            the decision and the commit.
    """
    since: list[Row] = []
    entries = _history(spark, path, limit=1)
    if Stamp.from_json(entries[0].userMetadata) != stamp or entries[0].version != planned_from + 1:
        entries = [entry for entry in _history(spark, path) if entry.version > planned_from]
    for entry in entries:
        if Stamp.from_json(entry.userMetadata) == stamp:
            since = [other for other in entries if planned_from < other.version < entry.version]
            break
    else:
        raise ConflictError(
            path,
            f"another export committed after version {planned_from}, and this export was not written",
            "Nothing is lost: start this export again.",
        )
    for other in since:
        if other.operation == "RESTORE":
            raise ConflictError(
                path,
                f"version {other.version} restored the table, and then version {entry.version} was committed by an export"
                " that had been planned before the restore",
                f"Restore the table to version {other.version} and start the export again.",
            )
    return entry


def _history(spark: SparkSession, path: str, limit: int | None = None) -> list[Row]:
    columns = ["version", "operation", "operationParameters", "operationMetrics", "userMetadata"]
    table = DeltaTable.forPath(spark, path)
    history = table.history() if limit is None else table.history(limit)
    return history.select(*columns).collect()
