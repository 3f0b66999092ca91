"""Publishing by a Spark job: the job writes the same bytes as the driver would. Also tests the files that a failed task
leaves.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.ingest.spark_publisher import SparkPublisher
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import ConflictError, FencedError, LogError
from storage_engine.log.filenames import data_folder
from storage_engine.log.partition_state import PartitionState
from storage_engine.record.partitioner import partition_keys
from storage_engine.topic.append.appending import Encoding, stage_records
from storage_engine.topic.append.staged_run import StagedRun, StagingWriter, by_partition
from storage_engine.topic.append.topic_writer import BatchIdentity, Committed, TopicWriter, take_over
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.pipeline.ingest.ingest_runs import records_of, run_ingest
from tests.storage_engine.record_tables import Row, to_rows, to_table
from tests.stores import files_below, local, root_at, storage_at

pytestmark = pytest.mark.spark

CLOCK = ManualClock(1_700_000_000_000)
PARTITIONS = 3
SETTINGS = """
root: {root}
topics:
  events: {{partitions: 3, segment.bytes: 4000}}
ingest:
  topic: events
  source: {{format: json, path: {source}, schema: "k STRING, v STRING", options: {{maxFilesPerTrigger: 1}}}}
  key: k
  value: v
  batch.size: 500
"""


class Root:
    """A topic under a root, and a writer that publishes in either way."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.storage = storage_at(folder)
        self.topics = Topics(self.storage, BrokerConfig(), CLOCK)
        self.topics.create("t", PARTITIONS, {"segment.bytes": "1200", "index.interval.bytes": "0"})
        self.spark_publisher = SparkPublisher(spark, self.storage)
        self.chain = self.topics.chain("t")
        self.writer = self.new_writer()

    def new_writer(self) -> TopicWriter:
        epoch = take_over(self.chain, "q").writer.epoch
        return TopicWriter(self.storage, self.chain, self.topics.config(self.chain.newest()), CLOCK, epoch)

    def staged(self, first: int, count: int) -> list[StagedRun]:
        state = self.chain.newest()
        rows = [Row(b"k%d" % number, b"v%d" % number * 20, (), CLOCK.now_ms() + number) for number in range(count)]
        table = to_table(rows[first:])
        with StagingWriter(self.storage, f"staging/{state.topic_id}/b/") as staging:
            chosen = partition_keys(table["key"], PARTITIONS, 0)
            stage_records(staging, table, chosen, Encoding.of(self.topics.config(state), CLOCK.now_ms(), 400))
        return staging.runs

    def append(self, number: int, *, by_spark: bool) -> Committed:
        runs = by_partition(self.staged(0, 60 + number))
        publisher = self.spark_publisher if by_spark else None
        return self.writer.append(runs, BatchIdentity("q", number, "h"), publisher=publisher)

    @property
    def partitions(self) -> tuple[PartitionState, ...]:
        return self.topics.state("t").partitions

    def contents(self) -> list[list[Row]]:
        readers = [PartitionReader(self.storage, self.topics.chain("t"), number) for number in range(PARTITIONS)]
        return [[row for records in reader.read(0) for row in to_rows(records)] for reader in readers]

    def files(self, suffix: str) -> list[PurePosixPath]:
        """The keys of all files with this suffix."""
        keys = map(PurePosixPath, sorted(files_below(self.storage, "data/")))
        return [key for key in keys if key.match(f"data/*/*/*.{suffix}")]

    def logs(self) -> list[bytes]:
        """The bytes of each partition, behind one another."""
        folders = [data_folder(self.topics.state("t").topic_id, number) for number in range(PARTITIONS)]
        return [
            b"".join(self.storage.read(f"{folder}{segment.name}.log", 0, segment.size) for segment in part.segments)
            for folder, part in zip(folders, self.partitions, strict=True)
        ]


def test_both_ways_give_the_same_bytes_and_go_on_behind_one_another(spark: SparkSession, tmp_path: Path) -> None:
    by_driver, by_spark, mixed = (Root(tmp_path / name, spark) for name in ("driver", "spark", "mixed"))
    for number in range(3):
        by_driver.append(number, by_spark=False)
        by_spark.append(number, by_spark=True)
        mixed.append(number, by_spark=number == 1)
    assert by_driver.logs() == by_spark.logs() == mixed.logs()
    assert by_driver.contents() == by_spark.contents() == mixed.contents()
    assert sum(map(len, by_spark.contents())) == 60 + 61 + 62
    for root in (by_spark, mixed):
        named = {segment.name for part in root.partitions for segment in part.segments}
        assert {path.stem for path in root.files("log")} == named, "each has one name, and no other file is there"


