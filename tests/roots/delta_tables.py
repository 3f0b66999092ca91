"""Opens the Delta tables of tests. The tables are on the kind of storage that the tests use for their roots
(tests.stores).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deltalake import DeltaTable

from lakelog.delta_options import delta_options
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_storage
from tests.stores import STORE, StoreFile, file_in


def table_at(uri: str, version: int | None = None) -> DeltaTable:
    """The table at a path or URI."""
    return DeltaTable(uri, version=version, storage_options=delta_options(uri))


def is_table(uri: str) -> bool:
    return bool(DeltaTable.is_deltatable(uri, storage_options=delta_options(uri)))


def commit_file(uri: str, version: int) -> Path | StoreFile:
    """The file of a commit of the table at a path or URI."""
    return file_in(open_storage(uri), f"_delta_log/{version:020}.json")


def age(folder: Path | str) -> None:
    """Let all files of a folder be 40 days old, if a client can set the times of files."""
    then = time.time() - 40 * 86_400
    if STORE == "posix":
        for file in Path(folder).iterdir():
            if file.is_file():
                os.utime(file, (then, then))
    elif STORE == "hdfs":
        from hdfs_native import Client

        client = Client(str(folder))
        for status in client.list_status(urlsplit(str(folder)).path):
            if not status.isdir:
                client.set_times(status.path, int(then * 1000), int(then * 1000))


def open_table(storage: Storage, key: str) -> DeltaTable:
    """A table below a root."""
    return table_at(f"{storage.uri}/{key}")


def rows_of_table(storage: Storage, key: str) -> list[dict[str, Any]]:
    """All rows; none if there is no table."""
    if not is_table(f"{storage.uri}/{key}"):
        return []
    rows: list[dict[str, Any]] = open_table(storage, key).to_pyarrow_table().to_pylist()
    return rows
