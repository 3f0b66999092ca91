"""Ingests into real topics with real Spark in this process: records, dead letters and replays."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakelog.dead_letter_tables import ingest_dead_letters_key
from pipeline.ingest import micro_batch
from pipeline.ingest.ingesting import Ingest, IngestError
from pipeline.ingest.micro_batch import IngestResult
from pipeline.settings import load_settings
from storage_engine.clock import SystemClock
from storage_engine.errors import CheckpointError, ConfigError, FencedError, StateError, WriterRefusedError
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append import staged_list
from storage_engine.topic.append.staged_list import StagedBatch
from storage_engine.topic.append.topic_writer import TopicWriter, take_over
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.pipeline.ingest.ingest_runs import PowerCutError, cut
from tests.roots.checkpoints import lose
from tests.stores import files_below, is_untouched, local, storage_at

SETTINGS = """
root: {root}
topics:
  events: {{partitions: 3, cleanup.policy: {policy}, max.message.bytes: 2000}}
ingest:
  topic: events
  source: {{format: json, path: {source}, schema: "{schema}", options: {{maxFilesPerTrigger: 1}}}}
  key: k
  value: v
  timestamp: t
{headers}  partition: p
"""
HEADERS = """  headers: "array(named_struct('key', 'n', 'value', cast(string(n) as binary)))"
"""
SCHEMA = "n INT, k STRING, v STRING, t STRING, p INT"


class Root:
    """A root directory with a JSON source, and ingests that run on it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.source = folder / "source"
        self.source.mkdir()
        self.storage = storage_at(folder / "root")
        self.policy = "delete"
        self.has_headers = True
        self.lines: list[str] = []
        self._files = 0

    def write(self, rows: list[dict[str, Any]]) -> None:
        """One more file, which is one more micro-batch."""
        self._files += 1
        file = self.source / f"{self._files:04d}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(file, (1_700_000_000 + self._files,) * 2)  # Spark takes files in the order of their mtimes

    @property
    def topics(self) -> Topics:
        return Topics(self.storage, self.settings().broker, SystemClock())

    def settings(self, *overrides: str) -> Any:
        file = self.folder / "settings.yaml"
        file.write_text(
            SETTINGS.format(
                root=self.storage.uri, source=self.source, schema=SCHEMA, policy=self.policy,
                headers=HEADERS if self.has_headers else "",
            )
        )  # fmt: skip
        return load_settings(file, overrides)

    def ingest(self, *overrides: str, take_over_others: bool = False) -> IngestResult:
        settings = self.settings(*overrides)
        return Ingest(self.spark, settings, self.topics, self.lines.append, take_over_others).run()

    def records(self) -> list[dict[str, Any]]:
        """All records, partition after partition."""
        found = []
        for partition in range(len(self.topics.state("events").partitions)):
            reader = PartitionReader(self.storage, self.topics.chain("events"), partition)
            for batch in reader.read(reader.partition.log_start_offset):
                found += [row | {"partition": partition} for row in batch.to_pylist()]
        return found

    def forget(self, *files: str) -> None:
        """Take files out of the checkpoint."""
        lose(self.storage, "checkpoints/ingest/events", *files)

    def dead_letters(self) -> list[dict[str, Any]]:
        key = ingest_dead_letters_key("events")
        if not files_below(self.storage, f"{key}/"):
            return []
        rows = self.spark.read.format("delta").load(f"{self.storage.uri}/{key}").orderBy("batch_id", "row").collect()
        return [row.asDict() for row in rows]


@pytest.fixture
def root(spark: SparkSession, tmp_path: Path) -> Root:
    return Root(spark, tmp_path)


def row(n: int, **changes: object) -> dict[str, Any]:
    return {"n": n, "k": f"key-{n % 5}", "v": f"value {n}", "t": f"2026-01-01T00:00:{n % 60:02d}Z"} | changes


def test_every_row_becomes_one_record_in_the_order_of_its_source(root: Root) -> None:
    root.write([row(n) for n in range(100)])
    root.write([row(n) for n in range(100, 150)])

    result = root.ingest()

    assert (result.batches, result.records, result.dead_letters.total()) == (2, 150, 0)
    records = root.records()
    assert sorted(int(record["headers"][0]["value"]) for record in records) == list(range(150))
    by_key: dict[bytes, list[int]] = {}
    for record in records:
        n = int(record["headers"][0]["value"])
        assert record["key"] == f"key-{n % 5}".encode()
        assert record["value"] == f"value {n}".encode()
        assert record["timestamp"] == 1_767_225_600_000 + 1000 * (n % 60)
        by_key.setdefault(record["key"], []).append(n)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert all(len({record["partition"] for record in records if record["key"] == key}) == 1 for key in by_key)


