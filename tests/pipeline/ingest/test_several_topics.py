"""One query that feeds several topics: the topic of each row, and crashes between the commits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs.ingest import ingest
from lakelog.dead_letter_tables import UNKNOWN_TOPIC_DEAD_LETTERS
from pipeline.ingest import micro_batch
from pipeline.ingest.ingest_topic import settle_lists
from pipeline.ingest.ingesting import Ingest
from pipeline.ingest.micro_batch import IngestResult
from pipeline.job import JobContext
from pipeline.settings import Settings, load_settings
from storage_engine.errors import (
    BatchRefusedError,
    CheckpointError,
    ConfigError,
    CorruptionError,
    FencedError,
    UnknownTopicError,
)
from storage_engine.topic.append.staged_list import list_key
from storage_engine.topic.append.topic_writer import BatchIdentity, TopicWriter, take_over
from tests.pipeline.ingest.ingest_runs import PowerCutError, cut, dead_letters_of, records_of, topics_of
from tests.roots.delta_tables import rows_of_table
from tests.stores import root_at, storage_at

SETTINGS = """
root: {root}
topics:
  clicks: {{partitions: 2}}
  orders: {{partitions: 3, cleanup.policy: compact}}
  visits: {{partitions: 1}}
ingest:
  topics: {topics}
  topic.column: {column}
  checkpoint: checkpoints/ingest/router
  source: {{format: json, path: {source}, schema: "n INT, t STRING, k STRING", options: {{maxFilesPerTrigger: 1}}}}
  key: k
  value: string(n)
"""


class Router:
    """A root with a JSON source whose rows name their topics."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.source = folder / "source"
        self.source.mkdir()
        self.root = folder / "root"
        self.lines: list[str] = []
        self._files = 0

    def write(self, *rows: dict[str, Any]) -> None:
        """One more file, which is one more micro-batch."""
        self._files += 1
        file = self.source / f"{self._files:04d}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(file, (1_700_000_000 + self._files,) * 2)  # Spark takes files in the order of their mtimes

    def ingest(
        self,
        topics: str = "[clicks, orders]",
        column: str = "t",
        report: Callable[[str], None] | None = None,
        checkpoint: str = "router",
        take_over_others: bool = False,
    ) -> IngestResult:
        settings = self.settings(topics, column, checkpoint)
        return Ingest(
            self.spark, settings, topics_of(self.root), report or self.lines.append, take_over_others=take_over_others
        ).run()

    def settings(self, topics: str = "[clicks, orders]", column: str = "t", checkpoint: str = "router") -> Settings:
        conf = self.folder / "settings.yaml"
        conf.write_text(SETTINGS.format(root=root_at(self.root), source=self.source, topics=topics, column=column))
        return load_settings(conf, [f"ingest.checkpoint=checkpoints/ingest/{checkpoint}"])

    def dies_between_two_topics(self) -> None:
        """A batch for clicks and orders is ingested, and the run ends when clicks has its rows, and orders has not."""
        self.write(row(0), row(1, "orders"))
        with pytest.MonkeyPatch.context() as patched:
            cut(patched, TopicWriter, "append", 2, before=True)
            with pytest.raises(PowerCutError):
                self.ingest()

    def values(self, topic: str) -> list[int]:
        return [int(record["value"]) for record in records_of(self.root, topic)]

    def staged(self) -> list[str]:
        return [file.key for file in topics_of(self.root).storage.list("staging/")]


@pytest.fixture
def router(spark: SparkSession, tmp_path: Path) -> Router:
    return Router(spark, tmp_path)


def row(n: int, topic: str | None = "clicks", **changes: object) -> dict[str, Any]:
    return {"n": n, "t": topic, "k": f"key-{n % 5}"} | changes


def test_each_row_goes_to_the_topic_that_it_names(router: Router) -> None:
    router.write(*(row(n, ("clicks", "orders")[n % 3 == 0]) for n in range(100)))
    router.write(row(100), row(101))

    result = router.ingest()

    assert sorted(router.values("orders")) == list(range(0, 100, 3))
    assert sorted(router.values("clicks")) == sorted({*range(102)} - {*range(0, 100, 3)})
    assert (result.batches, result.records, result.dead_letters.total()) == (2, 102, 0)
    assert {topic: fed.records for topic, fed in result.topics.items()} == {"clicks": 68, "orders": 34}
    for topic in ("clicks", "orders"):
        assert [done.batch_id for done in topics_of(router.root).state(topic).queries.values()] == [1]
    for partition in (0, 1):
        order = [int(each["value"]) for each in records_of(router.root, "clicks") if each["partition"] == partition]
        assert order == sorted(order)
    assert router.staged() == []


