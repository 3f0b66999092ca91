"""A commit of the sink, one of whose staged files is gone. Needs no Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lakelog.spark.sink.committing import CheckpointFolder, commit_batch, commit_rows
from lakelog.spark.sink.sink_staging import StagedRows
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import BatchRefusedError
from storage_engine.topic.append.appending import Encoding, stage_records
from storage_engine.topic.append.staged_run import StagingWriter, staging_folder
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import storage_at

QUERY = str(uuid.uuid4())


def commit_stream(topics: Topics, rows: StagedRows) -> None:
    topics.storage.replace("checkpoint/metadata", json.dumps({"id": QUERY}).encode())
    topics.storage.replace("checkpoint/offsets/0", b"v1\n{}\n0")
    commit_batch(topics, CheckpointFolder(topics.storage, "checkpoint"), [rows], 0, "t")


def commit_batch_write(topics: Topics, rows: StagedRows) -> None:
    commit_rows(topics, [rows])


@pytest.mark.parametrize("commit", [commit_stream, commit_batch_write])
def test_the_error_for_a_staged_file_that_is_gone_names_the_file_and_what_to_do(
    commit: Callable[[Topics, StagedRows], None], tmp_path: Path
) -> None:
    topics = Topics(storage_at(tmp_path), BrokerConfig(), ManualClock(1_700_000_000_000))
    topics.create("t", 1, {})
    state = topics.state("t")
    with StagingWriter(topics.storage, staging_folder(state.topic_id, state.version)) as staging:
        encoding = Encoding.of(topics.config(state), topics.clock.now_ms())
        stage_records(staging, to_table([Row(b"k", b"v")]), np.zeros(1, np.int32), encoding)
    key = staging.runs[0].key
    content = topics.storage.read(key)
    topics.storage.delete(key)
    rows = StagedRows(QUERY, {("t", state.topic_id): tuple(staging.runs)})

    with pytest.raises(BatchRefusedError) as error:
        commit(topics, rows)

    assert error.value.place == "topic t"
    assert f"{key}, which is missing" in error.value.problem
    assert error.value.remedy == "Nothing was appended to this topic. Run the query again: it stages the rows again."
    assert topics.state("t") == state
    topics.storage.replace(key, content)
    commit(topics, rows)
    assert topics.state("t").partitions[0].high_watermark == 1
