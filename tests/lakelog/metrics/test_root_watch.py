"""What each look at a watched root finds, and how many reads each look costs: with changes, without changes, and with
damage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lakelog.metrics.change_kinds import ChangeKind, RecentChanges
from lakelog.metrics.consumer_status import ConsumerStatus
from lakelog.metrics.families import families
from lakelog.metrics.figures import ConsumerFigures, PartitionFigures, PartitionLag, RootFigures, TopicFigures
from lakelog.metrics.root_watch import LONG_WAY_MS, RootWatch, all_errors
from storage_engine.config import BrokerConfig
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.transaction_writer import TransactionWriter
from storage_engine.topic.chain.pruning import prune
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.ingest_reports import NO_REPORT
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.consumer_files import EXPORT_KIND, GROUP_KIND, group_folder
from storage_engine.topic.readers.membership import join
from storage_engine.topic.topics import Topics
from tests.lakelog.metrics.roots import DAY, HOUR, MINUTE, NOW, WatchedRoot
from tests.storage_engine.record_tables import Row, to_table
from tests.storage_engine.topic.wrapped_storage import BeforeEachCall, PlainStorage


def names(figures: RootFigures) -> list[str]:
    return [topic.name for topic in figures.topics]


def consumer(figures: RootFigures) -> ConsumerFigures:
    ((found,),) = [topic.consumers for topic in figures.topics]
    return found


def test_a_topic_and_its_consumers_as_they_are(root: WatchedRoot) -> None:
    root.topic("orders", 2, cleanup_policy="compact")
    root.take_over("orders")
    root.append("orders", 50_000, 40_000, 30_000)
    state = root.append("orders", 20_000, partition=1)
    root.export("orders", {0: 1})
    root.set_time(root.state_file("orders"), NOW - 7)
    (topic,) = root.look().topics
    sizes = [part.size for part in state.partitions]
    assert topic == TopicFigures(
        name="orders", version=3, written_ms=NOW, versions_kept=4, has_ingest=True, epoch=1,
        partitions=(PartitionFigures(0, 0, 3, 1, sizes[0], sizes[0]), PartitionFigures(1, 0, 1, 1, sizes[1], sizes[1])),
        consumers=(
            ConsumerFigures(
                "export tables/orders", EXPORT_KIND,
                (PartitionLag(0, 1, 2, 2, NOW - 40_000), PartitionLag(1, None, 1, 1, NOW - 20_000)),
                ConsumerStatus.OK, NOW,
            ),
        ),
        damaged_consumers=(),
        changes=RecentChanges(
            {ChangeKind.CREATE: NOW, ChangeKind.TAKE_OVER: NOW, ChangeKind.APPEND: NOW}, (NOW,), NOW, True
        ),
        waiting_segments=0, due_segments=0, due_since_ms=None, view_behind=None, clock_skew_ms=7,
    )  # fmt: skip


def test_a_look_costs_one_read_and_one_listing_of_each_topic(tmp_path: Path) -> None:
    """The files are older than the clock of the watch by an hour, so nothing can change them without a new time."""
    root = WatchedRoot(tmp_path, 1_900_000_000_000)
    for name in ("a", "b", "c"):
        root.topic(name, 2)
        root.append(name, 1000, 500)
        root.append(name, 1000, partition=1)
        root.export(name, {0: 1})
        root.group(name, "billing", {0: 2, 1: 0})
    settle(root.topics)
    root.look()
    root.storage.taken()
    first = root.look()
    per_topic = {"read": 1, "list": 1, "entries": 1}
    of_root = {"read log/": 4, "entries": 2}
    counts = {verb: 3 * per_topic.get(verb, 0) + of_root.get(verb, 0) for verb in per_topic | of_root}
    assert root.storage.taken() == counts
    root.clock.advance(15_000)
    second = root.look()
    assert root.storage.taken() == counts
    assert second == replace(first, now_ms=first.now_ms + 15_000, free_bytes=second.free_bytes)


def test_a_look_at_an_object_store_costs_one_request_of_each_topic(tmp_path: Path) -> None:
    root = WatchedRoot(tmp_path, 1_900_000_000_000)
    for name in ("a", "b"):
        root.topic(name, 2)
        root.append(name, 1000, 500)
        root.group(name, "billing", {0: 1, 1: 0})
    calls: list[tuple[str, str]] = []
    store = BeforeEachCall(PosixStorage(tmp_path), lambda _, verb, key: calls.append((verb, key)))
    watch = RootWatch(Topics(store, BrokerConfig(), root.clock), "lakelog")

    def requests(looking: Callable[[], object]) -> list[tuple[str, str]]:
        calls.clear()
        looking()
        return [(verb, key) for verb, key in calls if key.startswith(("meta/a/", "meta/b/"))]

    first = watch.look()
    assert requests(watch.look) == [("list", "meta/a/"), ("list", "meta/b/")]
    assert watch.look() == first
    root.append("a", 100)
    root.append("a", 50, partition=1)
    root.group("b", "billing", {0: 2, 1: 0})
    assert [verb for verb, key in requests(watch.look) if key.startswith("meta/b/")] == ["list", "read"]
    anew = RootWatch(Topics(store, BrokerConfig(), root.clock), "lakelog").look()
    assert [topic.consumers for topic in watch.look().topics] == [topic.consumers for topic in anew.topics]
    assert [topic.partitions for topic in watch.look().topics] == [topic.partitions for topic in anew.topics]
    assert [topic.version for topic in anew.topics] == [topic.version for topic in watch.look().topics] == [3, 1]


def test_the_newest_report_of_an_ingest_is_a_figure_of_its_topic(tmp_path: Path) -> None:
    root = WatchedRoot(tmp_path, 1_900_000_000_000)
    for name in ("a", "b"):
        root.topic(name)
        root.take_over(name, f"query-of-{name}")
    found = [root.report_ingest("a", 7)]
    assert [topic.ingest.report for topic in root.look().topics] == [*found, None]
    root.look()
    root.storage.taken()
    root.look()
    listed = {"read": 2, "list": 3, "entries": 3, "read log/": 1}
    assert root.storage.taken() == listed, "a report that has not changed is not read again"
    root.clock.advance(30_000)
    found = [root.report_ingest("a", None, is_running=False)]
    assert [topic.ingest.report for topic in root.look().topics] == [*found, None]


def test_a_report_that_cannot_be_read_hides_nothing_else(root: WatchedRoot) -> None:
    for name in ("a", "b"):
        root.topic(name)
        root.take_over(name, f"query-of-{name}")
        root.report_ingest(name, 7)
    root.append("a", 1000)
    healthy = root.look()
    root.tear_report("a")
    look = root.look()
    (a, b) = look.topics
    assert (a.ingest.report, b.ingest) == (None, healthy.topics[1].ingest)
    assert replace(look, topics=(), free_bytes=0) == replace(healthy, topics=(), free_bytes=0)
    assert replace(a, ingest=NO_REPORT) == replace(healthy.topics[0], ingest=NO_REPORT)
    assert list(all_errors(look)) == ["a, ingest"]
    assert all_errors(look)["a, ingest"].startswith("meta/@ingests/query-of-a.json at position ")
    assert metrics_of(look, "topic_ingest_report_readable") == {"a": 0, "b": 1}
    assert metrics_of(look, "ingest_lag") == {"b": 7}
    root.hide_reports()
    look = root.look()
    assert look == replace(
        healthy,
        reports_error=look.reports_error,
        free_bytes=look.free_bytes,
        topics=tuple(replace(each, ingest=NO_REPORT) for each in healthy.topics),
    )
    assert all_errors(look) == {"reports of ingests": look.reports_error}
    assert look.reports_error.endswith(
        "meta/@ingests: Too many levels of symbolic links. The operating system refused the operation."
    )
    assert metrics_of(look, "root_ingest_reports_readable") == {"": 0}
    assert metrics_of(look, "topic_ingest") == {}


def metrics_of(figures: RootFigures, part: str) -> dict[str, float]:
    """The values of the metrics of Lakelog that have this part in their names, by topic."""
    return {
        sample.labels.get("topic", ""): sample.value
        for family in families(figures) if part in family.name for sample in family.samples
    }  # fmt: skip


def test_a_change_costs_what_changed(tmp_path: Path) -> None:
    root = WatchedRoot(tmp_path, 1_900_000_000_000)
    for name in ("a", "b"):
        root.topic(name)
        root.append(name, 1000)
        root.export(name, {})
    root.look()
    root.look()
    root.append("a", 10)
    root.storage.taken()
    (a, b) = root.look().topics
    assert (a.partitions[0].current_offset, b.partitions[0].current_offset) == (2, 1)
    assert root.storage.taken()["read"] == 2 + 1  # one more version of a
    root.export("a", {0: 1})
    root.storage.taken()
    (a, b) = root.look().topics
    assert a.consumers[0].partitions == (PartitionLag(0, 1, 1, 1, root.clock.now_ms() - 10),)
    assert root.storage.taken()["read"] > 2  # the file of the consumer, and the next unread record


def test_new_versions_are_followed_with_their_changes(root: WatchedRoot) -> None:
    root.topic("t")
    root.look()
    root.clock.advance(MINUTE)
    root.append("t", 0)
    root.clock.advance(MINUTE)
    root.take_over("t", "one")
    root.take_over("t", "one")
    (topic,) = root.look().topics
    assert (topic.version, topic.epoch, topic.has_ingest, topic.written_ms) == (3, 2, True, NOW + 2 * MINUTE)
    assert topic.changes == RecentChanges(
        {ChangeKind.CREATE: NOW, ChangeKind.APPEND: NOW + MINUTE, ChangeKind.TAKE_OVER: NOW + 2 * MINUTE},
        (NOW + 2 * MINUTE,) * 2, NOW, True,
    )  # fmt: skip


def test_new_and_deleted_topics_are_noticed_at_the_next_look(root: WatchedRoot) -> None:
    root.topic("a")
    assert names(root.look()) == ["a"]
    root.topic("b")
    assert names(root.look()) == ["a", "b"]
    root.topics.delete("a")
    assert names(root.look()) == ["b"]
    root.look()
    root.topic("a", 3)
    again = root.look()
    assert [(topic.name, len(topic.partitions)) for topic in again.topics] == [("a", 3), ("b", 1)]


def test_a_damaged_topic_hides_no_other_topic(root: WatchedRoot) -> None:
    for name in ("a", "b", "c"):
        root.topic(name)
        root.append(name, 0)
    root.damage("b")
    damaged = root.look()
    assert names(damaged) == ["a", "c"]
    assert list(damaged.unreadable) == ["b"]
    assert damaged.unreadable["b"].startswith(
        "meta/b/00000000000000000001.json at position 0: expected bytes with digest"
    )
    assert all_errors(damaged) == dict(damaged.unreadable)
    root.damage("b")  # the same byte once more: the file is as it was
    assert list(root.look().unreadable) == ["b"]
    root.clock.advance(LONG_WAY_MS)
    assert (names(root.look()), root.look().unreadable) == (["a", "b", "c"], {})


def test_a_new_version_that_is_damaged_is_found_at_once_and_again_when_it_is_repaired(root: WatchedRoot) -> None:
    root.topic("a")
    root.topic("b")
    assert names(root.look()) == ["a", "b"]
    root.append("b", 0)
    root.damage("b")
    assert list(root.look().unreadable) == ["b"]
    root.damage("b")
    repaired = root.look()
    assert (names(repaired), repaired.unreadable) == (["a", "b"], {})
    assert repaired.topics[1].version == 1


def test_a_lost_newest_version_is_found_within_minutes(root: WatchedRoot) -> None:
    root.topic("a")
    root.append("a", 0)
    settle(root.topics)
    root.look()
    root.state_file("a").unlink()
    root.clock.advance(LONG_WAY_MS)
    found = root.look()
    assert list(found.unreadable) == ["a"]
    assert "a version in which partition 0 ends at offset 1 or later" in found.unreadable["a"]


def test_a_watch_that_slept_through_a_pruning_recovers(root: WatchedRoot) -> None:
    root.topic("t")
    root.look()
    chain = root.topics.chain("t")
    for number in range(150):
        root.clock.advance(1000)
        chain.commit(lambda state: state, f"append of {number} records")
    assert prune(root.storage, chain, keep=20).versions == 98
    root.clock.advance(1000)
    chain.commit(lambda state: state, "retention")
    assert root.look().topics[0].version == 0
    root.clock.advance(LONG_WAY_MS)
    (topic,) = root.look().topics
    assert (topic.version, topic.versions_kept) == (151, 54)
    assert topic.changes == RecentChanges(
        {ChangeKind.CREATE: NOW, ChangeKind.APPEND: NOW + 150_000, ChangeKind.RETENTION: NOW + 151_000}, (), NOW, True
    )


def test_damaged_consumers_are_named_and_the_others_measured(root: WatchedRoot) -> None:
    root.topic("t")
    root.append("t", 1000)
    root.group("t", "billing", {0: 0})
    root.export("t", {})
    (file, _) = root.storage.list(group_folder("t"))
    root.storage.replace(file.key, b"{}")
    (topic,) = root.look().topics
    assert len(topic.damaged_consumers) == 1
    assert topic.damaged_consumers[0].startswith(f"{file.key} at position")
    assert len(topic.consumers) == 1


def test_a_damaged_log_leaves_only_the_age_unknown(root: WatchedRoot) -> None:
    state = root.topic("t")
    root.append("t", 1000)
    root.export("t", {})
    (log,) = (root.folder / "data" / state.topic_id / "0").glob("*.log")
    log.write_bytes(bytes(log.stat().st_size))
    (topic,) = root.look().topics
    assert topic.consumers[0].partitions == (PartitionLag(0, None, 1, 1, None),)
    assert topic.lag_error.startswith(f"data/{state.topic_id}/0/")


def test_records_of_an_open_transaction_are_not_unread_and_its_marker_is_no_record(root: WatchedRoot) -> None:
    root.topic("t")
    root.append("t", 5000)
    root.group("t", "g", {0: 1})
    with TransactionWriter(root.topics, timeout_ms=HOUR) as transaction:
        transaction.append("t", to_table([Row(b"k", b"v", timestamp=NOW - 3000)]))
        assert consumer(root.look()).partitions == (PartitionLag(0, 1, 1, 0, None),)
        transaction.commit()
    assert consumer(root.look()).partitions == (PartitionLag(0, 1, 2, 2, NOW - 3000),)
    root.group("t", "g", {0: 2})
    assert consumer(root.look()).partitions == (PartitionLag(0, 2, 1, 0, None),)
    assert consumer(root.look()).partitions == (PartitionLag(0, 2, 1, 0, None),)


def test_a_consumer_that_has_read_a_newer_state_has_no_lag(root: WatchedRoot) -> None:
    """Its file may be read after another process has committed more records."""
    root.topic("t")
    root.append("t", 0)
    root.look()
    root.group("t", "g", {0: 2})
    assert consumer(root.look()).partitions == (PartitionLag(0, 2, 0, 0, None),)


@pytest.mark.parametrize(("ahead_ms", "known"), [(30_000, True), (30_001, False)])
def test_a_timestamp_in_the_future_does_not_tell_the_age_so_the_consumer_has_stopped(
    root: WatchedRoot, ahead_ms: int, known: bool
) -> None:
    root.topic("t")
    root.append("t", HOUR)
    root.group("t", "g", {0: 1})
    root.clock.advance(HOUR)
    root.append("t", -ahead_ms, 0)
    found = consumer(root.look())
    assert found.partitions == (PartitionLag(0, 1, 2, 2, NOW + HOUR + ahead_ms if known else None),)
    assert found.status is (ConsumerStatus.OK if known else ConsumerStatus.STOP)


def test_the_age_is_that_of_the_first_record_that_compaction_left(root: WatchedRoot) -> None:
    root.topic("t", cleanup_policy="compact", segment_ms="1", min_cleanable_dirty_ratio="0")
    for age in (9000, 8000, 7000):
        root.append("t", age)
        root.clock.advance(1000)
    root.export("t", {})
    (before,) = consumer(root.look()).partitions
    assert before.oldest_unread_ms == NOW - 9000
    chain = root.topics.chain("t")
    compact_topic(root.storage, chain, root.topics.config(chain.newest()), root.topics.broker, root.clock)
    (after,) = consumer(root.look()).partitions
    assert (after.lag, after.oldest_unread_ms) == (3, NOW + 1000 - 8000)


def test_what_waits_for_maintenance_and_for_settling(root: WatchedRoot) -> None:
    root.topic("t", retention_ms=str(HOUR), segment_ms="1")
    root.append("t", 2 * HOUR)
    root.clock.advance(1000)
    root.append("t", 0)
    settle(root.topics)
    root.append("t", 0, 0)
    checkpoint = root.folder / "log/replication-offset-checkpoint"
    root.set_time(checkpoint, NOW - DAY)
    found = root.look()
    (topic,) = found.topics
    assert (topic.due_segments, topic.waiting_segments, topic.view_behind) == (1, 0, 2)
    assert topic.due_since_ms == NOW  # the segment is written later than its timestamp plus retention.ms
    assert found.view_settled_ms == NOW - DAY


def test_a_storage_without_capabilities_is_watched_too(root: WatchedRoot) -> None:
    root.topic("t")
    root.append("t", 0)
    watch = RootWatch(Topics(PlainStorage(root.storage), root.topics.broker, root.clock), "plain")
    found = watch.look()
    assert (names(found), found.free_bytes, found.view_settled_ms) == (["t"], None, None)
    root.topic("u")
    assert names(watch.look()) == ["t"]
    root.clock.advance(LONG_WAY_MS)
    assert names(watch.look()) == ["t", "u"]


def test_a_root_that_cannot_be_listed_is_a_problem_of_the_root(root: WatchedRoot) -> None:
    root.topic("t")
    assert root.look().problem == ""
    (root.folder / "meta").rename(root.folder / "aside")
    (root.folder / "meta").write_bytes(b"")
    found = root.look()
    assert (found.topics, "meta" in found.problem, list(all_errors(found))) == ((), True, ["root"])
    (root.folder / "meta").unlink()
    (root.folder / "aside").rename(root.folder / "meta")
    assert names(root.look()) == ["t"]


def test_an_empty_directory_is_no_healthy_root(root: WatchedRoot) -> None:
    """As it remains when a mount disappears."""
    root.topic("t")
    assert root.look().problem == ""
    (root.folder / "meta").rename(root.folder.with_name("aside"))
    gone = f"root {root.folder}: this path has no topics: the folder meta/ is missing or empty."
    assert root.look().problem == f"{gone} Check whether the file system is mounted."
    watch = RootWatch(Topics(PlainStorage(root.storage), root.topics.broker, root.clock))
    assert watch.look().problem.startswith(gone)
    root.folder.with_name("aside").rename(root.folder / "meta")
    assert (names(root.look()), names(watch.look())) == (["t"], ["t"])


def test_a_busy_topic_is_looked_back_until_maintenance_is_found(root: WatchedRoot) -> None:
    """A thousand versions may be a few hours. The history shows what was before."""
    root.topic("t")
    chain = root.topics.chain("t")
    for day in range(6):
        root.clock.advance(DAY)
        chain.commit(lambda state: state, "retention" if day in (0, 2) else f"append of {day} records")
    (topic,) = root.look().topics
    assert topic.changes == RecentChanges(
        {ChangeKind.APPEND: NOW + 6 * DAY, ChangeKind.RETENTION: NOW + 3 * DAY}, (), NOW + 3 * DAY, False
    )


def test_only_the_newest_generation_of_a_group_counts(root: WatchedRoot) -> None:
    root.topic("t")
    root.append("t", 1000, 500)
    state = root.topics.state("t")
    member = join(root.storage, state, "g", "reader-1", "host-1", NOW)
    member.commit(state, {0: 1}, NOW)
    found = consumer(root.look())
    assert (found.kind, found.member, found.host, found.lag) == (GROUP_KIND, "reader-1", "host-1", 1)
    root.clock.advance(HOUR)
    assert consumer(root.look()).member == ""
