"""The files of an upsert: whole tables after several increments, compared with the rules applied to each record.

The tasks run in this process, so hundreds of logs take seconds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pytest

from lakelog.delta.rows import open_rows
from lakelog.rows import ROWS
from pipeline.delta.chain.digest_sums import sums_by_partition
from pipeline.delta.chain.stamp_chain import NO_ROWS, added
from pipeline.delta.export_plan import NO_BOUNDS, Export, ExportMode, PartitionOffsets, new_stamp
from pipeline.delta.files import file_changes, row_files
from pipeline.delta.files.file_changes import ChangedFiles, Results, change_files, commit_changes
from pipeline.delta.files.row_files import counts_of
from pipeline.delta.files.skipping_columns import skipping_columns, skipping_property
from pipeline.delta.files.table_commits import delete_files, reopened
from pipeline.delta.files.upsert_tasks import ReduceRecords
from pipeline.delta.files.upserting import can_upsert, what_was_reduced
from pipeline.delta.rows import row_decoding
from pipeline.delta.rows.row_columns import STALE_SINCE, nullable_columns, row_columns, table_columns
from pipeline.delta.rows.row_decoding import decode_batches, decoded_columns
from pipeline.delta.table_history import plan_from_history, read_head
from pipeline.delta.table_properties import TableLayout
from pipeline.delta.table_stamp import Recent
from pipeline.delta.without_spark.row_changes import IncrementRecords, RecordPlace, RowChanges, TableRow
from pipeline.delta.without_spark.table_opening import create_table
from storage_engine.errors import ConflictError, StorageError
from tests.pipeline.delta.order_models import Order, schema_of
from tests.roots.delta_tables import table_at

VALUES = [
    b'{"number": 1}', b'{"number": 2, "colour": "red"}', b'{"number": 3, "colour": "a/b %=\\u00fc"}', b"bad", None,
]  # fmt: skip
LIMIT = 1 << 20


@pytest.fixture(params=["plain", "vectors"])
def export(tmp_path: Path, request: pytest.FixtureRequest) -> Export:
    made = Export("orders", "id", ExportMode.UPSERT, schema_of(Order), str(tmp_path / "t"), "", digest=True)
    partition_by = ("colour", "_partition") if "partitions" in request.param else ()
    return made_table(replace(made, layout=TableLayout("vectors" in request.param, partition_by)))


def made_table(export: Export) -> Export:
    columns = nullable_columns(table_columns(export))
    partition_by = export.layout.partitions
    properties = {**export.layout.properties, **skipping_property(skipping_columns(columns, partition_by))}
    assert create_table(export.table, columns, properties, partition_by)
    return export


class KeyedLog:
    """A random log. Each partition has a counter of its offsets; timestamps are equal, increase or decrease."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.ends = [0] * chance.randrange(1, 4)
        self.keys = [None, *(b"k%d" % number for number in range(chance.choice([3, 30])))]

    def increment(self) -> list[list[dict[str, Any]]]:
        """The records that each task reads. Sometimes a partition has several tasks."""
        return [
            [self.record(partition) for _ in range(self.chance.randrange(40))]
            for partition in range(len(self.ends))
            for _ in range(self.chance.randrange(3))
        ]

    def record(self, partition: int) -> dict[str, Any]:
        self.ends[partition] += 1
        return {
            "key": self.chance.choice(self.keys), "value": self.chance.choice(VALUES), "topic": "orders",
            "partition": partition, "offset": self.ends[partition], "timestamp": self.chance.randrange(20),
            "timestampType": 0, "headers": [],
        }  # fmt: skip


def batches(records: Sequence[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(records), 15):
        yield pa.RecordBatch.from_pylist(records[first : first + 15], ROWS)


def run(function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], count: int, _: pa.Schema) -> Results:
    """Runs each task twice, as Spark does if it does not wait for a slow one. The first result counts."""
    results: list[dict[str, Any]] = []
    for number in range(count):
        attempts = [list(function(iter([pa.record_batch([[number]], ["id"])]))) for _ in range(2)]
        results += [row for batch in attempts[0] for row in batch.to_pylist()]
    return results


def upserted(export: Export, tasks: Sequence[Sequence[dict[str, Any]]]) -> tuple[ChangedFiles, Counter[str]]:
    """Write the files of an increment, with each task run twice."""
    results = []
    for records in tasks:
        attempts = [list(ReduceRecords(export, LIMIT)(batches(records))) for _ in range(2)]
        results += [row for batch in attempts[1] for row in batch.to_pylist()]
    written, index = what_was_reduced([each for each in results if each["_written"]])
    assert index is not None
    counts = counts_of(written)
    head = read_head(export.table)
    assert head is not None
    totals = Counter({"records": counts.records, "tombstones": counts.tombstones, **counts.reasons})
    return change_files(run, export, reopened(export, head.version), written, index), totals


def commit(export: Export, changed: ChangedFiles) -> None:
    head = read_head(export.table)
    assert head is not None
    stamp = new_stamp(export, head, "table", {0: head.version}, Recent(), None)
    commit_changes(export, changed, stamp)


