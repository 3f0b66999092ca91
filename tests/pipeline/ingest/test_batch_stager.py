"""The staged files of a task, without Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.ingest.rows.record_rows import ROWS
from pipeline.ingest.staging_task import StagingTask, StagingTopic
from pipeline.model_changes import TopicSchemas
from schemas.event_schema import EventSchema
from storage_engine.config import TopicConfig
from storage_engine.topic.append.appending import Encoding

ROWS_OF = {"value": [b"one", b"two"], "topic": ["a", "b"], "partition": [0, 0], "timestamp": [1, 2]}


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The paths of what was synced."""
    paths: set[str] = set()
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        paths.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    return paths


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_staged_files_survive_a_power_cut_where_a_list_will_name_them(
    tmp_path: Path, synced: set[str], names: list[str]
) -> None:
    config = TopicConfig()
    topics = tuple(StagingTopic(name, f"staging/{name}/0/", 1, config, Encoding.of(config, 1), {}) for name in names)
    task = StagingTask(
        str(tmp_path),
        topics,
        spreads=len(names) > 1,
        listed=len(names) > 1,
        positioned=False,
        now_ms=1,
        query_id="q",
        batch_id=0,
    )
    rows = pa.RecordBatch.from_arrays(
        [pa.array(ROWS_OF.get(field.name, [None, None]), field.type) for field in ROWS], schema=ROWS
    )
    (report,) = task([rows])
    runs = [json.loads(run) for staged in json.loads(report["runs"][0].as_py()).values() for run in staged]
    files = {str(tmp_path / key) for _, key, *_ in runs}
    assert len(files) == len(names)
    assert all(Path(file).is_file() for file in files)
    folders = {str(Path(file).parent) for file in files}
    assert (files | folders) & synced == (files | folders if len(names) > 1 else set())


def test_a_check_accepts_each_tombstone_and_names_the_key_first(tmp_path: Path) -> None:
    schemas = TopicSchemas(EventSchema("n BIGINT"), EventSchema("k BIGINT NOT NULL", of_key=True))
    config = TopicConfig()
    topic = StagingTopic("a", "staging/a/0/", 1, config, Encoding.of(config, 1), {}, schemas)
    task = StagingTask(
        str(tmp_path), (topic,), spreads=False, listed=False, positioned=False, now_ms=1, query_id="q", batch_id=0
    )
    records = [(b'{"k": 1}', b"{}"), (b"{}", None), (b"{}", b"{}"), (b"{}", b"["), (b'{"k": 1}', b"[")]
    rows = [{"key": key, "value": value, "partition": 0, "timestamp": 1} for key, value in records]
    list(task([pa.RecordBatch.from_pylist(rows, ROWS)]))
    (letters,) = tmp_path.glob("staging/a/0/*.parquet")
    of_key = "key: missing at k, by the schema k BIGINT NOT NULL"
    found = [(row["row"], row["detail"]) for row in pq.read_table(letters).to_pylist()]
    assert found[:2] == [(2, of_key), (3, of_key)]
    assert [(row, detail.startswith("key: ")) for row, detail in found[2:]] == [(4, False)]
