"""Checkpoints that are lost, incomplete, rolled back or copied. If a topic stores the source's positions, each row is
committed exactly once. Without stored positions, the ingest refuses the checkpoint.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.ingest.ingesting import Ingest
from pipeline.ingest.micro_batch import IngestResult
from pipeline.ingest.source_positions import PositionedSource
from pipeline.settings import load_settings
from storage_engine.config import BrokerConfig
from storage_engine.errors import CheckpointError, ConfigError, OffsetOutOfRangeError, WriterRefusedError
from storage_engine.topic.append.topic_writer import Committed, TopicWriter
from storage_engine.topic.clean.topic_retention import retain_topic
from tests.kafka_broker import KafkaBroker
from tests.pipeline.ingest.ingest_runs import append_values, dead_letters_of, records_of, topics_of
from tests.roots.checkpoints import lose
from tests.stores import delete_folder, files_below, root_at, storage_at

CONF = Path(__file__).resolve().parents[3] / "conf"
COPY = """
root: unused
topics: {copy: {partitions: 2, cleanup.policy: compact}}
ingest:
  topic: copy
  source: {format: lakelog, options: {subscribe: one, maxOffsetsPerTrigger: 6}}
  key: nullif(string(key), 'x')
  value: value
  position.columns: topic, partition, offset
"""
SEVERAL = """
root: unused
topics: {even: {partitions: 1}, odd: {partitions: 1}}
ingest:
  topics: even, odd
  topic.column: "case substring(string(value), 2) % 2 when 0 then 'even' else 'odd' end"
  checkpoint: checkpoints/ingest/copy
  source: {format: lakelog, options: {subscribe: one, maxOffsetsPerTrigger: 6}}
  key: key
  value: value
  position.columns: topic, partition, offset
"""
FILES = """
root: unused
topics: {copy: {partitions: 2, cleanup.policy: compact}}
ingest:
  topic: copy
  source: {format: json, path: SOURCE, schema: "shard STRING, n INT", options: {maxFilesPerTrigger: 1}}
  key: nullif(substring(shard, 1, 1), 'x')
  value: concat(shard, string(n))
