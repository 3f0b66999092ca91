"""The files of a table as its log names them: with whole checkpoints, and beside checkpoints that nobody completed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.delta.vectors.table_files import read_files
from storage_engine.errors import StorageError
from storage_engine.storage.storage_opening import open_storage
from tests.stores import root_at

pytestmark = pytest.mark.posix("writes into the log of the table")
VERSION = 2


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    for number in range(VERSION + 1):
        write_deltalake(root_at(tmp_path), pa.table({"number": [number]}), mode="append")
    return DeltaTable(root_at(tmp_path))


def files_of(table: DeltaTable) -> list[str]:
    return sorted(each.name for each in read_files(open_storage(table.table_uri), VERSION).files)


def split_checkpoint(folder: Path, parts: int) -> list[Path]:
    """Replace the checkpoint by one in several parts."""
    log = folder / "_delta_log"
    (whole,) = log.glob("*.checkpoint.parquet")
    actions = pq.read_table(whole)
    whole.unlink()
    (log / "_last_checkpoint").unlink()
    size = -(-len(actions) // parts)
    made = []
    for part in range(parts):
        path = log / f"{VERSION:020}.checkpoint.{part + 1:010}.{parts:010}.parquet"
        pq.write_table(actions.slice(part * size, size), path)
        made.append(path)
    return made


def test_a_checkpoint_in_parts_replaces_the_commits(table: DeltaTable, tmp_path: Path) -> None:
    expected = sorted(Path(each).name for each in table.file_uris())
    table.create_checkpoint()
    parts = split_checkpoint(tmp_path, 2)
    for number in range(VERSION + 1):
        (tmp_path / f"_delta_log/{number:020}.json").unlink()
    assert files_of(table) == expected
    parts[0].unlink()
    with pytest.raises(
        StorageError, match=r"00000000000000000000.json: is missing, and no later checkpoint replaces it"
    ):
        files_of(table)


def test_parts_of_two_checkpoints_that_nobody_completed_are_no_checkpoint(table: DeltaTable, tmp_path: Path) -> None:
    expected = sorted(Path(each).name for each in table.file_uris())
    for parts in (2, 3):
        table.create_checkpoint()
        for unwritten in split_checkpoint(tmp_path, parts)[1:]:
            unwritten.unlink()
    assert files_of(table) == expected
