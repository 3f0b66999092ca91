"""Asks Delta about a table through Spark: whether a path is a table, which id the table has, and why a write failed."""

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
from pyspark.sql import SparkSession

from storage_engine.errors import ConflictError

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
