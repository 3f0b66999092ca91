"""A micro-batch whose list of staged runs exists already, on a storage that fails once: the micro-batch waits, and then
continues.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from pyspark.sql import DataFrame

from lakelog.spark.sink.streaming_checkpoint import batch_identity
from pipeline.ingest.batch_stager import BatchStager
from pipeline.ingest.claim import Claim
from pipeline.ingest.ingest_topic import take_over_all
from pipeline.ingest.micro_batch import IngestResult, MicroBatches, TopicResult
from pipeline.ingest.source_positions import PositionedSource
from pipeline.ingest.storage_retry import StorageRetry
from pipeline.settings import load_settings
from storage_engine.errors import StorageUnavailableError
from storage_engine.progress import Meter
from storage_engine.storage import Storage
from storage_engine.topic.append.appending import Encoding, stage_records
from storage_engine.topic.append.committed_positions import Advance
from storage_engine.topic.append.staged_list import StagedBatch, StagedTopic, put_list, read_list
from storage_engine.topic.append.staged_run import StagingWriter, by_partition, staging_folder
from storage_engine.topic.append.topic_writer import BatchIdentity
from tests.pipeline.ingest.ingest_runs import records_of, topics_of
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import files_below, root_at

QUERY, NAMES, SOURCE = "query", ("clicks", "orders"), "json landing"
SETTINGS = """
topics: {clicks: {}, orders: {}}
ingest:
  topics: [clicks, orders]
  topic.column: t
  checkpoint: checkpoints/ingest/events
  source: {format: json, path: landing, schema: "t STRING, v STRING"}
  value: v
"""
NO_ROWS = cast("DataFrame", SimpleNamespace(sparkSession=None))


class Run:
    """The first micro-batch of a query with two topics. The query died after it had staged the micro-batch."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.topics = topics_of(self.root)
        self.storage = self.topics.storage
        conf = folder / "conf.yaml"
        conf.write_text(SETTINGS)
        self.ingest = load_settings(conf, (), root_at(self.root)).required_ingest()
        for name in NAMES:
            self.topics.create(name, 1, {})
        offsets = f"v1\n{{}}\n{json.dumps({'logOffset': 0})}"
        self.storage.put_new(f"{self.ingest.checkpoint}/offsets/0", offsets.encode())
        self.ingest_topics = take_over_all(self.topics, NAMES, Claim(QUERY))
        self.batch = batch_identity(self.storage, self.ingest.checkpoint, QUERY, 0, None)
        self.result = IngestResult(QUERY, {name: TopicResult(each.epoch) for name, each in self.ingest_topics.items()})
        self.lines: list[str] = []

    def stage(self, batch: BatchIdentity, advance: Advance | None = None) -> StagedBatch:
        parts = []
        for name, each in self.ingest_topics.items():
            state = each.newest()
            with StagingWriter(self.storage, staging_folder(state.topic_id, state.version), durable=True) as writer:
                encoding = Encoding.of(self.topics.config(state), self.topics.clock.now_ms())
                stage_records(writer, to_table([Row(b"k", name.encode())]), np.zeros(1, np.int32), encoding)
            parts.append(StagedTopic(name, state.topic_id, state.configs, writer.runs, advance=advance))
        return put_list(self.storage, StagedBatch(batch, tuple(parts)))

    def commit(self, staged: StagedBatch) -> None:
        for topic in staged.topics:
            self.ingest_topics[topic.topic].writer.append(by_partition(topic.runs), staged.batch)

    def begin(self, source: PositionedSource | None = None) -> None:
        storage_retry = StorageRetry(60_000, lambda _: False, self.lines.append)
        meter = Meter("ingest", self.topics.clock)
        MicroBatches(
            self.topics,
            self.ingest,
            source,
            self.ingest_topics,
            self.result,
            self.lines.append,
            meter,
            storage_retry,
            {},
            "",
        ).ingest(NO_ROWS, 0)

    @property
    def staged_files(self) -> list[str]:
        return files_below(self.storage, "staging/")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def fail_once(
    monkeypatch: pytest.MonkeyPatch, kind: type[Storage], call: str, concerned: Callable[[str], bool] = lambda _: True
) -> None:
    """Let the first call of this method fail, on any storage of this class."""
    real = getattr(kind, call)
    failed: list[str] = []

    def failing(storage: Storage, key: str, *arguments: Any, **named: Any) -> Any:
        if not failed and concerned(key):
            failed.append(key)
            raise StorageUnavailableError(key, "Host is down")
        return real(storage, key, *arguments, **named)

    monkeypatch.setattr(kind, call, failing)


def test_deleting_a_list_that_no_topic_waits_for_is_waited_for(run, monkeypatch) -> None:
    run.commit(run.stage(run.batch))
    fail_once(monkeypatch, type(run.storage), "delete")
    run.begin()
    assert "waiting for the storage" in run.lines[0]
    assert run.lines[1:] == ["batch 0: committed before, skipped"]
    assert run.staged_files == []


def test_deleting_a_list_of_older_positions_is_waited_for(run, monkeypatch) -> None:
    class StagedAgain(BaseException):
        """The list is gone, and the batch is being staged again."""

    def stage(*_: object) -> None:
        raise StagedAgain

    source = PositionedSource(SOURCE, ("file", "line"), "json")
    run.batch = batch_identity(run.storage, run.ingest.checkpoint, QUERY, 0, SOURCE)
    run.stage(run.batch, Advance(SOURCE, {"a file": 7}, {"a file": 9}))
    monkeypatch.setattr(BatchStager, "stage", stage)
    fail_once(monkeypatch, type(run.storage), "delete")
    with pytest.raises(StagedAgain):
        run.begin(source)
    assert len(run.lines) == 1
    assert "waiting for the storage" in run.lines[0]
    assert read_list(run.storage, run.batch) is None
    assert run.staged_files == []


def test_looking_for_the_files_of_a_list_is_waited_for(run, monkeypatch) -> None:
    staged = run.stage(run.batch)
    fail_once(monkeypatch, type(run.storage), "read", lambda key: key in staged.files)
    run.begin()
    assert "waiting for the storage" in run.lines[0]
    assert run.lines[1].startswith("batch 0: 2 records in ")
    assert [[record["value"] for record in records_of(run.root, name)] for name in NAMES] == [[b"clicks"], [b"orders"]]
    assert run.staged_files == []