"""
CHECKPOINT = "checkpoints/ingest/copy"
POSITIONS = "ingest.position.columns=shard, n"


class Copying:
    """An ingest into the topic `copy`, whose checkpoint suffers."""

    def __init__(self, spark: SparkSession, folder: Path, conf: str) -> None:
        self.spark = spark
        self.folder = folder
        self.root = folder / "root"
        self.source = folder / "source"
        self.source.mkdir()
        self.conf = folder / "copy.yaml"
        self.conf.write_text(conf.replace("SOURCE", str(self.source)))
        self.storage = storage_at(self.root)

    def run(self, *overrides: str, accept: bool = False, take_over_others: bool = False) -> IngestResult:
        settings = load_settings(self.conf, overrides, root_at(self.root))
        topics = topics_of(self.root)
        return Ingest(self.spark, settings, topics, lambda _: None, take_over_others, accept).run()

    def write(self, *values: str) -> None:
        """One more file, of rows as `a1`: shard a, position 1."""
        number = len(list(self.source.iterdir()))
        file = self.source / f"{number:04d}.json"
        file.write_text("".join(json.dumps({"shard": value[0], "n": int(value[1:])}) + "\n" for value in values))
        os.utime(file, (1_700_000_000 + number,) * 2)

    def values(self, topic: str = "copy") -> Counter[str]:
        return Counter(record["value"].decode() for record in records_of(self.root, topic))

    def dead(self) -> Counter[str]:
        return Counter(letter["value"].decode() for letter in dead_letters_of(self.root, "copy"))

    def lose(self, *parts: str) -> None:
        """Parts of the checkpoint, or all of it."""
        if parts:
            lose(self.storage, CHECKPOINT, *parts)
        else:
            delete_folder(self.storage, f"{CHECKPOINT}/")

    def keep(self) -> dict[str, bytes]:
        return {key: self.storage.read(key) for key in files_below(self.storage, f"{CHECKPOINT}/")}

    def restore(self, kept: dict[str, bytes]) -> None:
        self.lose()
        for key, data in kept.items():
            self.storage.replace(key, data)

    @property
    def queries(self) -> dict[str, Any]:
        return topics_of(self.root).state("copy").queries


@pytest.fixture
def copying(spark: SparkSession, tmp_path: Path) -> Copying:
    copying = Copying(spark, tmp_path, COPY)
    topics_of(copying.root).create("one", 2, {})
    append_values(copying.root, "one", *(f"a{n}" for n in range(5)), "x0", partition=0)
    append_values(copying.root, "one", *(f"b{n}" for n in range(5)), "x1", partition=1)
    return copying


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Copying:
    copying = Copying(spark, tmp_path, FILES)
    copying.write("a1", "b1")
    copying.write("a2", "x1")
    return copying


OLD = Counter([*(f"a{n}" for n in range(5)), *(f"b{n}" for n in range(5))])


STARTS_TOO_LATE = [
    "ingest.source.options.startingTimestamp=9999999999999",
    "ingest.source.options.startingOffsetsByTimestampStrategy=latest",
    'ingest.source.options.STARTINGOFFSETSBYTIMESTAMP={"one": {"0": -1, "1": -1}}',
    'ingest.source.options.startingOffsets={"one": {"0": -1, "1": 3}}',
]
"""Three starts, each of which would leave out rows; the first one counts."""


def test_a_checkpoint_that_was_deleted_costs_nothing_and_doubles_nothing(copying: Copying) -> None:
    assert (copying.run().records, copying.dead()) == (10, Counter(["x0", "x1"]))
    append_values(copying.root, "one", "a5", "x2", partition=0)
    copying.lose()

    # A new stream would begin where the options say. Not where there is something to go on from.
    result = copying.run(*STARTS_TOO_LATE)

    assert (result.records, result.already_committed) == (1, 12)
    assert copying.values() == OLD + Counter(["a5"])
    assert copying.dead() == Counter(["x0", "x1", "x2"])
    assert len(copying.queries) == 2


def test_yesterdays_checkpoint_brings_nothing_twice_and_leaves_nothing_out(copying: Copying) -> None:
    copying.run()
    kept = copying.keep()
    append_values(copying.root, "one", *(f"c{n}" for n in range(6)), "x2", partition=0)
    copying.run()
    before = copying.queries
    append_values(copying.root, "one", "c6", "x3", partition=0)
    copying.restore(kept)

    result = copying.run("ingest.source.options.maxOffsetsPerTrigger=100")
    assert result.notes == []

    assert (result.records, result.already_committed) == (1, 7)
    assert copying.values() == OLD + Counter(f"c{n}" for n in range(7))
    assert copying.dead() == Counter(["x0", "x1", "x2", "x3"]), "also of a batch whose number came before"
    (query,) = before
    assert copying.queries[query].batch_id < before[query].batch_id, "the checkpoint went back"
    append_values(copying.root, "one", "c7", "x4", partition=0)
    copying.run()
    copying.lose(f"commits/{copying.queries[query].batch_id}")
    assert copying.run().skipped == 1
    assert copying.values() == OLD + Counter(f"c{n}" for n in range(8))
    assert copying.dead() == Counter(f"x{n}" for n in range(5))


@pytest.mark.parametrize("lost", [["commits"], ["metadata"], ["offsets", "commits"]])
def test_a_checkpoint_of_which_a_part_is_gone_goes_on_exactly_once(copying: Copying, lost: list[str]) -> None:
    query = copying.run().query_id
    append_values(copying.root, "one", "a5", partition=0)
    copying.lose(*lost)

    result = copying.run()

    assert (result.query_id, result.records) == (query, 1)
    assert copying.values() == OLD + Counter(["a5"])
    assert copying.dead() == Counter(["x0", "x1"])


def test_a_topic_that_was_created_again_is_not_taken_for_the_one_that_was_read(copying: Copying) -> None:
    copying.run()
    topics_of(copying.root).delete("one")
    topics_of(copying.root).create("one", 1, {})
    append_values(copying.root, "one", "d0", "d1", partition=0)
    copying.lose()
    result = copying.run()
    assert (result.records, result.already_committed) == (2, 0)
    assert copying.values() == OLD + Counter(["d0", "d1"])


def test_a_stream_of_other_topics_begins_where_its_options_say(copying: Copying) -> None:
    copying.run()
    topics_of(copying.root).create("two", 1, {})
    append_values(copying.root, "two", "d0", "d1", "d2")
    copying.lose()
    other = ("ingest.source.options.subscribe=two", 'ingest.source.options.startingOffsets={"two": {"0": 1}}')
    assert copying.run(*other, take_over_others=True).records == 2
    assert copying.values() == OLD + Counter(["d1", "d2"])


def test_a_checkpoint_that_begins_after_the_committed_rows_is_refused(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying.run()
    append_values(copying.root, "one", "a5", partition=0)
    copying.lose()
    latest = "ingest.source.options.startingOffsets=latest"
    with monkeypatch.context() as patched:
        patched.setattr(PositionedSource, "is_known", lambda *_: False)  # as if the positions came after the start
        with pytest.raises(OffsetOutOfRangeError) as refused:
            copying.run(latest)
    assert str(refused.value) == (
        "source lakelog, checkpoint checkpoints/ingest/copy: the stream begins at offset 7 of the source partition"
        " one/0, but rows are committed only up to offset 5. If the source still has the messages between these"
        " offsets, delete the whole checkpoint, and start again. If the source deleted these messages, set the source's"
        " option failOnDataLoss to false to continue without them."
    )
    copying.lose()
    assert copying.run(latest).records == 1
    assert copying.values() == OLD + Counter(["a5"])


def test_what_retention_took_before_a_new_checkpoint_came_to_it_is_an_error(copying: Copying) -> None:
    copying.run()
    append_values(copying.root, "one", "a5", "a6", partition=0, age_ms=1000)
    topics_of(copying.root).alter("one", configs={"retention.ms": "1"})
    assert retain_topic(topics_of(copying.root).chain("one"), BrokerConfig()).changed
    append_values(copying.root, "one", "a7", partition=0)
    copying.lose()
    with pytest.raises(
        OffsetOutOfRangeError,
        match="begins at offset 8 of the source partition one/0, but rows are committed only up to offset 5",
    ):
        copying.run()
    assert copying.run("ingest.source.options.failOnDataLoss=false").records == 1
    assert copying.values() == OLD + Counter(["a7"])


def test_several_topics_of_one_query_each_keep_how_far_they_are(copying: Copying) -> None:
    copying.conf.write_text(SEVERAL)
    copying.run()
    append_values(copying.root, "one", "a5", "a6", partition=0)
    copying.lose()
    assert copying.run().records == 2
    expected = OLD + Counter(["a5", "a6", "x0", "x1"])
    assert copying.values("even") + copying.values("odd") == expected
    state = topics_of(copying.root).state("even")
    assert {name.rpartition("/")[2]: position for name, position in state.positions["lakelog"].items()} == {
        "0": 7, "1": 5,
    }  # fmt: skip


def test_rows_of_files_that_carry_positions_are_committed_once(files: Copying) -> None:
    files.write("a3", "c1")
    (files.source / "0002.json").write_text((files.source / "0002.json").read_text() + '{"shard": "c"}\n')
    first = files.run(POSITIONS)
    assert (first.records, dict(first.dead_letters)) == (5, {"no_key": 1, "no_position": 1})
    files.lose()
    files.write("a4", "x1", "x2")

    result = files.run(POSITIONS)

    assert (result.records, result.already_committed) == (1, 7)
    assert files.values() == Counter(["a1", "a2", "a3", "a4", "b1", "c1"])
    assert sorted(letter["reason"] for letter in dead_letters_of(files.root, "copy")) == [
        "no_key", "no_key", "no_position", "no_position",  # nobody can tell whether that row came before
    ]  # fmt: skip


def test_a_malformed_line_moves_no_position(files: Copying) -> None:
    files.write("b2")
    file = files.source / "0002.json"
    file.write_text(file.read_text() + '{"shard": "a", "n": 999, "n": "many"}\n{"shard": "b", "n": 888, ]\n')
    os.utime(file, (1_700_000_002,) * 2)  # Spark passes over files that are much older than the newest
    assert dict(files.run(POSITIONS).dead_letters)["malformed"] == 2
    files.write("a3", "b3")
    assert files.run(POSITIONS).records == 2
    assert files.values() == Counter(["a1", "a2", "a3", "b1", "b2", "b3"])


def test_positions_go_on_by_the_columns_that_they_were_begun_with(files: Copying) -> None:
    files.run(POSITIONS)
    with pytest.raises(ConfigError, match=r"stores the positions of .* \(by shard, n\), but now the settings say by n"):
        files.run("ingest.position.columns=n")
    files.lose()
    with pytest.raises(ConfigError, match="restore the earlier columns"):
        files.run("ingest.position.columns=n")
    assert files.run(POSITIONS).records == 0


@pytest.mark.parametrize("otherwise", [(), (POSITIONS, "ingest.position.source=elsewhere")])
def test_positions_do_not_stand_still_while_their_query_goes_on(files: Copying, otherwise: tuple[str, ...]) -> None:
    files.run(POSITIONS)
    files.write("a3")
    with pytest.raises(
        ConfigError, match=r"stores positions of .*, but with its settings, this query would store "
    ) as refused:
        files.run(*otherwise)
    assert refused.value.place.endswith("ingest.position.source" if otherwise else "ingest.position.columns")
    assert files.values() == Counter(["a1", "a2", "b1"])

    assert files.run(accept=True).records == 1
    files.lose()
    with pytest.raises(WriterRefusedError):  # and not: goes on from where the positions stood
        files.run(POSITIONS)
    assert files.values() == Counter(["a1", "a2", "a3", "b1"])


def test_positions_of_files_are_not_kept_from_the_middle_on(files: Copying) -> None:
    files.run()
    with pytest.raises(ConfigError, match="these rows were committed without positions"):
        files.run(POSITIONS)
    with pytest.raises(ConfigError, match="'`s`' cannot be evaluated"):
        files.run("ingest.position.columns=s, n", "ingest.checkpoint=checkpoints/new")
    with pytest.raises(ConfigError, match="'`shard`' gives string, expected a whole number"):
        files.run("ingest.position.columns=n, shard", "ingest.checkpoint=checkpoints/new")


def test_without_positions_a_new_checkpoint_is_refused_until_it_is_accepted(files: Copying) -> None:
    files.run()
    files.lose()
    version = topics_of(files.root).state("copy").version
    with pytest.raises(WriterRefusedError, match=r"--accept-new-checkpoint.*--take-over"):
        files.run()
    assert topics_of(files.root).state("copy").version == version

    assert files.run(accept=True).records == 3
    assert len(files.queries) == 1
    files.lose("commits/1")
    assert files.run(accept=True).skipped == 1, "left in a service's file, the argument does nothing more"
    assert files.values() == Counter({"a1": 2, "a2": 2, "b1": 2})


def test_without_positions_a_checkpoint_that_was_rolled_back_goes_on_only_if_that_is_accepted(files: Copying) -> None:
    files.run()
    kept = files.keep()
    files.write("a3", "x2")
    files.run()
    files.restore(kept)
    with pytest.raises(CheckpointError, match=r"copied or rolled back.*--accept-new-checkpoint"):
        files.run()
    files.write("a4", "x3")
    result = files.run("ingest.source.options.maxFilesPerTrigger=9", accept=True)
    assert result.records == 2
    assert files.values() == Counter(["a1", "a2", "a3", "a3", "a4", "b1"])
    assert files.dead() == Counter(["x1", "x2", "x2", "x3"])


@pytest.mark.posix("notes the calls of fsync")
def test_what_a_commit_relies_on_in_the_checkpoint_is_durable_before_it(
    files: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    seen: list[set[str]] = []
    real_fsync, real_append = os.fsync, TopicWriter.append
    checkpoint = files.root / CHECKPOINT

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_relative_to(checkpoint):
            synced.add(str(path.relative_to(checkpoint)))
        real_fsync(descriptor)

    def append(*arguments: Any, **options: Any) -> Committed:
        seen.append(set(synced))
        return real_append(*arguments, **options)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(TopicWriter, "append", append)
    files.run()
    assert len(seen) == 2
    for number, before in enumerate(seen):
        assert {f"offsets/{number}", "offsets", f"sources/0/{number}", "sources/0"} <= before


def test_a_file_of_the_checkpoint_that_a_power_cut_emptied_is_named(files: Copying) -> None:
    files.run()
    offsets = files.storage.read(f"{CHECKPOINT}/offsets/1")
    files.storage.replace(f"{CHECKPOINT}/offsets/1", b"")
    with pytest.raises(CheckpointError, match=r"offsets/1: is empty.*restore the whole checkpoint"):
        files.run()
    files.storage.replace(f"{CHECKPOINT}/offsets/1", offsets)
    files.storage.replace(f"{CHECKPOINT}/commits/1", b"")
    with pytest.raises(
        CheckpointError, match=r"commits/1: is empty.*Delete this file and the file \.1\.crc in the same folder"
    ):
        files.run()
    files.lose("commits/1")
    files.write("a3")
    result = files.run()
    assert (result.skipped, result.records) == (1, 1)
    assert files.values() == Counter(["a1", "a2", "a3", "b1"])


def test_a_checkpoint_that_spark_could_not_go_on_with_is_refused(files: Copying) -> None:
    files.run(POSITIONS)
    kept = files.keep()
    files.write("a3")
    for lost in ("offsets", "sources", "sources/0/1"):
        files.lose(lost)
        with pytest.raises(CheckpointError, match=r"is not complete.*delete the whole checkpoint"):
            files.run(POSITIONS)
        files.restore(kept)
    files.lose()
    assert files.run(POSITIONS).records == 1


def test_a_checkpoint_that_is_ahead_of_its_topic_is_refused(files: Copying) -> None:
    files.run()
    topics_of(files.root).delete("copy")
    with pytest.raises(
        CheckpointError, match=r"shows batch 1 as completed, but copy has no batch of the query.*would be skipped"
    ):
        files.run()
    files.write("a3")
    assert files.run(accept=True).records == 1, "from where it stands"
    assert files.run().batches == 0
    assert files.values() == Counter(["a3"])


@pytest.mark.kafka
def test_a_kafka_topic_arrives_once_whatever_becomes_of_the_checkpoint(
    spark: SparkSession, tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    copying = Copying(spark, tmp_path, COPY.replace("lakelog", "kafka").replace("subscribe: one", "subscribe: lost"))
    servers = f"ingest.source.options.kafka.bootstrap.servers={kafka_broker.bootstrap_servers}"
    kafka_broker.create_topic("lost", partitions=2)
    for value in ("a0", "b0", "x0", "a1"):
        kafka_broker.send("lost", value.encode(), key=value[:1].encode())
    copying.run(servers, "ingest.source.options.startingOffsets=earliest")
    kept = copying.keep()
    for value in ("a2", "x1"):
        kafka_broker.send("lost", value.encode(), key=value[:1].encode())
    copying.lose()
    assert copying.run(servers).already_committed == 4  # Kafka's source begins with the latest by itself
    kafka_broker.send("lost", b"a4", key=b"a")
    copying.lose()
    late = ("startingTimestamp=9999999999999", "startingOffsetsByTimestampStrategy=latest")
    result = copying.run(servers, *(f"ingest.source.options.{option}" for option in late))
    assert (result.records, result.already_committed) == (1, 6)
    copying.restore(kept)
    kafka_broker.send("lost", b"a3", key=b"a")
    result = copying.run(servers)
    assert (result.records, result.already_committed) == (1, 3)
    assert copying.values() == Counter(["a0", "a1", "a2", "a3", "a4", "b0"])
    assert copying.dead() == Counter(["x0", "x1"])