def test_rows_between_micro_batches_without_any_all_arrive(root: Root) -> None:
    nowhere = row(100, p=7)
    found = {0: [row(0)], 2: [row(2)], 5: [nowhere], 7: [nowhere, row(7)]}
    for number in range(8):
        root.write(found.get(number, []))
    result = root.ingest()
    assert (result.batches, result.records, result.dead_letters.total()) == (8, 3, 2)
    assert sorted(record["value"] for record in root.records()) == [b"value 0", b"value 2", b"value 7"]
    assert len(root.dead_letters()) == 2


def test_a_damaged_file_behind_micro_batches_without_rows_is_named(root: Root) -> None:
    root.write([])
    root.write([])
    root.write([row(1)])
    (whole,) = root.source.glob("0003*")
    damaged = whole.rename(root.source / "0003.json.gz")
    with pytest.raises(IngestError, match=r"0003\.json\.gz") as raised:
        root.ingest()
    assert "value 1" not in str(raised.value)

    damaged.unlink()
    root.write([row(2)])
    root.ingest("ingest.source.options.ignoreMissingFiles=true")
    assert [record["value"] for record in root.records()] == [b"value 2"]


def test_a_second_run_goes_on_where_the_first_ended(root: Root) -> None:
    root.write([row(n) for n in range(10)])
    root.ingest()
    assert root.ingest().records == 0
    root.write([row(n) for n in range(10, 15)])
    result = root.ingest()
    assert (result.records, result.topics["events"].epoch) == (5, 3)
    assert len(root.records()) == 15
    assert {record["leader_epoch"] for record in root.records()} == {1, 3}


def test_rows_that_the_topic_may_not_hold_are_dead_letters_with_coordinates_and_bytes(root: Root) -> None:
    root.policy = "compact"
    root.write(
        [
            row(0),
            row(1, k=None),
            row(2, v="x" * 3000),
            row(3, t="yesterday"),
            row(4, p=7),
            row(5, p=2, t=None),
            row(6, v=None),
        ]
    )

    result = root.ingest()

    assert result.records == 3
    assert dict(result.dead_letters) == {"no_key": 1, "too_large": 1, "bad_timestamp": 1, "bad_partition": 1}
    dead = root.dead_letters()
    assert [(letter["reason"], letter["row"]) for letter in dead] == [
        ("no_key", 1), ("too_large", 2), ("bad_timestamp", 3), ("bad_partition", 4),
    ]  # fmt: skip
    assert dead[0]["key"] is None
    assert bytes(dead[0]["value"]) == b"value 1"
    assert bytes(dead[1]["value"]) == b"x" * 3000
    assert bytes(dead[0]["headers"][0]["value"]) == b"1"
    assert dead[0]["source"].endswith("0001.json")
    assert {(letter["query_id"], letter["batch_id"], letter["topic"]) for letter in dead} == {
        (result.query_id, 0, "events")
    }
    kept = {int(record["headers"][0]["value"]): record for record in root.records()}
    assert kept.keys() == {0, 5, 6}
    assert kept[5]["partition"] == 2
    assert kept[6]["value"] is None


def test_rows_of_any_size_arrive_whole_and_in_order(root: Root) -> None:
    root.has_headers = False  # with headers rows are handed over in one way only
    sizes = {40: 20_000, 130: 900_000, 131: 1_500_000, 270: 17_000}
    for file in range(3):
        numbers = range(100 * file, 100 * file + 100)
        root.write([row(n, k="one", v=f"{n} ".ljust(sizes.get(n, 0), "x")) for n in numbers])

    result = root.ingest("topics.events.max.message.bytes=1048588")

    assert (result.batches, result.records, dict(result.dead_letters)) == (3, 299, {"too_large": 1})
    values = [record["value"].decode() for record in root.records()]
    assert [int(value.split()[0]) for value in values] == [n for n in range(300) if n != 131]
    assert [len(values[n]) for n in (39, 40, 130)] == [3, 20_000, 900_000]
    (letter,) = root.dead_letters()
    assert (letter["row"], len(letter["value"])) == (31, 1_500_000)
    assert files_below(root.storage, "staging/") == []


