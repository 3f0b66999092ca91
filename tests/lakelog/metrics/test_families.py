"""The whole text that Prometheus gets for a root that has a consumer, a damaged topic and hostile names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from lakelog.metrics.endpoint import exposition
from lakelog.metrics.figures import RootFigures
from lakelog.report.dead_letter_counts import DeadLetterKind, DeadLetters
from lakelog.report.exported_tables import StaleRows
from storage_engine.topic.kafka.view import settle
from tests.lakelog.metrics.roots import DAY, HOUR, NOW, WatchedRoot

EXPECTED = Path(__file__).with_name("exposition.prom")
HOSTILE = 'a "group"\n{topic="x"} 1\\ \x1b[31m|\u2028é'


def seeded(root: WatchedRoot) -> RootFigures:
    """The figures of two topics and a damaged topic, with every number fixed."""
    root.topic("orders", 2, cleanup_policy="compact")
    root.take_over("orders")
    root.append("orders", 50_000, 40_000, 30_000)
    root.clock.advance(1000)
    root.append("orders", 20_000, partition=1)
    root.report_ingest("orders", 1_200)
    root.export("orders", {0: 1})
    root.group_with("orders", "billing", {0: 3, 1: 0}, (HOUR, 1, 2), (HOUR, 2, 3), (HOUR, 3, 4))
    root.topic("a_topic-with.every_Letter-0", retention_ms=str(HOUR))
    root.append("a_topic-with.every_Letter-0", 5 * HOUR)
    root.topic("lost")
    settle(root.topics)
    for name in ("orders", "a_topic-with.every_Letter-0"):
        root.set_time(root.state_file(name), NOW - 2000)
    root.set_time(root.folder / "log/replication-offset-checkpoint", NOW)
    root.damage("lost")
    figures = root.look()
    return replace(figures, free_bytes=1_000_000, capacity_bytes=4_000_000)


def test_the_whole_text_of_a_known_root(root: WatchedRoot) -> None:
    assert exposition(seeded(root)).decode() == EXPECTED.read_text(encoding="utf-8")


def test_a_silent_ingest_stays_in_the_metrics_when_its_last_append_is_not_read_any_more(root: WatchedRoot) -> None:
    root.topic("t")
    root.append("t", 0)
    root.take_over("t")
    chain = root.topics.chain("t")
    for _ in range(6):
        root.clock.advance(DAY)
        chain.commit(lambda state: state, "retention")
    line = 'lakelog_topic_last_change_timestamp_seconds{change="append",topic="t"}'
    (found,) = [each for each in exposition(root.look()).decode().splitlines() if each.startswith(line)]
    assert float(found.removeprefix(line)) == (NOW + 3 * DAY) / 1000


def test_names_are_escaped_so_that_they_stay_one_label(root: WatchedRoot) -> None:
    root.topic("t")
    root.append("t", 1000)
    root.group("t", HOSTILE, {0: 0})
    text = exposition(root.look()).decode()
    found = {
        sample.labels.get("consumergroup", sample.labels.get("group", sample.labels.get("consumer")))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found == {None, HOSTILE}
    assert 'kafka_consumergroup_lag{consumergroup="a \\"group\\"\\n{topic=\\"x\\"} 1\\\\ ' in text


def test_a_name_that_is_not_utf_8_does_not_end_the_scrape(root: WatchedRoot) -> None:
    root.topic("t")
    text = exposition(replace(root.look(), cluster="caf\udce9")).decode()
    assert 'kafka_partition_latest_offset{cluster_name="caf?",partition="0",topic="t"} 0.0\n' in text


def test_a_root_that_cannot_be_read_has_one_metric_with_a_value(root: WatchedRoot) -> None:
    text = exposition(RootFigures("lakelog", NOW, problem="meta: gone.")).decode()
    assert [line for line in text.splitlines() if not line.startswith("#")] == ["lakelog_root_readable 0.0"]


def test_tables_are_metrics_only_if_they_were_counted(root: WatchedRoot) -> None:
    root.topic("t")
    figures = root.look()
    assert "lakelog_dead_letters" not in exposition(figures).decode()
    letters = (
        DeadLetters(DeadLetterKind.INGEST, "malformed", "query-1", 2, 0, 1),
        DeadLetters(DeadLetterKind.INGEST, "malformed", "query-2", 3, 0, 1),
        DeadLetters(DeadLetterKind.EXPORT, "undecodable", "0", 4, 0, 9, "replayed"),
    )
    topic = replace(figures.topics[0], dead_letters=letters, stale_rows=(StaleRows("tables/t", 7),))
    text = exposition(replace(figures, topics=(topic,))).decode()
    assert [line for line in text.splitlines() if line.startswith(("lakelog_dead", "lakelog_stale"))] == [
        'lakelog_dead_letters{origin="ingest",outcome="",reason="malformed",topic="t"} 5.0',
        'lakelog_dead_letters{origin="export",outcome="replayed",reason="undecodable",topic="t"} 4.0',
        'lakelog_stale_rows{table="tables/t",topic="t"} 7.0',
    ]


def test_every_scrape_has_the_same_names_in_the_same_order(root: WatchedRoot) -> None:
    full = exposition(seeded(root)).decode()
    empty = exposition(RootFigures("lakelog", NOW)).decode()
    described = [[line for line in text.splitlines() if line.startswith("#")] for text in (full, empty)]
    assert described[0] == described[1]