class Model:
    """The rows of a table by the rules of small exports, which are tested on their own."""

    def __init__(self, export: Export) -> None:
        self.export = export
        self.rows: dict[bytes, dict[str, Any]] = {}

    def export_increment(self, tasks: Sequence[Sequence[dict[str, Any]]]) -> tuple[RowChanges, pa.Table]:
        records = [each for task in tasks for each in task]
        found = decode_batches(batches(records), self.export)
        decoded = pa.Table.from_batches(found, schema=decoded_columns(self.export))
        increment = IncrementRecords(decoded)
        changes = increment.decide({key: self._table_row(row) for key, row in self.rows.items()})
        whole = decoded.to_pylist()
        for index, stale in changes.written.items():
            row = {name: whole[index][name] for name in row_columns(self.export).names}
            self.rows[row["_key"]] = {**row, STALE_SINCE.name: stale}
        for key in changes.deleted:
            del self.rows[key]
        for key, place in changes.stale.items():
            self.rows[key][STALE_SINCE.name] = place
        return changes, decoded

    @staticmethod
    def _table_row(row: dict[str, Any]) -> TableRow:
        micros = round(row["_timestamp"].timestamp() * 1_000_000)
        return TableRow(RecordPlace(row["_partition"], row["_offset"], micros), row[STALE_SINCE.name])


def of_table(export: Export) -> dict[bytes, dict[str, Any]]:
    return of_keys(open_rows(table_at(export.table)).read_all())


def of_polars(export: Export) -> dict[bytes, dict[str, Any]]:
    """The rows in Polars, which reads partition columns from the names of the folders."""
    return of_keys(pl.scan_delta(export.table).collect().to_arrow())


def of_keys(rows: pa.Table) -> dict[bytes, dict[str, Any]]:
    found = rows.to_pylist()
    by_key = {row["_key"]: row for row in found}
    assert len(by_key) == len(found)
    for row in by_key.values():
        stale = row[STALE_SINCE.name]
        if stale is not None:
            micros = round(stale["timestamp"].timestamp() * 1_000_000)
            row[STALE_SINCE.name] = RecordPlace(stale["partition"], stale["offset"], micros)
    return by_key