def test_rows_that_cannot_go_where_they_would_are_dead_letters_of_that_topic_or_of_none(router: Router) -> None:
    router.write(row(0), row(1, "orders", k=None), row(2, "visits"), row(3, None), row(4, k=None), row(5, "a/../b"))
    (router.source / "0001.json").open("a").write("no json\n")

    context = JobContext.of("ingest", router.settings())
    context.arguments.take_over = context.arguments.accept_new_checkpoint = False
    report = ingest(context)

    assert (sorted(router.values("clicks")), router.values("orders")) == ([0, 4], [])
    reasons = {"malformed": 1, "no_key": 1, "unknown_topic": 3}
    assert (report.summary["dead letters"], report.summary["dead letters by reason"]) == (5, reasons)
    letters_of = [
        (row["topic"], row["records"], row["dead letters"], row["dead letters by reason"]) for row in report.rows
    ]
    assert letters_of == [
        ("clicks", 2, 0, {}),
        ("orders", 0, 1, {"no_key": 1}),
        (None, 0, 4, {"malformed": 1, "unknown_topic": 3}),
    ]
    (refused,) = dead_letters_of(router.root, "orders")
    assert (refused["reason"], refused["topic"], refused["value"], refused["row"]) == ("no_key", "orders", b"1", 1)
    letters = rows_of_table(storage_at(router.root), UNKNOWN_TOPIC_DEAD_LETTERS)
    assert [(each["row"], each["reason"], each["topic"], each["value"]) for each in letters] == [
        (2, "unknown_topic", "visits", b"2"),
        (3, "unknown_topic", "", b"3"),
        (5, "unknown_topic", "a/../b", b"5"),
        (6, "malformed", "", b"no json"),
    ]
    assert all(each["source"].endswith("0001.json") for each in letters)
    assert topics_of(router.root).find("visits") is None
    assert router.staged() == []


CUTS: list[tuple[object, str, int, bool]] = [
    (micro_batch, "put_list", 1, True),
    (micro_batch, "put_list", 1, False),
    (micro_batch, "append_staged_dead_letters", 1, False),
    (TopicWriter, "append", 1, False),
    (TopicWriter, "append", 2, True),
    (TopicWriter, "append", 2, False),
    (micro_batch, "delete_list", 1, False),
]


def test_a_row_is_in_one_topic_once_wherever_the_driver_dies_and_whatever_its_topic_is_the_next_time(
    router: Router,
) -> None:
    by_chance = "element_at(array('clicks', 'orders', 'nowhere'), 1 + cast(rand() * 3 as int))"
    for file, (place, name, call, before) in enumerate(CUTS):
        router.write(*(row(n) for n in range(100 * file, 100 * file + 100)))
        with pytest.MonkeyPatch.context() as patched:
            cut(patched, place, name, call, before=before)
            with pytest.raises(PowerCutError):
                router.ingest(column=by_chance)
        result = router.ingest(column=by_chance)
        assert result.batches + result.skipped == 1, name
        if file == 0:
            unlisted = router.staged()  # of the death before the list: nobody names it, and the sweep takes it one day

    refused = [row["value"] for row in rows_of_table(storage_at(router.root), UNKNOWN_TOPIC_DEAD_LETTERS)]
    places = [router.values("clicks"), router.values("orders"), [int(value) for value in refused]]
    assert sorted(n for place in places for n in place) == list(range(100 * len(CUTS)))
    assert all(places)
    assert router.staged() == unlisted


def test_a_batch_that_waits_for_a_topic_wants_that_topic_to_be_fed(router: Router) -> None:
    router.dies_between_two_topics()

    with pytest.raises(
        BatchRefusedError, match="topic orders: batch 0 has records for a topic to which this query does not"
    ):
        router.ingest("[clicks]")
    router.ingest("[clicks, orders, visits]")
    router.write(row(2, "visits"))
    result = router.ingest("[visits, clicks]")

    assert (result.batches, result.records) == (1, 1)
    assert [router.values(topic) for topic in ("clicks", "orders", "visits")] == [[0], [1], [2]]


def test_a_topic_whose_newest_version_is_lost_gets_no_further_batch(router: Router) -> None:
    for n in range(2):
        router.write(row(n), row(10 + n, "orders"))
    router.ingest()
    newest = topics_of(router.root).state("orders").version
    storage_at(router.root).delete(f"meta/orders/{newest:020d}.json")
    router.write(row(2), row(12, "orders"))

    with pytest.raises(CheckpointError, match="shows batch 1 as completed, but orders has only batch 0 of the query"):
        router.ingest()

    assert [sorted(router.values(topic)) for topic in ("clicks", "orders")] == [[0, 1], [10]]


