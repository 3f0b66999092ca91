"""Proofs of upsert tables whose keys have records in several partitions. Such a table can depend on when its exports ran."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake

from lakelog.delta_options import delta_options
from pipeline.delta.proof.findings import SEVERAL_PARTITIONS
from tests.pipeline.delta.proof.exported_topic import START_MS, ExportedTopic, whole
from tests.roots.delta_tables import table_at

FAR = "equal as far as the log can tell"


def add(topic: ExportedTopic, partition: int, seconds: int, number: int | None) -> None:
    """Append a record of the key `k`, or a tombstone."""
    value = None if number is None else b'{"number": %d}' % number
    row = {"key": b"k", "value": value, "timestamp": START_MS + seconds * 1000}
    topic.topic.append([row], partition=partition)


def numbers(topic: ExportedTopic) -> list[int]:
    found: list[int] = table_at(topic.export.table).to_pyarrow_table()["number"].to_pylist()
    return found


@pytest.mark.parametrize("digest", [True, False])
def test_a_row_that_came_back_after_its_deletion_is_not_different(tmp_path: Path, digest: bool) -> None:
    topic = ExportedTopic(tmp_path, digest=digest)
    add(topic, 0, 1, 1)
    topic.run_export()
    add(topic, 0, 10, None)
    topic.run_export()
    assert numbers(topic) == []
    assert topic.prove().answer == "equal"
    add(topic, 1, 5, 2)
    topic.run_export()
    assert numbers(topic) == [2]
    proof = topic.prove()
    assert whole(proof) == {
        "answer": FAR, "rows": 1, "equal": 0, "unprovable": {SEVERAL_PARTITIONS: 1}, "differences": [],
    }  # fmt: skip
    assert proof.covered == (1 if digest else 0)

    add(topic, 1, 6, 3)  # older than the tombstone, too
    topic.run_export()
    assert numbers(topic) == [3]
    assert whole(topic.prove())["differences"] == []


@pytest.mark.parametrize("in_one_export", [True, False])
def test_a_row_that_a_tombstone_had_to_delete_is_different(tmp_path: Path, in_one_export: bool) -> None:
    """The tombstone was read with the record, or later: no export leaves such a row."""
    topic = ExportedTopic(tmp_path)
    add(topic, 1, 5, 2)
    topic.run_export()
    kept = table_at(topic.export.table).to_pyarrow_table()
    add(topic, 0, 10, None)
    if in_one_export:
        topic = ExportedTopic(tmp_path / "other")
        add(topic, 1, 5, 2)
        add(topic, 0, 10, None)
    topic.run_export()
    topic.append((b"other", 4))
    topic.run_export()
    assert numbers(topic) == [4]
    assert topic.prove().answer == "equal"
    path = topic.export.table
    write_deltalake(path, kept, mode="append", storage_options=delta_options(path))
    assert whole(topic.prove())["differences"] == [(1, 0, "the newer record 0:0 must delete the row")]