def test_a_batch_that_spark_replays_after_our_commit_is_skipped_with_its_dead_letters(root: Root) -> None:
    root.policy = "compact"
    root.write([row(n) for n in range(10)] + [row(10, k=None)])
    root.ingest()
    root.forget("commits/0")  # the crash came before Spark noted the batch as done

    result = root.ingest()

    assert (result.skipped, result.batches, result.records) == (1, 0, 0)
    assert len(root.records()) == 10
    assert len(root.dead_letters()) == 1


@pytest.mark.posix("patches the creation of local files")
def test_a_batch_whose_commit_was_lost_is_made_again_and_its_dead_letters_are_not(root: Root) -> None:
    root.policy = "compact"
    root.write([row(n) for n in range(10)] + [row(10, k=None)])
    settings = root.settings()
    interrupted = Ingest(root.spark, settings, root.topics, root.lines.append)

    class PowerCutError(Exception):
        pass

    def die(*_: object) -> None:
        raise PowerCutError

    original: Callable[..., Any] = PosixStorage.create
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PosixStorage, "create", die)  # dead letters are written, the log's files cannot be
        with pytest.raises(PowerCutError):
            interrupted.run()
    assert PosixStorage.create is original
    assert len(root.dead_letters()) == 1

    assert root.ingest().records == 10
    assert len(root.records()) == 10
    assert len(root.dead_letters()) == 1


DEATHS: list[tuple[object, str, bool]] = [
    (micro_batch, "put_list", False),
    (micro_batch, "append_staged_dead_letters", False),
    (TopicWriter, "append", True),
    (TopicWriter, "append", False),
]


@pytest.mark.parametrize(("place", "name", "before"), DEATHS)
def test_a_row_is_a_record_or_a_dead_letter_also_where_a_replay_would_judge_it_otherwise(
    root: Root, place: object, name: str, before: bool
) -> None:
    """Rows 7 and 8 are refused at first, and row 9 by the replay."""
    root.write([row(n, k=f"{n}", p=None) for n in range(10)])
    with pytest.MonkeyPatch.context() as patched:
        cut(patched, place, name, 1, before=before)
        with pytest.raises(PowerCutError):
            root.ingest("ingest.value=string(int(if(n in (7, 8), 'no number', '1')))")
    root.ingest("ingest.value=string(int(if(n = 9, 'no number', '1')))")

    records = [int(record["key"]) for record in root.records()]
    assert sorted(records + [letter["row"] for letter in root.dead_letters()]) == list(range(10))
    assert list(root.storage.list("staging/")) == []