def test_a_topic_that_has_the_batch_may_be_taken_out_and_the_others_get_what_was_theirs(router: Router) -> None:
    router.dies_between_two_topics()

    assert router.ingest("[orders]", column="string('orders')").dead_letters.total() == 0

    assert (router.values("clicks"), router.values("orders")) == ([0], [1])
    assert router.staged() == []


def test_who_takes_over_from_a_query_that_died_between_two_topics_is_reported(router: Router) -> None:
    router.dies_between_two_topics()
    died = topics_of(router.root).state("clicks").writer.query

    result = router.ingest(checkpoint="another", take_over_others=True)

    (note,) = result.notes
    assert note.startswith(f"batch 0 of query {died} was staged but not committed to orders: only that query")
    assert (router.values("clicks"), router.values("orders")) == ([0, 0], [1])


def test_who_loses_one_topic_commits_on_none_any_more(router: Router) -> None:
    router.write(row(0), row(1, "orders"))
    router.write(row(2), row(3, "orders"))

    def after_a_batch(line: str) -> None:
        if line.startswith("batch 0"):
            chain = topics_of(router.root).chain("orders")
            take_over(chain, chain.newest().writer.query or "")

    with pytest.raises(FencedError, match=r"topic orders: .* took over with epoch 2"):
        router.ingest(report=after_a_batch)
    assert (router.values("clicks"), router.values("orders")) == ([0], [1])
    assert router.ingest().records == 2
    assert (sorted(router.values("clicks")), sorted(router.values("orders"))) == ([0, 2], [1, 3])


def test_a_topic_that_is_made_anew_while_it_is_fed_ends_the_ingest_with_the_reason(router: Router) -> None:
    router.write(row(0), row(1, "orders"))
    router.write(row(2), row(3, "orders"))

    def after_a_batch(line: str) -> None:
        if line.startswith("batch 0"):
            topics_of(router.root).delete("orders")
            topics_of(router.root).create("orders", 1, {})

    with pytest.raises(UnknownTopicError, match="topic orders: was deleted and created again after this writer began"):
        router.ingest(report=after_a_batch)
    assert (router.values("clicks"), router.values("orders")) == ([0], [])


def test_partitions_and_settings_that_change_while_it_runs_hold_from_the_next_micro_batch_on(router: Router) -> None:
    router.write(*(row(n, ("clicks", "orders")[n % 2], k=f"key-{n}") for n in range(100)))
    router.write(*(row(n, ("clicks", "orders")[n % 2], k=f"key-{n}") for n in range(100, 200)), row(200, k=None))

    def after_a_batch(line: str) -> None:
        if line.startswith("batch 0"):
            topics_of(router.root).alter("clicks", 5, {"cleanup.policy": "compact", "compression.type": "zstd"})

    result = router.ingest(report=after_a_batch)

    assert (result.records, dict(result.topics["clicks"].dead_letters)) == (200, {"no_key": 1})
    clicks, orders = records_of(router.root, "clicks"), records_of(router.root, "orders")
    assert {each["partition"] for each in clicks if int(each["value"]) < 100} == {0, 1}
    assert {each["partition"] for each in clicks if int(each["value"]) >= 100} == {0, 1, 2, 3, 4}
    assert {each["partition"] for each in orders} == {0, 1, 2}


@pytest.mark.parametrize(
    ("column", "message"),
    [("tt", "'tt' cannot be evaluated.*The source has the columns n, t, k"), ("n", "'n' gives int, expected string")],
)
def test_a_wrong_topic_column_names_the_setting(router: Router, column: str, message: str) -> None:
    router.write(row(0))
    with pytest.raises(ConfigError, match=message) as refused:
        router.ingest(column=column)
    assert "ingest.topic.column" in refused.value.place


def test_a_damaged_list_stops_its_own_query_and_no_other(tmp_path: Path) -> None:
    topics = topics_of(tmp_path)
    topics.create("a", 1, {})
    damaged = list_key(BatchIdentity("another", 7, "h"))
    topics.storage.put_new(damaged, b"{")
    (note,) = settle_lists(topics, "mine", ["a"], None)
    assert damaged in note
    with pytest.raises(CorruptionError, match="a list of staged records"):
        settle_lists(topics, "another", ["a"], None)
