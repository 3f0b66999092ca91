"""The staged files of a task, without Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.ingest.rows.record_rows import ROWS
from pipeline.ingest.staging_task import StagingTask, StagingTopic
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
