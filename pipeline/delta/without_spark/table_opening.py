"""Opens a Delta table with the deltalake library, if there is a table."""

from __future__ import annotations

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from lakelog.delta_options import delta_options


def open_or_none(table: str) -> DeltaTable | None:
    """The newest version of the table at a path or URI; None if there is no table.

    DeltaTable.is_deltatable is not used: it keeps Python's lock while it waits for the storage, so all threads of the
    process would wait, too.
    """
    try:
        return DeltaTable(table, storage_options=delta_options())
    except TableNotFoundError:
        return None
