"""Counts the objects of a topic, and measures the size of its state. A stream writes to the topic for a day, and the
storage cannot append to a file.

A TopicWriter without Spark commits 8,640 micro-batches of 10,000 records to 8 partitions, one micro-batch every 10
seconds. Once an hour the maintenance runs: merging, deletion of dropped files, sweeping and pruning. The clock is
simulated. The objects are counted before and after each maintenance. The size of the state is measured after each
micro-batch and after each maintenance. The storage is a local directory that can do only what an object store can do.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from bench.commits import PARTITIONS, RECORDS, some_records
from bench.results import write_results
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.record.partitioner import partition_keys
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import Encoding, stage_records
from storage_engine.topic.append.staged_run import StagingWriter, by_partition, delete_staged, staging_folder
from storage_engine.topic.append.topic_writer import BatchIdentity, TopicWriter, take_over
from storage_engine.topic.chain.pruning import prune
from storage_engine.topic.chain.version_files import version_key
from storage_engine.topic.clean.sweeping import sweep_topic
from storage_engine.topic.clean.topic_merging import merge_topic
from storage_engine.topic.dropped_files import delete_dropped
from storage_engine.topic.topics import Topics

BATCHES = 8_640
BATCH_MS = 10_000
BATCHES_PER_HOUR = 360
MOST_OBJECTS = 3_500
MOST_STATE_BYTES = 200_000


class WholeFiles(PosixStorage):
    """A local directory that can do only what an object store can do."""

    is_durable_when_visible = True

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.growing = self.links = self.folders = self.view = self.directory = None  # type: ignore[assignment]


def objects(root: Path) -> int:
    """The number of files below a directory."""
    return sum(len(files) for _, _, files in os.walk(root))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="lakelog-bench-") as folder:
        rows = feed(Path(folder))
    write_results(
        "small_files",
        "Small files",
        f"A topic with {PARTITIONS} partitions gets {BATCHES:,} micro-batches of {RECORDS:,} records, one every"
        f" {BATCH_MS // 1000} seconds of a simulated clock. The storage cannot append to a file. Maintenance runs once"
        " an hour. The first two figures are the largest values of the whole day.",
        ["", "measured", "wanted"],
        rows,
        [],
    )


def feed(root: Path) -> list[list[str]]:
    storage, clock = WholeFiles(root), ManualClock(1_700_000_000_000)
    topics = Topics(storage, BrokerConfig(), clock)
    topics.create("values", PARTITIONS, {})
    chain = topics.chain("values")
    state = take_over(chain, "query")
    config = topics.config(state)
    writer = TopicWriter(storage, chain, config, clock, state.writer.epoch)
    records = some_records()
    chosen = partition_keys(records["key"], PARTITIONS, 0)
    most_objects = most_state = 0
    for number in range(BATCHES):
        clock.advance(BATCH_MS)
        with StagingWriter(storage, staging_folder(state.topic_id, state.version), inline=True) as staging:
            stage_records(staging, records, chosen, Encoding.of(config, clock.now_ms()))
        state = writer.append(
            by_partition(staging.runs), BatchIdentity("query", number, f"{number:064d}"), is_state_fresh=True
        ).state
        delete_staged(storage, staging.runs)
        most_state = max(most_state, (root / version_key("values", state.version)).stat().st_size)
        if (number + 1) % BATCHES_PER_HOUR == 0:
            most_objects = max(most_objects, objects(root))
            cleaning = topics.chain("values")
            merge_topic(storage, cleaning, config)
            delete_dropped(storage, cleaning, config, clock.now_ms())
            sweep_topic(storage, cleaning, topics.broker)
            prune(storage, cleaning)
            newest = cleaning.newest()
            most_state = max(most_state, (root / version_key("values", newest.version)).stat().st_size)
            most_objects = max(most_objects, objects(root))
            print(f"hour {(number + 1) // BATCHES_PER_HOUR}: {objects(root)} objects", flush=True)
    writer.close()
    return [
        ["objects at once", f"{most_objects:,}", f"at most {MOST_OBJECTS:,}"],
        ["bytes of the state", f"{most_state:,}", f"at most {MOST_STATE_BYTES:,}"],
        ["objects at the end", f"{objects(root):,}", ""],
    ]


if __name__ == "__main__":
    main()