def test_a_segment_that_spark_wrote_has_the_indexes_of_one_that_the_driver_rolled(
    spark: SparkSession, tmp_path: Path
) -> None:
    by_driver, by_spark = Root(tmp_path / "driver", spark), Root(tmp_path / "spark", spark)
    for root in (by_driver, by_spark):
        root.append(0, by_spark=root is by_spark)
    for suffix in ("index", "timeindex"):
        written = [
            {
                path.name.split(".")[0]: root.storage.read(str(path))
                for path in root.files(suffix)
                if path.parent.name == "0"
            }
            for root in (by_driver, by_spark)
        ]
        *rolled, active = sorted(written[0])
        assert len(rolled) >= 1
        assert {name: written[0][name] for name in rolled} == {name: written[1][name] for name in rolled}
        assert written[1][active].startswith(written[0][active])


@pytest.mark.posix("puts a file in the place of a folder")
def test_a_job_of_which_a_task_fails_commits_nothing_and_can_run_again(spark: SparkSession, tmp_path: Path) -> None:
    root = Root(tmp_path, spark)
    root.append(0, by_spark=True)
    before = root.contents()
    folder = local(root.storage).path(data_folder(root.topics.state("t").topic_id, 1).rstrip("/"))
    folder.rename(folder.with_name("away"))
    folder.write_text("in the way")
    with pytest.raises(LogError, match=r"(?s)publishing.*is a file"):
        root.append(1, by_spark=True)
    folder.unlink()
    folder.with_name("away").rename(folder)
    assert root.contents() == before

    root.append(1, by_spark=True)

    assert sum(map(len, root.contents())) == 60 + 61
    assert root.append(1, by_spark=True).skipped


def test_what_another_appends_meanwhile_comes_first_and_the_job_runs_again(spark: SparkSession, tmp_path: Path) -> None:
    root = Root(tmp_path, spark)
    published: list[int] = []

    class Overtaken(SparkPublisher):
        def publish(self, plan: Any, phases: Any) -> Any:
            done = super().publish(plan, phases)
            if not published:
                other = TopicWriter(root.storage, root.topics.chain("t"), root.writer.config, CLOCK, None)
                other.append(by_partition(root.staged(0, 10)))
            published.append(plan.version)
            return done

    runs = by_partition(root.staged(10, 50))
    committed = root.writer.append(runs, publisher=Overtaken(spark, root.storage))

    assert committed.records == 40
    assert published == [1, 2]
    for rows in root.contents():
        numbers = [int((row.key or b"")[1:]) for row in rows]
        assert numbers == sorted(numbers)
    assert sum(map(len, root.contents())) == 50


def test_a_writer_that_was_taken_over_while_its_job_ran_commits_nothing(spark: SparkSession, tmp_path: Path) -> None:
    root = Root(tmp_path, spark)

    class TakenOver(SparkPublisher):
        def publish(self, plan: Any, phases: Any) -> Any:
            done = super().publish(plan, phases)
            take_over(root.topics.chain("t"), "q")
            return done

    with pytest.raises(FencedError) as fenced:
        root.writer.append(by_partition(root.staged(0, 10)), publisher=TakenOver(spark, root.storage))
    assert not isinstance(fenced.value, ConflictError)
    assert root.contents() == [[]] * PARTITIONS


def test_an_ingest_publishes_by_spark_from_the_size_on_that_the_settings_say(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number, rows in enumerate((3, 400, 2)):
        lines = [json.dumps({"k": f"k{row % 7}", "v": f"{number}-{row}"}) for row in range(rows)]
        (source / f"{number}.json").write_text("\n".join(lines))
    conf = tmp_path / "settings.yaml"
    conf.write_text(SETTINGS.format(root=root_at(tmp_path / "root"), source=source))

    result = run_ingest(spark, conf, tmp_path / "root", "ingest.publish.spark.bytes=2000")

    assert (result.batches, result.records) == (3, 405)
    records = records_of(tmp_path / "root", "events")
    assert len({record["value"] for record in records}) == len(records) == 405
    by_key: dict[tuple[int, bytes], list[tuple[int, int]]] = {}
    for record in records:
        file, row = map(int, record["value"].split(b"-"))
        by_key.setdefault((file, record["key"]), []).append((file, row))
    assert all(rows == sorted(rows) for rows in by_key.values())
    storage = storage_at(tmp_path / "root")
    names = [key.split(".")[2] for key in files_below(storage, "data/") if key.endswith(".log")]
    assert {len(name) for name in names} == {8, 24}, "the driver's names, and those of the attempts"
    assert files_below(storage, "staging/") == []
