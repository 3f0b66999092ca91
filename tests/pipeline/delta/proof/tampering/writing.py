"""Writes changed rows and commits into a table, past the exports."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, write_deltalake

from pipeline.delta.chain.row_digest import row_digests
from pipeline.delta.table_stamp import NextLink, Stamp
from tests.pipeline.delta.proof.tampering.histories import History, Row
from tests.roots.delta_tables import commit_file


def write_rows(history: History, rows: Sequence[Row]) -> None:
    """Write these rows instead of the rows of the table, in one of several ways."""
    chance = history.chance
    schema = history.table.to_pyarrow_table().schema
    if "_digest" in schema.names and chance.random() < 0.5:
        digests = row_digests(pa.Table.from_pylist(list(rows), schema=schema)).to_pylist()
        rows = [{**row, "_digest": digest} for row, digest in zip(rows, digests, strict=True)]
    table = pa.Table.from_pylist(list(rows), schema=schema)
    way = chance.choice(["no stamp", "copied stamp", "new stamp", "in the files"])
    files = history.table.file_uris()
    if way == "in the files" and files:
        for file in files[1:]:
            pq.write_table(schema.empty_table(), path_of(file))
        pq.write_table(table, path_of(files[0]))
    elif way == "copied stamp":
        overwrite(history, table, history.stamp)
    elif way == "new stamp":
        stamp = history.next_stamp()
        overwrite(history, table, NextLink(history.head).add_to(stamp) if history.stamp.chain is not None else stamp)
    else:
        overwrite(history, table, None)


def overwrite(history: History, rows: pa.Table, stamp: Stamp | None) -> None:
    """Replace the rows and the columns in one commit, with or without a stamp."""
    properties = CommitProperties(custom_metadata=None if stamp is None else {"userMetadata": stamp.to_json()})
    write_deltalake(history.table, rows, mode="overwrite", schema_mode="overwrite", commit_properties=properties)


def path_of(uri: str) -> Path:
    """The path of a file of the table."""
    return Path(unquote(uri.removeprefix("file://")))


def edit_commit(history: History, version: int, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change the actions of a commit."""
    file = commit_file(history.topic.export.table, version)
    actions = [json.loads(line) for line in file.read_bytes().splitlines()]
    change(actions)
    file.write_bytes("".join(json.dumps(action) + "\n" for action in actions).encode())


def append_nothing(history: History, stamp: Stamp) -> None:
    """Commit a stamp without rows."""
    table = history.table
    properties = CommitProperties(custom_metadata={"userMetadata": stamp.to_json()})
    rows = table.to_pyarrow_table().schema.empty_table()
    write_deltalake(table, rows, mode="append", commit_properties=properties)
