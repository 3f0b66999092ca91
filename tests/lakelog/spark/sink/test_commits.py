"""Commits of the sink, without Spark: lost files, idle queries, and where a checkpoint is."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lakelog.spark.sink.committing import CheckpointFolder, commit_batch, commit_rows
from lakelog.spark.sink.sink_staging import StagedRows
from lakelog.spark.sink.streaming_checkpoint import began_ms
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import BatchRefusedError
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.append.appending import Encoding, stage_records
from storage_engine.topic.append.staged_run import StagingWriter, staging_folder
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import files_below, storage_at

QUERY = str(uuid.uuid4())
DAY_MS = 24 * 3_600_000


def staged(topics: Topics, topic: str, query: str, value: bytes) -> StagedRows:
    """The report of a task that has staged one record."""
    state = topics.state(topic)
    with StagingWriter(topics.storage, staging_folder(state.topic_id, state.version)) as staging:
        encoding = Encoding.of(topics.config(state), topics.clock.now_ms())
        stage_records(staging, to_table([Row(b"k", value)]), np.zeros(1, np.int32), encoding)
    return StagedRows(query, {(topic, state.topic_id): tuple(staging.runs)})


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
    state, rows = topics.state("t"), staged(topics, "t", QUERY, b"v")
    key = rows.runs["t", state.topic_id][0].key
    content = topics.storage.read(key)
    topics.storage.delete(key)

    with pytest.raises(BatchRefusedError) as error:
        commit(topics, rows)

    assert error.value.place == "topic t"
    assert f"{key}, which is missing" in error.value.problem
    assert error.value.remedy == "Nothing was appended to this topic. Run the query again: it stages the rows again."
    assert topics.state("t") == state
    topics.storage.replace(key, content)
    commit(topics, rows)
    assert topics.state("t").partitions[0].high_watermark == 1


class Queries:
    """Two topics, and queries whose checkpoints are in the folders `checkpoints/<name>`. Each row names its topic."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.topics = Topics(storage_at(folder), BrokerConfig(), self.clock)
        for topic in ("rare", "usual"):
            self.topics.create(topic, 1, {})

    def commit(self, name: str, batch_id: int, topic: str, checkpoint: str = "") -> None:
        """Write one record with the number of the batch, as Spark does. name: the query's name."""
        folder, query = f"checkpoints/{checkpoint or name}", str(uuid.uuid5(uuid.NAMESPACE_OID, name))
        self.topics.storage.replace(f"{folder}/metadata", json.dumps({"id": query}).encode())
        offsets = f"v1\n{json.dumps({'batchTimestampMs': self.clock.now_ms()})}\n{batch_id}".encode()
        self.topics.storage.replace(f"{folder}/offsets/{batch_id}", offsets)
        rows = staged(self.topics, topic, query, f"{name} {batch_id}".encode())
        commit_batch(self.topics, CheckpointFolder(self.topics.storage, folder), [rows], batch_id, None)

    def copy(self, name: str, new: str) -> None:
        """Copy a checkpoint, and give the copy's query another id. The copied files are newer than the first ones."""
        for key in files_below(self.topics.storage, f"checkpoints/{name}/"):
            self.topics.storage.replace(key.replace(f"/{name}/", f"/{new}/"), self.topics.storage.read(key))

    def values(self, topic: str) -> list[str]:
        reader = PartitionReader(self.topics.storage, self.topics.chain(topic), 0, self.topics.state(topic))
        return [value.decode() for records in reader.read(0) for value in records["value"].to_pylist()]


def test_a_query_that_began_after_the_deleted_entries_writes_to_a_topic_for_the_first_time(tmp_path: Path) -> None:
    queries = Queries(tmp_path)
    storage = queries.topics.storage
    for name in ("older", "idle"):
        queries.commit(name, 0, "rare")
        queries.commit(name, 1, "usual")
    queries.clock.advance(DAY_MS)
    queries.commit("newer", 0, "usual")
    queries.commit("newer", 1, "usual")
    for name in ("older", "newer"):
        storage.delete(f"checkpoints/{name}/offsets/0")  # as Spark does after a hundred micro-batches
    queries.copy("newer", "copy")
    queries.copy("older", "copy of older")
    queries.clock.advance(31 * DAY_MS)
    queries.commit("busy", 0, "rare")  # deletes the entries of `older` and `idle`

    queries.commit("newer", 200, "rare")
    for name, checkpoint in [
        ("older", ""), ("older", "copy of older"), ("idle", ""), ("another query", "copy"),
    ]:  # fmt: skip
        with pytest.raises(BatchRefusedError, match="no entry of this query, so the topic may already contain this"):
            queries.commit(name, 200, "rare", checkpoint)
    with pytest.raises(BatchRefusedError, match=r"found batch 199 .*copied or rolled back"):
        queries.commit("newer", 199, "rare", "copy")
    assert queries.values("rare") == ["older 0", "idle 0", "busy 0", "newer 200"]


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/checkpoint", "/checkpoint"),
        ("/checkpoint/.", "/checkpoint"),
        ("checkpoint", "HERE/checkpoint"),
        ("./checkpoint/", "HERE/checkpoint"),
        ("a/b/../checkpoint/.", "HERE/a/checkpoint"),
        ("a b/c#1/ck%201", "HERE/a b/c#1/ck%201"),
        ("file:/checkpoint", "/checkpoint"),
        ("file:///checkpoint", "/checkpoint"),
        ("file:/a%20b/c d/checkpoint/", "/a%20b/c d/checkpoint"),
    ],
)
def test_a_checkpoint_is_where_spark_writes_it(location: str, path: str) -> None:
    found = CheckpointFolder.at(location)
    assert found.storage.root is not None
    assert str(found.storage.root / found.key) == path.replace("HERE", str(Path.cwd()))


def test_the_time_when_a_query_began_is_kept_in_a_checkpoint_below_the_top_folder(tmp_path: Path) -> None:
    """The storage is the top folder, as for `checkpointLocation=/checkpoint`."""
    top, checkpoint = open_storage("/"), str(tmp_path).removeprefix("/")
    assert began_ms(top, checkpoint, QUERY) == -1
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/0").write_text('v1\n{"batchTimestampMs": 7}\n0')
    assert began_ms(top, checkpoint, QUERY) == 7
    (tmp_path / "offsets/0").unlink()
    assert began_ms(top, checkpoint, QUERY) == 7
    assert began_ms(top, checkpoint, str(uuid.uuid4())) == -1