@pytest.mark.parametrize("export", ["plain", "vectors", "partitions", "partitions with vectors"], indirect=True)
@pytest.mark.parametrize("seed", range(12))
def test_files_have_the_rows_that_the_rules_give(export: Export, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(row_decoding, "_GROUP_BYTES", chance.choice([1, 3000, 1 << 20]))
    monkeypatch.setattr(row_files, "GROUP_BYTES", chance.choice([1, 1000, 1 << 20]))
    monkeypatch.setattr(row_files, "_FILE_BYTES", 1000)
    export = replace(export, digest=chance.random() < 0.8) if seed else export
    if not export.digest:
        export = made_table(replace(export, table=f"{export.table}_without"))
    log, model = KeyedLog(chance), Model(export)
    for _ in range(4):
        tasks = log.increment()
        before = of_table(export)
        changes, decoded = model.export_increment(tasks)
        changed, counts = upserted(export, tasks)
        commit(export, changed)
        after = of_table(export)
        assert after == model.rows
        if export.layout.partitions and not export.layout.deletion_vectors:
            assert of_polars(export) == after
        decision = changed.decision
        assert (decision.written, decision.deleted) == (len(changes.written), len(changes.deleted))
        assert (decision.newly_stale.total(), decision.without_row) == (changes.newly_stale, changes.without_row)
        assert counts == Counter(
            [*["records"] * len(decoded), *["tombstones"] * sum(decoded["_tombstone"].to_pylist())]
        ) + Counter(each for each in decoded["_reason"].to_pylist() if each)
        if export.digest:
            sums = [
                sums_by_partition(
                    pa.array([row["_partition"] for row in found.values()], pa.int32()),
                    pa.array([row["_digest"] for row in found.values()], pa.binary()),
                )
                for found in (before, after)
            ]
            follows = added(sums[0], changed.came)
            follows = {each: total - changed.went.get(each, NO_ROWS) for each, total in follows.items()}
            assert {each: total for each, total in follows.items() if total != NO_ROWS} == sums[1]


def order(key: bytes, offset: int) -> dict[str, Any]:
    return {
        "key": key, "value": VALUES[0], "topic": "orders", "partition": 0, "offset": offset, "timestamp": offset,
        "timestampType": 0, "headers": [],
    }  # fmt: skip


def test_only_files_with_changed_rows_are_written_again(export: Export) -> None:
    commit(export, upserted(export, [[order(b"a", 0)], [order(b"b", 1)]])[0])
    before = {*table_at(export.table).file_uris()}
    commit(export, upserted(export, [[order(b"a", 2), order(b"c", 3)]])[0])
    after = {*table_at(export.table).file_uris()}
    assert len(before) == len(before & after) + 1 == 2
    assert len(after) == 2
    assert {key: row["_offset"] for key, row in of_table(export).items()} == {b"a": 2, b"b": 1, b"c": 3}


@pytest.mark.parametrize("removes", [False, True])
def test_the_loser_of_two_upserts_commits_nothing(export: Export, *, removes: bool) -> None:
    commit(export, upserted(export, [[order(b"a", 0)]])[0])
    key = b"a" if removes else b"b"
    one, other = (upserted(export, [[order(key, offset)]])[0] for offset in (1, 2))
    commit(export, one)
    whole = of_table(export)
    with pytest.raises(ConflictError, match="another writer changed the table"):
        commit(export, other)
    assert of_table(export) == whole


def test_a_restore_between_plan_and_commit_is_a_conflict(export: Export) -> None:
    for offset, key in enumerate([b"a", b"b"]):
        commit(export, upserted(export, [[order(key, offset)]])[0])
    changed, _ = upserted(export, [[order(b"c", 3)]])
    table_at(export.table).restore(1)
    with pytest.raises(ConflictError, match="another writer changed the table"):
        commit(export, changed)
    assert {*of_table(export)} == {b"a"}


def test_a_commit_that_changes_no_file_is_no_conflict(export: Export) -> None:
    commit(export, upserted(export, [[order(b"a", 0)]])[0])
    changed, _ = upserted(export, [[order(b"a", 1)]])
    table_at(export.table).alter.set_table_description("orders")
    commit(export, changed)
    assert {key: row["_offset"] for key, row in of_table(export).items()} == {b"a": 1}


def test_a_table_that_got_or_lost_deletion_vectors_is_a_conflict(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(export, upserted(export, [[order(b"a", 0), order(b"b", 1)]])[0])
    changed, _ = upserted(export, [[order(b"a", 2)]])
    table_at(export.table).alter.set_table_description("orders")

    class OfAnotherKind:
        files = changed.table.files

    monkeypatch.setattr(file_changes, "open_table", lambda *_, **__: OfAnotherKind())
    with pytest.raises(ConflictError, match="another writer changed the table"):
        commit(export, changed)
    assert {key: row["_offset"] for key, row in of_table(export).items()} == {b"a": 0, b"b": 1}


def test_small_files_are_written_again_as_one_file(export: Export) -> None:
    for offset in range(10):
        commit(export, upserted(export, [[order(b"%d" % offset, offset)]])[0])
    every = [order(b"%d" % number, 10 + number) for number in range(0, 10, 2)]
    commit(export, upserted(export, [[order(b"x", 20)], [*every, order(b"9", 30)]])[0])
    assert {key: row["_offset"] for key, row in of_table(export).items()} == {
        **{b"%d" % number: number for number in range(1, 9, 2)}, **{row["key"]: row["offset"] for row in every},
        b"9": 30, b"x": 20,
    }  # fmt: skip


def test_a_damaged_file_of_the_table_is_named(export: Export) -> None:
    commit(export, upserted(export, [[order(b"a", 0)]])[0])
    file = Path(*table_at(export.table).file_uris())
    whole = file.read_bytes()
    file.write_bytes(bytes(len(whole) // 2) + whole[len(whole) // 2 :])
    with pytest.raises(StorageError) as told:
        upserted(export, [[order(b"a", 1)]])
    assert str(told.value) == (
        f"{file}: cannot be read: the file is damaged. Nothing was exported. Restore the file from a backup, or restore the"
        " table to an older version."
    )
    file.unlink()
    with pytest.raises(
        StorageError, match=rf"{file.name}: is missing, although the table names it. Nothing was exported."
    ):
        upserted(export, [[order(b"a", 1)]])


@pytest.mark.parametrize("name", ["grün.parquet", "a%20b.parquet", "a*b.parquet", "part-1.c000.snappy.parquet"])
def test_each_name_of_a_file_can_be_removed_or_is_not_changed(export: Export, name: str) -> None:
    commit(export, upserted(export, [[order(b"a", 0)]])[0])
    file = Path(*table_at(export.table).file_uris())
    file.rename(file.with_name(unquote(name)))
    log = Path(export.table, "_delta_log", f"{1:020}.json")
    log.write_text(log.read_text().replace(file.name, name))
    assert {*of_table(export)} == {b"a"}
    plan = plan_from_history(export, {0: PartitionOffsets(0, 5)}, NO_BOUNDS)
    assert plan is not None
    # deltalake would encode some names in another way than the log does. The commits of tables with vectors copy them.
    assert can_upsert(export, plan) == (name.startswith("part-") or bool(export.layout.deletion_vectors))
    if can_upsert(export, plan):
        commit(export, upserted(export, [[order(b"a", 1), order(b"b", 2)]])[0])
        assert {key: row["_offset"] for key, row in of_table(export).items()} == {b"a": 1, b"b": 2}


def test_too_many_keys_give_no_list_and_their_files_can_be_deleted(export: Export) -> None:
    results = [
        row
        for batch in ReduceRecords(export, 100)(batches([order(b"k%d" % number, number) for number in range(50)]))
        for row in batch.to_pylist()
    ]
    written, index = what_was_reduced(results)
    assert index is None
    assert written.files
    delete_files(export, written)
    assert [each.name for each in Path(export.table).iterdir()] == ["_delta_log"]
