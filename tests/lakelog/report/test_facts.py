"""The facts in the report: what will happen to each segment, damage, and findings. One error does not stop the rest of
the report.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakelog.report.exported_tables import StaleRows
from lakelog.report.facts import MOST_DAMAGED, RootFacts, SegmentFate, WarningKind, collect_root
from storage_engine.config import topic_config
from storage_engine.errors import UnknownTopicError
from storage_engine.topic.chain.version_files import version_key
from storage_engine.topic.ingest_reports import IngestReport, put_report
from storage_engine.topic.readers.consumer_files import EXPORT_KIND, export_consumer, put_positions
from tests.lakelog.report.roots import DAY, HOUR, NOW, Root, partition, segments


def collect(root: Root, *names: str) -> RootFacts:
    return collect_root(root.topics, names, NOW)


def fates(root: Root, name: str = "t", number: int = 0) -> list[SegmentFate]:
    (topic,) = collect(root, name).topics
    return [each.fate for each in topic.partitions[number].segments]


def test_a_report_of_an_ingest_that_cannot_be_read_is_a_warning(root: Root) -> None:
    root.topic("t", partition(*segments(10)))
    root.commit("t", partition(*segments(10)), query="q")
    report = IngestReport(query="q", updated_ms=NOW, is_running=True, lag_records=7)
    put_report(root.topics.storage, report)
    healthy = collect(root)
    assert (healthy.topics[0].ingest, healthy.unread) == (report, ())
    root.topics.storage.replace("meta/@ingests/q.json", b"")
    facts = collect(root)
    (warned,) = facts.unread
    assert (warned.finding, warned.place) == (WarningKind.UNREADABLE, "t")
    assert warned.text.startswith("meta/@ingests/q.json at position 0: expected the report of an ingest")
    assert replace(facts.topics[0], warnings=(), ingest=report) == healthy.topics[0]


def test_a_topic_tells_what_its_state_says(root: Root) -> None:
    state = root.topic("t", partition(*segments(10, 25)), partition(), partition(*segments(5)))
    (topic,) = collect(root).topics
    assert (topic.name, topic.segments, topic.size, topic.appended, topic.dead) == ("t", 3, 3000, 30, 0)
    assert topic.state == state
    assert topic.config == topic_config(root.topics.broker, {})
    assert [each.active for each in topic.partitions[0].segments] == [False, True]
    assert [each.age_ms for each in topic.partitions[0].segments] == [HOUR, 0]
    assert topic.partitions[1].segments == ()
    assert topic.warnings == ()


def test_what_retention_takes_next_is_reported_with_its_rule(root: Root) -> None:
    old = segments(10, 20, 30, newest=[NOW - 9 * DAY, NOW - 8 * DAY, NOW])
    root.topic("t", partition(*old, log_start_offset=10))
    assert fates(root) == [SegmentFate.DELETED_NEXT, SegmentFate.DELETED_NEXT, SegmentFate.ACTIVE]
    (topic,) = collect(root).topics
    rules = [each.deletion.rule for each in topic.partitions[0].segments if each.deletion]
    assert rules == ["start offset", "time"]


def test_an_active_segment_that_retention_takes_is_reported_as_both(root: Root) -> None:
    root.topic("t", partition(*segments(10, newest=[NOW - 9 * DAY])))
    (segment,) = collect(root).topics[0].partitions[0].segments
    assert (segment.fate, segment.active) == (SegmentFate.DELETED_NEXT, True)


def test_what_compaction_cleans_next_begins_at_the_first_dirty_offset(root: Root) -> None:
    root.topic("t", partition(*segments(10, 20, 30, 40), first_dirty_offset=10), cleanup_policy="compact")
    assert fates(root) == [SegmentFate.CLEAN, SegmentFate.CLEANED_NEXT, SegmentFate.CLEANED_NEXT, SegmentFate.ACTIVE]


def test_what_is_too_young_or_too_little_to_compact_stays_dirty(root: Root) -> None:
    parts = partition(*segments(10, 20, 30, 40), first_dirty_offset=20), partition(*segments(10, 20, 30))
    root.topic("t", *parts, cleanup_policy="compact", min_compaction_lag_ms=str(3 * HOUR // 2))
    assert fates(root, number=0) == [SegmentFate.CLEAN, SegmentFate.CLEAN, SegmentFate.DIRTY, SegmentFate.ACTIVE]
    assert fates(root, number=1) == [SegmentFate.CLEANED_NEXT, SegmentFate.DIRTY, SegmentFate.ACTIVE]


def test_missing_and_short_files_are_damage_and_longer_ones_are_not(root: Root) -> None:
    state = root.topic("t", partition(*segments(10, 20, 30)))
    first, second, third = state.partitions[0].segments
    root.file(state, 0, first).unlink()
    root.write_file(state, 0, second, 999)
    root.write_file(state, 0, third, 5000)
    warnings = collect(root).warnings
    assert [(each.finding, each.place) for each in warnings] == [(WarningKind.DAMAGED, "t-0")] * 2
    assert f"{first.name}.log is missing" in warnings[0].text
    assert f"{second.name}.log has only 999 of 1,000 committed bytes" in warnings[1].text


def test_thousands_of_missing_files_are_reported_in_a_few_lines(root: Root) -> None:
    state = root.topic("t", partition(*segments(*range(1, 19))))
    for segment in state.partitions[0].segments[:-1]:
        root.file(state, 0, segment).unlink()
    warnings = collect(root).warnings
    assert len(warnings) == MOST_DAMAGED + 1
    assert warnings[-1].text == "14 more of 18 segments are missing or too short."


def test_a_time_in_the_future_is_reported_with_what_it_holds_back(root: Root) -> None:
    times = [NOW + 2 * DAY, NOW - 30 * DAY, NOW - 29 * DAY, NOW]
    root.topic("t", partition(*segments(10, 20, 30, 40, newest=times)))
    (warned,) = collect(root).warnings
    assert (warned.finding, warned.place) == (WarningKind.FUTURE, "t-0")
    assert warned.text.startswith(
        "In 1 segment of 4, timestamps are up to 2 d in the future. The first of these segments prevents"
        " the deletion of 2 later segments."
    )


def test_many_small_segments_are_reported_and_few_are_not(root: Root) -> None:
    root.topic("few", partition(*segments(*range(10, 210, 10))))
    root.topic("many", partition(*segments(*range(10, 220, 10))))
    root.topic("large", partition(*segments(*range(10, 220, 10))), segment_bytes="2048")
    (warned,) = collect(root).warnings
    assert (warned.finding, warned.place) == (WarningKind.SMALL_SEGMENTS, "many-0")
    assert warned.text.startswith("20 of 20 closed segments are smaller than a twentieth of segment.bytes (1.1 GB).")


def test_an_unreadable_topic_stops_no_other(root: Root) -> None:
    root.topic("bad", partition(*segments(10)))
    root.topic("good", partition(*segments(10)))
    root.topics.storage.replace(version_key("bad", 1), b"no state")
    facts = collect(root)
    assert [topic.name for topic in facts.topics] == ["good"]
    assert facts.unreadable == ("bad",)
    assert [(each.finding, each.place) for each in facts.warnings] == [(WarningKind.UNREADABLE, "bad")]
    assert facts.unread == facts.warnings


def test_settings_of_a_newer_lakelog_make_one_topic_unreadable(root: Root) -> None:
    root.topics.create("t", 1, {})
    root.topics.chain("t").commit(lambda state: state.model_copy(update={"configs": {"new.key": "1"}}), "")
    assert collect(root).unreadable == ("t",)


def test_a_stray_folder_is_a_finding_unless_it_was_asked_for(root: Root) -> None:
    root.topics.storage.put_new("meta/no name/x", b"")
    root.topics.storage.put_new("meta/empty/x", b"")
    root.topic("t", partition())
    facts = collect(root)
    assert ([topic.name for topic in facts.topics], facts.unreadable) == (["t"], ("empty",)), (
        "Kafka takes no topic of the other name"
    )
    with pytest.raises(UnknownTopicError):
        collect(root, "empty")
    assert collect(root, "no name").unreadable == ("no name",)


def test_a_partition_whose_files_cannot_be_listed_is_a_finding(root: Root) -> None:
    state = root.topic("t", partition(*segments(10)), partition(*segments(20)))
    folder = root.file(state, 0, state.partitions[0].segments[0]).parent
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.write_text("a file")
    facts = collect(root)
    assert [(each.finding, each.place) for each in facts.warnings] == [(WarningKind.UNREADABLE, "t-0")]
    assert len(facts.topics[0].partitions) == 2


def test_a_partition_that_compaction_cannot_decide_on_is_a_finding(root: Root) -> None:
    """max.compaction.lag.ms makes it read the first batch of each dirty segment."""
    state = root.topic(
        "t", partition(*segments(10, 20, 30), first_dirty_offset=10), partition(), cleanup_policy="compact",
        max_compaction_lag_ms="1000", min_cleanable_dirty_ratio="1.0",
    )  # fmt: skip
    root.file(state, 0, state.partitions[0].segments[1]).unlink()
    facts = collect(root)
    findings = [(each.finding, each.place) for each in facts.warnings]
    assert findings == [(WarningKind.UNREADABLE, "t-0"), (WarningKind.DAMAGED, "t-0")]
    undecided, empty = facts.topics[0].partitions
    assert undecided.compaction is None
    assert [each.fate for each in undecided.segments] == [SegmentFate.CLEAN, SegmentFate.DIRTY, SegmentFate.ACTIVE]
    assert empty.compaction is not None


def test_a_broken_table_of_dead_letters_is_a_finding(root: Root) -> None:
    root.topic("t", partition())
    for key in ("export/t", "unknown_topic"):
        root.topics.storage.put_new(f"tables/dead_letters/{key}/_delta_log/00000000000000000000.json", b"no action")
    facts = collect(root)
    assert [(each.finding, each.place) for each in facts.warnings] == [
        (WarningKind.UNREADABLE, "t"), (WarningKind.UNREADABLE, "dead letters of no topic"),
    ]  # fmt: skip
    assert "tables/dead_letters/export/t" in facts.warnings[0].text
    assert "tables/dead_letters/unknown_topic" in facts.warnings[1].text
    assert (facts.topics[0].dead_letters, facts.topics[0].all_dead_letters) == ((), False)


def test_stale_rows_and_records_that_were_not_exported_ask_for_attention(root: Root) -> None:
    state = root.topic("t", partition(*segments(10)))
    place = {"partition": 0, "offset": 5}
    rows = [{"n": 1, "_stale_since": place}, {"n": 2, "_stale_since": None}, {"n": 3, "_stale_since": place}]
    write_deltalake(root.folder / "tables/t", pa.Table.from_pylist(rows))
    letters = [{"reason": "undecodable", "partition": 0, "offset": offset} for offset in (5, 7, 8)]
    write_deltalake(root.folder / "tables/dead_letters/export/t", pa.Table.from_pylist(letters))
    put_positions(root.topics.storage, state, export_consumer("tables/t"), EXPORT_KIND, {0: 10}, NOW, holds_back=True)
    put_positions(root.topics.storage, state, "another reader", "group", {0: 10}, NOW, holds_back=True)
    facts = collect(root)
    not_exported = (
        "3 records did not become rows, but dead letters of the export. If the model is wrong, correct it, and"
        " run `export --replay`. The replay also marks a dead letter as superseded if a newer record has replaced or deleted"
        " the row."
    )
    assert facts.topics[0].stale_rows == (StaleRows("tables/t", 2),)
    assert [(each.finding, each.place, each.text) for each in facts.warnings] == [
        (
            WarningKind.STALE_ROWS, "t",
            (
                "2 rows of tables/t are stale: a newer record of the key cannot be decoded; the column _stale_since"
                " has the partition and the offset of that record."
            ),
        ),
        (WarningKind.NOT_EXPORTED, "t", not_exported),
    ]  # fmt: skip


def test_deleted_topics_are_named_while_their_files_wait(root: Root) -> None:
    root.topic("old", partition(*segments(10, 20)))
    root.topics.delete("old")
    root.topic("empty", partition())
    root.topics.delete("empty")
    facts = collect(root)
    assert (facts.topics, facts.deleted) == ((), (("old", 2),))
    with pytest.raises(UnknownTopicError):
        collect(root, "old")


def test_a_root_without_topics_has_nothing_to_tell(root: Root) -> None:
    assert collect(root) == RootFacts(root.topics.storage.uri, NOW, ())
