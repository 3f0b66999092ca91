"""The upkeep of tables with deletion vectors, without Spark: which files stay, and that no row changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelog.delta.rows import open_rows
from pipeline.delta.export_plan import Export, ExportMode
from pipeline.delta.table_history import read_head
from pipeline.delta.table_properties import TableLayout
from pipeline.delta.upkeep import deleted_files
from pipeline.delta.upkeep.deleted_files import DeletedFilesError, check_files
from pipeline.delta.upkeep.small_files import SmallFileRule
from pipeline.delta.upkeep.table_upkeep import TableUpkeep, keep_table
from pipeline.delta.vectors import vector_files
from pipeline.delta.vectors.bitmap import encode
from pipeline.delta.vectors.table_files import TableFiles, read_files
from pipeline.delta.vectors.vector_files import DeletionVector, read_vector
from pipeline.delta.without_spark.log_commits import commit_key
from pipeline.delta.without_spark.table_opening import create_table
from storage_engine.errors import StorageError
from storage_engine.storage.storage_opening import open_storage
from tests.pipeline.delta.files.test_upserting import commit, made_table, order, upserted
from tests.pipeline.delta.order_models import Order, schema_of
from tests.pipeline.delta.upkeep.test_table_upkeep import names_in
from tests.roots.delta_tables import age, commit_file, table_at
from tests.stores import root_at

FEW = SmallFileRule(100, 32 << 20)
ALL = SmallFileRule(1, 32 << 20)
AGED = pytest.mark.posix("sets the times of files")


@pytest.fixture
def export(tmp_path: Path) -> Export:
    made = Export("orders", "id", ExportMode.UPSERT, schema_of(Order), root_at(tmp_path / "t"), "", digest=True)
    return made_table(replace(made, layout=TableLayout(deletion_vectors=True)))


def upsert(export: Export, *offsets: int, keys: int = 10) -> None:
    """Upsert records; the key is the last digit of the offset."""
    commit(export, upserted(export, [[order(b"%d" % (each % keys), each) for each in offsets]])[0])


def rows(table: str, version: int | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = open_rows(table_at(table, version)).read_all().to_pylist()
    return sorted(found, key=lambda row: row["_offset"])


def files(table: str) -> TableFiles:
    return read_files(open_storage(table), table_at(table).version())


def names(table: str) -> set[str]:
    """The files that are not in the log's folder."""
    return {name for name in names_in(table) if not name.startswith("_delta_log/")}


def kept(table: str, rule: SmallFileRule = FEW) -> TableUpkeep:
    done = keep_table(table, rule)
    assert done is not None
    return done


@pytest.mark.parametrize("has_vectors", [False, True])
def test_files_of_different_partitions_are_never_joined(tmp_path: Path, has_vectors: bool) -> None:
    """Writers name the partition columns of a file in any order."""
    table, columns = (
        root_at(tmp_path / "swapped"),
        pa.schema([("a", pa.int64()), ("b", pa.int64()), ("name", pa.string())]),
    )
    properties = {"delta.enableDeletionVectors": "true"} if has_vectors else {}
    create_table(table, columns, properties, ("a", "b"))
    storage = open_storage(table)
    for version, (a, b) in enumerate([(1, 2), (2, 1)] * 3, 1):
        name = f"a={a}/b={b}/{version}.parquet"
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"name": [f"{a}{b} in {version}"]}), sink)
        storage.put_new(name, sink.getvalue().to_pybytes())
        values = {"a": str(a), "b": str(b)}
        added = {
            "path": name, "partitionValues": values if version < 3 else dict(reversed(values.items())),
            "size": len(sink.getvalue()), "modificationTime": 0, "dataChange": True,
        }  # fmt: skip
        storage.put_new(commit_key(version), json.dumps({"add": added}).encode())
    before = sorted(open_rows(table_at(table)).read_all().to_pylist(), key=str)
    assert len(before) == 6
    done = keep_table(table, SmallFileRule(2, 32 << 20), has_stamps=False)
    assert done is not None
    assert (done.joined, done.made) == (6, 2)
    assert sorted(open_rows(table_at(table)).read_all().to_pylist(), key=str) == before