@pytest.mark.posix("notes the calls of fsync")
def test_what_a_list_names_is_durable_before_the_list_and_a_batch_without_dead_letters_has_none(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.policy = "compact"
    root.write([row(n) for n in range(10)])
    root.write([row(n) for n in range(10)] + [row(10, k=None)])
    real_fsync = os.fsync
    synced: set[str] = set()
    unsynced: list[set[str]] = []

    def fsync(descriptor: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real_fsync(descriptor)

    def put_list(storage: Any, listed: StagedBatch) -> StagedBatch:
        files = {run.key for topic in listed.topics for run in topic.runs}
        files |= {key.rpartition("/")[0] for key in files}
        unsynced.append({key for key in files if str(local(root.storage).path(key)) not in synced})
        return staged_list.put_list(storage, listed)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(micro_batch, "put_list", put_list)

    assert root.ingest().records == 20
    assert unsynced == [set()], "one list, and all that it names durable"


def test_who_is_taken_over_while_it_stages_writes_no_dead_letters(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    root.policy = "compact"
    root.write([row(0), row(1, k=None)])

    def put_list(storage: Any, listed: StagedBatch) -> StagedBatch:
        take_over(root.topics.chain("events"), listed.batch.query)
        return staged_list.put_list(storage, listed)

    with monkeypatch.context() as patched:
        patched.setattr(micro_batch, "put_list", put_list)
        with pytest.raises(FencedError):
            root.ingest()
    assert root.dead_letters() == []
    root.ingest()
    assert (len(root.records()), len(root.dead_letters())) == (1, 1)


@pytest.mark.posix("needs the folder log/")
def test_a_log_folder_that_is_somebody_elses_is_refused_before_the_first_batch_and_left_alone(root: Root) -> None:
    stranger = local(root.storage).root / "log/messages"
    stranger.parent.mkdir(parents=True)
    stranger.write_text("of the system")
    root.write([row(0)])
    with pytest.raises(StateError, match="found 1 files or folders that Lakelog did not make"):
        root.ingest()
    assert [path.name for path in stranger.parent.iterdir()] == ["messages"]
    assert root.records() == []
    stranger.unlink()
    assert root.ingest().records == 1


def test_a_rolled_back_checkpoint_is_refused_and_changes_nothing(root: Root) -> None:
    root.write([row(n) for n in range(10)])
    root.write([row(n) for n in range(10, 20)])
    root.ingest()
    root.forget("commits/0", "commits/1", "offsets/0", "offsets/1")
    version = root.topics.state("events").version

    with pytest.raises(CheckpointError, match="copied or rolled back"):
        root.ingest()
    assert len(root.records()) == 20
    assert root.topics.state("events").version == version


def test_another_query_is_refused_until_take_over_is_asked_for(root: Root) -> None:
    root.write([row(n) for n in range(10)])
    root.ingest()
    other = "ingest.checkpoint=checkpoints/ingest/other"
    with pytest.raises(WriterRefusedError, match="--take-over"):
        root.ingest(other)
    assert root.ingest(other, take_over_others=True).records == 10
    with pytest.raises(WriterRefusedError):
        root.ingest()


def test_an_ingest_that_was_taken_over_commits_nothing_more(root: Root) -> None:
    root.write([row(n) for n in range(10)])
    root.write([row(n) for n in range(10, 20)])
    settings = root.settings()
    topics = root.topics

    def after_a_batch(line: str) -> None:
        if line.startswith("batch 0"):
            chain = topics.chain("events")
            take_over(chain, chain.newest().writer.query or "")

    with pytest.raises(FencedError, match="took over with epoch 2"):
        Ingest(root.spark, settings, topics, after_a_batch).run()
    assert len(root.records()) == 10


def test_settings_that_differ_from_the_topic_are_reported_and_the_topic_counts(root: Root) -> None:
    root.write([row(0)])
    root.topics.create("events", 1, {"max.message.bytes": "3000"})
    result = root.ingest()
    assert any("has 1 partitions, but the settings say 3" in note for note in result.notes)
    assert any("max.message.bytes=3000, but the settings say 2000" in note for note in result.notes)
    assert len(root.topics.state("events").partitions) == 1


def test_a_topic_in_neither_place_is_an_error(root: Root) -> None:
    with pytest.raises(ConfigError, match="do not describe the topic nowhere"):
        root.ingest("ingest.topic=nowhere")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ingest.key=nn", "'nn' cannot be evaluated.*The source has the columns n, k, v, t, p"),
        ("ingest.key=n", "'n' gives int, expected string or binary"),
        ("ingest.timestamp=v is null", "gives boolean, expected a timestamp"),
        ("ingest.source.path=/nowhere/at/all", "Spark cannot read the source"),
        ("ingest.source.format=papyrus", "Spark cannot read the source"),
        ("ingest.source.schema=flihgt", "there is no model 'flihgt' in schemas/.*Did you mean flight"),
        ("ingest.source.schema=n BIGINTT", "neither a model nor columns in Spark's DDL"),
    ],
)
def test_a_wrong_expression_or_source_names_the_setting(root: Root, override: str, message: str) -> None:
    root.write([row(0)])
    with pytest.raises(ConfigError, match=message) as refused:
        root.ingest(override)
    assert override.split("=", maxsplit=1)[0].rsplit(".", 1)[0] in refused.value.place
    assert is_untouched(root.storage), "nothing was made before the settings were checked"


def test_zstd_and_1_mib_values_come_back_as_they_went_in(root: Root) -> None:
    values = [base64.b64encode(os.urandom(786_432)).decode() for _ in range(3)]
    assert len(values[0]) == 1_048_576
    root.write([row(n, v=value) for n, value in enumerate(values)])
    root.topics.create("events", 1, {"max.message.bytes": "2000000", "compression.type": "zstd"})
    assert root.ingest().records == 3
    assert [record["value"].decode() for record in root.records()] == values


def test_at_the_default_limit_1_mib_values_are_dead_letters(root: Root) -> None:
    root.write([row(0, v="v" * 1_048_576), row(1)])
    root.topics.create("events", 1, {})
    result = root.ingest()
    assert (result.records, dict(result.dead_letters)) == (1, {"too_large": 1})
