"""Opens Delta tables below a root of a test, on the kind of storage that has the root (tests.stores)."""

from __future__ import annotations

from typing import Any

from deltalake import DeltaTable

from lakelog.delta_options import delta_options
from storage_engine.storage import Storage


def open_table(storage: Storage, key: str) -> DeltaTable:
    return DeltaTable(f"{storage.uri}/{key}", storage_options=delta_options())


def rows_of_table(storage: Storage, key: str) -> list[dict[str, Any]]:
    """All rows; none if there is no table."""
    if not DeltaTable.is_deltatable(f"{storage.uri}/{key}", storage_options=delta_options()):
        return []
    rows: list[dict[str, Any]] = open_table(storage, key).to_pyarrow_table().to_pylist()
    return rows