def test_an_upsert_writes_a_vector_and_not_the_file_again(export: Export) -> None:
    upsert(export, *range(10))
    (before,) = files(export.table).files
    upsert(export, 13, 17)
    by_name = {each.name: each for each in files(export.table).files}
    assert len(by_name) == 2
    marked = by_name[before.name]
    assert marked.vector is not None
    places = read_vector(open_storage(export.table), marked.vector)
    storage = open_storage(export.table)
    written = pq.read_table(pa.BufferReader(storage.read(marked.name)))
    assert sorted(written["_offset"].take(places).to_pylist()) == [3, 7]
    assert replace(marked, vector=None, stats=before.stats) == before
    upsert(export, *range(20, 30))  # no row is left in the older files
    (last,) = files(export.table).files
    assert last.name not in by_name
    assert [row["_offset"] for row in rows(export.table)] == [*range(20, 30)]


def test_a_file_is_written_again_if_many_of_its_rows_are_deleted(export: Export) -> None:
    upsert(export, *range(10))
    upsert(export, 10, 11)  # two of ten rows
    assert kept(export.table) == TableUpkeep()
    upsert(export, 12)
    before, head = rows(export.table), read_head(export.table)
    done = kept(export.table)
    assert (done.joined, done.made, done.left_alone) == (1, 1, None)
    assert [each.vector for each in files(export.table).files] == [None] * 3
    assert rows(export.table) == before
    after = read_head(export.table)
    assert head is not None
    assert after == replace(head, version=head.version + 1)
    assert kept(export.table) == TableUpkeep()


def test_small_files_are_joined_without_their_deleted_rows(export: Export) -> None:
    for turn in range(3):
        upsert(export, *range(10 * turn, 10 * turn + 10 - turn))
    before = rows(export.table)
    done = kept(export.table, ALL)
    assert (done.joined, done.made) == (3, 1)
    (file,) = files(export.table).files
    assert (file.rows, file.vector) == (10, None)
    assert rows(export.table) == before
    upsert(export, 31)
    assert [row["_offset"] for row in rows(export.table)] == [9, 18, 20, *range(22, 28), 31]


@AGED
def test_vectors_in_use_stay_and_others_are_deleted_after_the_retention(export: Export) -> None:
    folder = Path(export.table)
    upsert(export, *range(10))
    upsert(export, 10)
    upsert(export, 11)
    (folder / "deletion_vector_of_a_killed_export.bin").write_bytes(b"\1")
    everything = names(export.table)
    needed = {each.name for each in files(export.table).files}
    needed |= {each for each in everything if each.startswith("deletion_vector") and "killed" not in each}
    assert (len(needed), kept(export.table).deleted) == (5, 0)
    age(folder)  # the first vector was replaced a moment ago: older versions within the retention need it
    assert kept(export.table).deleted == len(everything - needed) > 1
    assert names(export.table) == needed
    assert [row["_offset"] for row in rows(export.table, 2)] == [*range(1, 11)]
    upsert(export, *range(20, 30))
    assert kept(export.table).deleted == 0
    make_removals_older(export.table)
    age(folder)
    assert needed < names(export.table)
    kept(export.table)
    assert names(export.table) == {each.name for each in files(export.table).files}
    assert [row["_offset"] for row in rows(export.table)] == [*range(20, 30)]


def make_removals_older(table: str) -> None:
    """Let all files that commits removed be removed 40 days ago."""
    for version in range(table_at(table).version() + 1):
        commit_of = commit_file(table, version)
        text = commit_of.read_bytes().decode()
        for each in files(table).removed:
            text = text.replace(f'"deletionTimestamp":{each.removed_ms}', '"deletionTimestamp":1000')
        commit_of.write_bytes(text.encode())


