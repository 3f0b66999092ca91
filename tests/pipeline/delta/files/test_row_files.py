"""The functions of tasks that decode records and write rows into files, without Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelog.rows import ROWS
from pipeline.delta.chain.digest_sums import sums_by_partition
from pipeline.delta.export_plan import Export, ExportMode
from pipeline.delta.files import row_files
from pipeline.delta.files.row_files import AppendRecords, WriteRows, Written
from pipeline.delta.rows import row_decoding
from pipeline.delta.rows.row_columns import COORDINATES, row_columns, table_columns
from pipeline.delta.rows.row_decoding import counted_columns, decode_batches, decoded_columns, newest_of_keys
from tests.pipeline.delta.order_models import Order, schema_of

VALUES = [None, b"not json", *(b'{"number": %d, "colour": "red"}' % number for number in range(3))]


def batches(seed: int, count: int = 60) -> Iterator[pa.RecordBatch]:
    """Records of two partitions, in the order of the log; some without a key, some that cannot be decoded."""
    chance = random.Random(seed)
    for partition in (0, 1):
        rows = [
            {
                "key": chance.choice([None, b"a", b"b", b"c", b"d"]), "value": chance.choice(VALUES), "topic": "orders",
                "partition": partition, "offset": 3 * number, "timestamp": chance.randrange(10**6), "timestampType": 0,
                "headers": [{"key": "trace", "value": b"%d" % number}],
            }
            for number in range(count)
        ]  # fmt: skip
        for first in range(0, count, 25):
            yield pa.RecordBatch.from_pylist(rows[first : first + 25], ROWS)
        yield pa.RecordBatch.from_pylist([], ROWS)


def decoded(export: Export, seed: int) -> list[dict[str, Any]]:
    rows = pa.Table.from_batches(decode_batches(batches(seed), export), decoded_columns(export))
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


@pytest.fixture
def export(tmp_path: Path) -> Export:
    (tmp_path / "t").mkdir()
    return Export("orders", "id", ExportMode.APPEND, schema_of(Order), str(tmp_path / "t"), "", digest=True)


def files_of(export: Export) -> list[str]:
    return sorted(each.name for each in Path(export.table).iterdir())


@pytest.mark.parametrize("mode", [ExportMode.APPEND, ExportMode.CHANGELOG])
def test_a_task_writes_each_row_and_returns_each_dead_letter(
    export: Export, monkeypatch: pytest.MonkeyPatch, mode: ExportMode
) -> None:
    monkeypatch.setattr(row_files, "GROUP_BYTES", 1000)
    monkeypatch.setattr(row_files, "_FILE_BYTES", 1000)
    export = replace(export, mode=mode)
    results = pa.Table.from_batches(AppendRecords(export)(batches(1))).to_pylist()
    [text] = [each["_written"] for each in results if each["_written"]]
    written = Written.from_json(text)
    assert files_of(export) == sorted(each.name for each in written.files)
    assert len(written.files) > 2
    rows = [pq.read_table(Path(export.table, each.name)) for each in written.files]
    assert [len(each) for each in rows] == [each.rows for each in written.files]
    assert [Path(export.table, each.name).stat().st_size for each in written.files] == [
        each.size for each in written.files
    ]
    whole = pa.concat_tables(rows)
    all_records = decoded(export, 1)
    names = table_columns(export).names
    assert whole.to_pylist() == [{name: each[name] for name in names} for each in all_records if not each["_reason"]]
    letters = [{name: value for name, value in each.items() if name != "_written"} for each in results[:-1]]
    assert letters == [{name: each[name] for name in letters[0]} for each in all_records if each["_reason"]]
    assert written.came == sums_by_partition(whole["_partition"], whole["_digest"])
    for partition in (0, 1):
        here = [each for each in all_records if each["_partition"] == partition]
        bad = [each for each in here if each["_reason"]]
        expected = {
            "records": len(here), "tombstones": sum(each["_tombstone"] for each in here),
            "null_values": sum(each["_tombstone"] for each in bad),
            **{reason: sum(each["_reason"] == reason for each in bad) for reason in {each["_reason"] for each in bad}},
        }  # fmt: skip
        assert written.counts[partition] == {name: count for name, count in expected.items() if count}


def test_a_task_that_fails_leaves_no_files(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "GROUP_BYTES", 1000)
    monkeypatch.setattr(row_files, "_FILE_BYTES", 1000)

    def dying() -> Iterator[pa.RecordBatch]:
        yield from batches(1)
        assert len(files_of(export)) > 1
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        list(AppendRecords(export)(dying()))
    assert files_of(export) == []


def test_a_task_without_rows_writes_no_file(export: Export) -> None:
    [result] = [each for batch in WriteRows(export)([]) for each in batch.to_pylist()]
    assert Written.from_json(result["_written"]) == Written()
    assert files_of(export) == []


def test_results_of_tasks_are_added(export: Export) -> None:
    parts = [list(AppendRecords(export)(batches(seed)))[-1].to_pylist()[-1]["_written"] for seed in (1, 2)]
    one, other = (Written.from_json(each) for each in parts)
    both = reduce(add, (one, other), Written())
    assert both.files == (*one.files, *other.files)
    assert both.came == {each: one.came[each] + other.came[each] for each in (0, 1)}
    assert {each: found["records"] for each, found in both.counts.items()} == {0: 120, 1: 120}


@pytest.mark.parametrize("group_bytes", [1, 2000, 1 << 20])
@pytest.mark.parametrize("digest", [False, True])
def test_only_newer_records_of_a_key_and_partition_replace_a_record(
    export: Export, monkeypatch: pytest.MonkeyPatch, group_bytes: int, *, digest: bool
) -> None:
    monkeypatch.setattr(row_decoding, "_GROUP_BYTES", group_bytes)
    export = replace(export, mode=ExportMode.UPSERT, digest=digest)
    found = pa.Table.from_batches(newest_of_keys(batches(3), export), counted_columns(export)).to_pylist()
    all_records = decoded(export, 3)
    by_key: dict[tuple[int, bytes], list[dict[str, Any]]] = {}
    for each in all_records:
        if each["_reason"] is None:
            by_key.setdefault((each["_partition"], each["_key"]), []).append(each)
    names = [*row_columns(export).names, "_tombstone"]
    newest = {key: {name: group[-1][name] for name in names} for key, group in by_key.items()}
    kept: dict[tuple[int, bytes], list[dict[str, Any]]] = {}
    for each in found:
        if each["_reason"] is None:
            kept.setdefault((each["_partition"], each["_key"]), []).append(each)
    last = {key: max(group, key=lambda each: each["_offset"]) for key, group in kept.items()}
    assert {key: {name: each[name] for name in names} for key, each in last.items()} == newest
    for key, group in by_key.items():
        assert sum(each["_records"] for each in kept[key]) == len(group)
        assert sum(each["_nulls"] for each in kept[key]) == sum(each["_tombstone"] for each in group)
    bad = [{name: each[name] for name in all_records[0]} for each in found if each["_reason"]]
    place = [name for name in COORDINATES.names if name.endswith(("partition", "offset"))]
    bad.sort(key=lambda each: [each[name] for name in place])
    assert bad == [each for each in all_records if each["_reason"]]
    if group_bytes > 1 << 19:
        assert len(found) == len(newest) + len(bad)
