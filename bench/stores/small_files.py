"""Counts the objects of a topic, and measures the size of its state. A stream writes to the topic for a day, and the
storage cannot append to a file.

    ingest    one TopicWriter commits all micro-batches, as in an ingest
    sink      a new process commits each micro-batch, as with format("lakelog")

There are 8,640 micro-batches of 10,000 records to 8 partitions, one micro-batch every 10 seconds. Once an hour the
maintenance runs: merging, deletion of dropped files, sweeping and pruning. The clock is simulated, and nothing needs
Spark. The objects are counted before and after each maintenance. The size of the state is measured after each
micro-batch and after each maintenance. The storage is a local directory that can do only what an object store can do.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

from bench.commits import PARTITIONS, RECORDS, some_records
from bench.results import write_results
from lakelog.spark.sink.committing import CheckpointFolder, commit_batch
from lakelog.spark.sink.sink_staging import StagedRows
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.record.partitioner import partition_keys
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import Encoding, stage_records
from storage_engine.topic.append.staged_run import StagingWriter, by_partition, delete_staged, staging_folder
from storage_engine.topic.append.topic_writer import BatchIdentity, TopicWriter, take_over
from storage_engine.topic.chain.pruning import prune
from storage_engine.topic.clean.sweeping import sweep_topic
from storage_engine.topic.clean.topic_merging import merge_topic
from storage_engine.topic.dropped_files import delete_dropped
from storage_engine.topic.topics import Topics

BATCHES = 8_640
BATCH_MS = 10_000
BATCHES_PER_HOUR = 360
MOST_OBJECTS = 3_500
MOST_STATE_BYTES = 200_000
TOPIC = "values"
QUERY = str(uuid.UUID(int=1))


class WholeFiles(PosixStorage):
    """A local directory that can do only what an object store can do."""

    is_durable_when_visible = True

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.growing = self.links = self.folders = self.view = self.directory = None  # type: ignore[assignment]


class IngestFeed:
    """Commits micro-batches with one writer."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.topics = new_topic(folder / "root", clock)
        chain = self.topics.chain(TOPIC)
        self._state = take_over(chain, QUERY)
        config = self.topics.config(self._state)
        self._writer = TopicWriter(self.topics.storage, chain, config, clock, self._state.writer.epoch)

    def commit(self, number: int) -> None:
        folder = staging_folder(self._state.topic_id, self._state.version)
        with StagingWriter(self.topics.storage, folder, inline=True) as staging:
            stage_records(staging, _RECORDS, _CHOSEN, Encoding.of(self._writer.config, self.topics.clock.now_ms()))
        runs, batch = by_partition(staging.runs), BatchIdentity(QUERY, number, f"{number:064d}")
        self._state = self._writer.append(runs, batch, is_state_fresh=True).state
        delete_staged(self.topics.storage, staging.runs)


class SinkFeed:
    """Commits each micro-batch with the sink's function. Between two micro-batches nothing remains in memory."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self._root = folder / "root"
        self.topics = new_topic(self._root, clock)
        storage = WholeFiles(folder / "checkpoints")
        storage.put_new("query/metadata", json.dumps({"id": QUERY}).encode())
        self._checkpoint = CheckpointFolder(storage, "query")

    def commit(self, number: int) -> None:
        topics = Topics(WholeFiles(self._root), self.topics.broker, self.topics.clock)
        state, now_ms = topics.state(TOPIC), topics.clock.now_ms()
        with StagingWriter(topics.storage, staging_folder(state.topic_id, state.version)) as staging:
            stage_records(staging, _RECORDS, _CHOSEN, Encoding.of(topics.config(state), now_ms))
        offsets = f"v1\n{json.dumps({'batchTimestampMs': now_ms})}\n{number}".encode()
        self._checkpoint.storage.put_new(f"query/offsets/{number}", offsets)
        rows = StagedRows(QUERY, {(TOPIC, state.topic_id): tuple(staging.runs)})
        commit_batch(topics, self._checkpoint, [rows], number, TOPIC)
        self._checkpoint.storage.delete(f"query/offsets/{number}")


FEEDS: dict[str, Callable[[Path, ManualClock], IngestFeed | SinkFeed]] = {"ingest": IngestFeed, "sink": SinkFeed}
_RECORDS = some_records()
_CHOSEN = partition_keys(_RECORDS["key"], PARTITIONS, 0)


def new_topic(root: Path, clock: ManualClock) -> Topics:
    topics = Topics(WholeFiles(root), BrokerConfig(), clock)
    topics.create(TOPIC, PARTITIONS, {})
    return topics


def objects(root: Path) -> int:
    """The number of files below a directory."""
    return sum(len(files) for _, _, files in os.walk(root))


def main() -> None:
    rows = []
    for name in FEEDS:
        with tempfile.TemporaryDirectory(prefix="lakelog-bench-") as folder:
            rows += [[f"{name}: {figure}", *rest] for figure, *rest in feed(name, Path(folder))]
    write_results(
        "small_files",
        "Small files",
        f"A topic with {PARTITIONS} partitions gets {BATCHES:,} micro-batches of {RECORDS:,} records, one every"
        f" {BATCH_MS // 1000} seconds of a simulated clock. The storage cannot append to a file. In the first rows, one"
        ' process commits all micro-batches, as in an ingest. In the rows of the sink, format("lakelog"), a new process'
        " commits each micro-batch. Maintenance runs once an hour. The first two figures of each are the largest values"
        " of the whole day.",
        ["", "measured", "wanted"],
        rows,
        [],
    )


def feed(name: str, folder: Path) -> list[list[str]]:
    """Feed a topic for a day; returns the rows of the table."""
    clock = ManualClock(1_700_000_000_000)
    feeding = FEEDS[name](folder, clock)
    root = folder / "root"
    most_objects = most_state = 0
    for number in range(BATCHES):
        clock.advance(BATCH_MS)
        feeding.commit(number)
        most_state = max(most_state, state_bytes(root))
        if (number + 1) % BATCHES_PER_HOUR == 0:
            most_objects = max(most_objects, objects(root))
            maintain(feeding.topics)
            most_state = max(most_state, state_bytes(root))
            most_objects = max(most_objects, objects(root))
            print(f"{name}, hour {(number + 1) // BATCHES_PER_HOUR}: {objects(root)} objects", flush=True)
    return [
        ["objects at once", f"{most_objects:,}", f"at most {MOST_OBJECTS:,}"],
        ["bytes of the state", f"{most_state:,}", f"at most {MOST_STATE_BYTES:,}"],
        ["objects at the end", f"{objects(root):,}", ""],
    ]


def maintain(topics: Topics) -> None:
    chain = topics.chain(TOPIC)
    config = topics.config(chain.newest())
    merge_topic(topics.storage, chain, config)
    delete_dropped(topics.storage, chain, config, topics.clock.now_ms())
    sweep_topic(topics.storage, chain, topics.broker)
    prune(topics.storage, chain)


def state_bytes(root: Path) -> int:
    """The size of the newest version of the state."""
    return max((root / "meta" / TOPIC).glob("*.json")).stat().st_size


if __name__ == "__main__":
    main()
