"""Tests that the history of a table, read from the files of the table's log, is the same as in Delta's own DESCRIBE
HISTORY.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from delta.tables import DeltaTable

from pipeline.delta.export_plan import Export, ExportRefusedError
from pipeline.delta.table_history import Commit, DeltaLog
from storage_engine.storage.storage_opening import open_storage
from tests.pipeline.delta.order_log import Log, run
from tests.roots.delta_tables import commit_file, table_at


def in_spark(log: Log, table: str) -> list[Commit]:
    columns = "version", "operation", "operationParameters", "operationMetrics", "userMetadata"
    rows = DeltaTable.forPath(log.spark, table).history().select(*columns).collect()
    return [Commit(row[0], row[1], as_text(row[2]), as_text(row[3] or {}), row[4]) for row in rows]


def as_text(fields: dict[str, object]) -> dict[str, str]:
    """Spark gives each value of an action as text."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        for name, value in fields.items()
        if value is not None
    }


def in_files(table: str) -> list[Commit]:
    return [
        replace(
            each,
            parameters=as_text(dict(each.parameters)),
            metrics=as_text(dict(each.metrics)),
            table_id=None,
            adds_files=False,
            changes_rows=False,
            columns=None,
        )
        for each in DeltaLog(table).commits()
    ]


def test_the_history_is_that_of_spark(log: Log, upsert: Export) -> None:
    for number in range(2):
        log.add(b"a", number)
        log.add(b"b", number)
        run(log, upsert)
    table = table_at(upsert.table)
    table.optimize.compact()
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    DeltaTable.forPath(log.spark, upsert.table).restoreToVersion(1)
    found = in_files(upsert.table)
    assert found == in_spark(log, upsert.table)
    assert found[0].operation == "RESTORE"
    changes = {each.version: (each.operation, each.changes_rows) for each in DeltaLog(upsert.table).commits()}
    assert [changes[version][1] for version in sorted(changes)] == [False, True, True, False, True], changes
    assert {each.table_id for each in DeltaLog(upsert.table).commits()} == {None, str(table.metadata().id)}
    columns = frozenset(("number", "colour", "_key", "_partition", "_offset", "_timestamp", "_stale_since"))
    created, restored = ([*DeltaLog(upsert.table).commits()][at] for at in (-1, 0))
    assert created.columns == restored.columns == columns
    assert DeltaLog(f"{upsert.table} 2").versions == []


def test_commits_that_delta_has_deleted_end_the_history(log: Log, append: Export) -> None:
    log.add(b"a", 1)
    run(log, append)
    table_at(append.table).create_checkpoint()
    listed = DeltaLog(append.table)
    commit_file(append.table, 0).unlink()
    assert [each.version for each in listed.commits()] == [1]
    log.add(b"b", 2)
    assert run(log, append).positions_before == {0: 1}
    assert in_files(append.table) == in_spark(log, append.table)


def test_a_commit_that_is_none_is_refused_and_named(log: Log, append: Export) -> None:
    log.add(b"a", 1)
    run(log, append)
    commit = commit_file(append.table, 1)
    commit.write_bytes(commit.read_bytes()[:-20])
    with pytest.raises(ExportRefusedError, match=rf"{commit}: is not a commit of a Delta table\. Restore the file"):
        run(log, append)
    storage = open_storage(append.table)
    storage.replace(f"_delta_log/{1:020}.checkpoint.parquet", b"")
    for version in (0, 1):
        commit_file(append.table, version).unlink()
    with pytest.raises(ExportRefusedError, match=r"has no commit in _delta_log/\. Restore the table"):
        run(log, append)


@pytest.mark.parametrize(
    "left",
    [
        f".{0:020}.json.0a4a7cbf-4d2f-4c3c-8d73-8f2ac9d5a3a1.tmp",  # Spark
        f"{0:020}.json#1",  # deltalake
        "_commit_0a4a7cbf-4d2f-4c3c-8d73-8f2ac9d5a3a1.json.tmp",  # older versions of deltalake
    ],
)
def test_a_first_commit_that_was_interrupted_is_no_table(log: Log, append: Export, left: str) -> None:
    open_storage(append.table).replace(f"_delta_log/{left}", b"half a comm")
    log.add(b"a", 1)
    run(log, append)
    assert in_files(append.table) == in_spark(log, append.table)
    rows = table_at(append.table).to_pyarrow_table(columns=["number", "_key", "_partition", "_offset"]).to_pylist()
    assert rows == [{"number": 1, "_key": b"a", "_partition": 0, "_offset": 0}]