@AGED
def test_checkpoints_keep_the_vectors_and_old_entries_of_the_log_go(export: Export) -> None:
    upsert(export, *range(10))
    for turn in range(24):
        upsert(export, 10 * (turn + 1) + turn % 3)
        kept(export.table)
    log = Path(export.table, "_delta_log")
    upsert(export, 985)
    before, found = rows(export.table), files(export.table)
    age(log)
    version = table_at(export.table).version()
    upsert(export, 991)
    kept(export.table)
    left = sorted(each.name for each in log.iterdir() if each.name.endswith((".json", ".parquet")))
    assert left[0].endswith(".checkpoint.parquet")
    assert int(left[0][:20]) >= 10
    again = read_files(open_storage(export.table), version)
    assert {each.name: each.vector for each in again.files} == {each.name: each.vector for each in found.files}
    assert any(each.vector for each in again.files)
    assert rows(export.table, version) == before
    after = rows(export.table)
    assert [row["_offset"] for row in after] == [
        *(row["_offset"] for row in before if row["_offset"] % 10 != 1), 991,
    ]  # fmt: skip


@AGED
def test_an_export_misses_a_vector_that_was_deleted_before_its_commit(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    upsert(export, *range(10))
    upsert(export, 10)
    check_files(export.table, 2, 10**9)
    (vector,) = (name for name in names(export.table) if name.startswith("deletion_vector"))
    Path(export.table, vector).unlink()
    with pytest.raises(DeletedFilesError, match=f"1 of the files that version 2 added .* the first is {vector}"):
        check_files(export.table, 2, deleted_files._CHECKED_AFTER_MS)


@AGED
def test_a_damaged_vector_is_an_error_and_maintenance_changes_nothing(export: Export) -> None:
    upsert(export, *range(10))
    upsert(export, 10, 11, 12)
    (name,) = (name for name in names(export.table) if name.startswith("deletion_vector"))
    data = bytearray(Path(export.table, name).read_bytes())
    data[-6] ^= 1
    Path(export.table, name).write_bytes(bytes(data))
    before = names(export.table)
    with pytest.raises(StorageError, match=f"{name}: has a damaged deletion vector: the size or the CRC-32"):
        keep_table(export.table, FEW)
    assert (names(export.table), table_at(export.table).version()) == (before, 2)


def test_a_vector_in_the_log_is_read(export: Export) -> None:
    assert vector_files._from_z85("HelloWorld").hex() == "864fd26fb559f75b"  # from the specification of Z85
    numbers = np.array([3, 4, 7, 11, 18, 29])
    bitmap = encode(numbers)
    vector = DeletionVector("i", vector_files._to_z85(bitmap + bytes(-len(bitmap) % 4)), None, len(bitmap), 6)
    assert DeletionVector.from_action(vector.action) == vector
    assert read_vector(open_storage(export.table), vector).tolist() == numbers.tolist()
    with pytest.raises(StorageError, match="_delta_log: has a damaged deletion vector: a text is not Z85"):
        read_vector(open_storage(export.table), replace(vector, place="#####"))


def test_each_tenth_upsert_writes_a_checkpoint(export: Export) -> None:
    for offset in range(10):
        upsert(export, offset)
    found = [name for name in names_in(export.table) if "checkpoint." in name]
    assert found == [f"_delta_log/{10:020d}.checkpoint.parquet"]
    before = files(export.table)
    for version in range(10):
        commit_file(export.table, version).unlink()
    assert files(export.table) == before
    assert [row["_offset"] for row in rows(export.table)] == [*range(10)]


def test_tables_with_more_features_are_left_alone(export: Export) -> None:
    for feature, reason in {
        "changeDataFeed": "needs reader version 3 and writer version 7 of Delta's protocol",
        "rowTracking": "needs reader version 3 and writer version 7 of Delta's protocol",
    }.items():
        table = f"{export.table}-{feature}"
        assert create_table(table, pa.schema([("a", pa.int64())]), export.layout.properties)
        commit_of = commit_file(table, 0)
        text = commit_of.read_bytes().decode()
        commit_of.write_bytes(text.replace('"invariants"', f'"{feature}"').encode())
        assert keep_table(table, ALL, has_stamps=False) == TableUpkeep(left_alone=reason)
