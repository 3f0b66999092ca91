"""Each rule of `lakelog check`, with figures at the limit of the rule and above the limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakelog.metrics.change_kinds import ChangeKind, RecentChanges
from lakelog.metrics.consumer_status import ConsumerStatus
from lakelog.metrics.figures import ConsumerFigures, PartitionFigures, PartitionLag, RootFigures, TopicFigures
from lakelog.metrics.judging import CheckFinding, PluginStatus, judge
from lakelog.metrics.plugin_output import plugin_lines, unknown_line, worst
from lakelog.metrics.rules import Limit, Rules
from storage_engine.errors import CorruptionError
from storage_engine.topic.ingest_reports import FoundReport, IngestReport
from storage_engine.topic.readers.consumer_files import EXPORT_KIND, GROUP_KIND
from tests.lakelog.metrics.roots import DAY, HOUR, MINUTE, NOW

OK, WARNING, CRITICAL, UNKNOWN = PluginStatus
TOPIC = TopicFigures(
    name="orders", version=41, written_ms=NOW - MINUTE, versions_kept=42, has_ingest=True, epoch=1,
    partitions=(PartitionFigures(0, 0, 100, 3, 3000, None),), consumers=(), damaged_consumers=(),
    changes=RecentChanges({ChangeKind.APPEND: NOW - MINUTE, ChangeKind.RETENTION: NOW - HOUR}, (), NOW - 9 * DAY),
    waiting_segments=0, due_segments=0, due_since_ms=None, view_behind=0, clock_skew_ms=3,
)  # fmt: skip
ROOT = RootFigures("lakelog", NOW, (TOPIC,), free_bytes=50_000_000, capacity_bytes=100_000_000, view_settled_ms=NOW)


def with_topic(**changes: object) -> RootFigures:
    return replace(ROOT, topics=(replace(TOPIC, **changes),))  # type: ignore[arg-type]


def with_consumer(
    kind: str, unread: int, age_ms: int | None, status: ConsumerStatus = ConsumerStatus.OK, updated_ms: int = NOW
) -> RootFigures:
    lag = PartitionLag(0, 1, unread, unread, None if age_ms is None else NOW - age_ms)
    name = "export tables/orders" if kind == EXPORT_KIND else "billing"
    return with_topic(consumers=(ConsumerFigures(name, kind, (lag,), status, updated_ms),))


def changes(last: dict[ChangeKind, int], *take_overs: int) -> RecentChanges:
    return RecentChanges({**TOPIC.changes.last_ms, **last}, take_overs, TOPIC.changes.since_ms)


def ingest(**changes: object) -> RootFigures:
    report = {"query": "q", "updated_ms": NOW, "is_running": True} | changes
    return with_topic(ingest=FoundReport(IngestReport.model_validate(report)))


GROUP, EXPORT, INGEST = "topic orders, group billing", "topic orders, export tables/orders", "topic orders, ingest"
CASES: dict[str, tuple[RootFigures, list[tuple[PluginStatus, str, str]]]] = {
    "nothing is wrong": (ROOT, []),
    "an ingest that reported at the limit, and has a lag": (ingest(lag_records=10**9, updated_ms=NOW - HOUR), []),
    "an ingest that ran at its last report, long ago": (
        ingest(updated_ms=NOW - 2 * HOUR),
        [(WARNING, INGEST, "the last report was 2 h ago, and the ingest had not ended")],
    ),
    "an ingest that ended long ago": (ingest(updated_ms=NOW - 9 * DAY, is_running=False), []),
    "a report of an ingest that cannot be read": (
        with_topic(ingest=FoundReport(error=CorruptionError("meta/@ingests/q.json", 0, "a report", "nothing"))),
        [(WARNING, INGEST, "meta/@ingests/q.json at position 0: expected a report, found nothing.")],
    ),
    "a folder of reports that cannot be listed": (
        replace(ROOT, reports_error="meta/@ingests: no."), [(WARNING, "reports of ingests", "meta/@ingests: no.")],
    ),
    "lag of a group at its limit": (with_consumer(GROUP_KIND, 5, 900_000), []),
    "lag of a group above its limit": (
        with_consumer(GROUP_KIND, 5, 900_001),
        [(WARNING, GROUP, "5 unread records, and the first of them is 15 min old")],
    ),
    "lag of a group far above its limit": (
        with_consumer(GROUP_KIND, 1, 2 * HOUR),
        [(CRITICAL, GROUP, "1 unread record, and the first of them is 2 h old")],
    ),
    "lag of unknown age": (with_consumer(GROUP_KIND, 5, None), []),
    "lag of an export has no limit in seconds": (with_consumer(EXPORT_KIND, 5, 90 * DAY), []),
    "an old export without new records": (with_consumer(EXPORT_KIND, 0, None, updated_ms=NOW - 9 * DAY), []),
    "an old export with new records": (
        with_consumer(EXPORT_KIND, 7, 3 * HOUR, updated_ms=NOW - 3 * HOUR),
        [(WARNING, EXPORT, "no position was stored for 3 h; 7 unread records")],
    ),
    "an old export with new records of unknown age": (
        with_consumer(EXPORT_KIND, 7, None, updated_ms=NOW - 3 * HOUR),
        [(WARNING, EXPORT, "no position was stored for 3 h; 7 unread records")],
    ),
    "a record arrived after a long pause": (
        with_consumer(EXPORT_KIND, 1, MINUTE, updated_ms=NOW - 9 * DAY), [],
    ),
    "a consumer that is slow": (
        with_consumer(GROUP_KIND, 5, MINUTE, ConsumerStatus.WARN),
        [(WARNING, GROUP, "status WARN: the consumer reads more slowly than the topic grows; 5 unread records")],
    ),
    "a consumer that went back": (
        with_consumer(GROUP_KIND, 5, MINUTE, ConsumerStatus.REWIND),
        [(CRITICAL, GROUP, "status REWIND: the consumer's position went back; 5 unread records")],
    ),
    "maintenance is late, but nothing is due": (with_topic(changes=changes({ChangeKind.RETENTION: NOW - DAY})), []),
    "maintenance is late": (
        with_topic(
            due_segments=2, due_since_ms=NOW - 9 * HOUR, changes=changes({ChangeKind.RETENTION: NOW - 4 * HOUR})
        ),
        [
            (
                WARNING, "topic orders",
                "maintenance last changed the topic 4 h ago; 2 segments to delete, the first for 9 h",
            )
        ],
    ),
    "a segment became due after a long pause": (
        with_topic(due_segments=1, due_since_ms=NOW - HOUR, changes=changes({ChangeKind.RETENTION: NOW - 9 * DAY})), [],
    ),
    "a segment is due for too long": (
        with_topic(
            due_segments=1, due_since_ms=NOW - 4 * HOUR, changes=changes({ChangeKind.RETENTION: NOW - 9 * DAY})
        ),
        [
            (
                WARNING, "topic orders",
                "maintenance last changed the topic 9 d ago; 1 segment to delete, the first for 4 h",
            )
        ],
    ),
    "maintenance never ran": (
        with_topic(
            due_segments=1, due_since_ms=NOW - 9 * DAY, changes=RecentChanges({ChangeKind.APPEND: NOW}, (), NOW - 9 * DAY)
        ),
        [
            (
                CRITICAL, "topic orders",
                "maintenance has not changed the topic for at least 9 d; 1 segment to delete, the first for 9 d",
            )
        ],
    ),
    "segments pile up": (
        with_topic(partitions=(PartitionFigures(0, 0, 1, 3, 1, None), PartitionFigures(1, 0, 1, 1001, 1, None))),
        [(WARNING, "topic orders, partition 1", "1,001 segments")],
    ),
    "files pile up": (
        with_topic(waiting_segments=10_001),
        [(WARNING, "topic orders", "the files of 10,001 dropped segments are not deleted yet")],
    ),
    "versions pile up": (
        with_topic(versions_kept=3001),
        [
            (
                WARNING, "topic orders",
                "3,001 versions of the state are in storage: neither maintenance nor `lakelog state prune` runs",
            )
        ],
    ),
    "a silent writer": (
        with_topic(changes=changes({ChangeKind.APPEND: NOW - 2 * DAY})),
        [(WARNING, "topic orders", "the ingest has appended nothing for 2 d")],
    ),
    "a writer that never appended": (
        with_topic(changes=RecentChanges({}, (), NOW - 9 * DAY)),
        [(WARNING, "topic orders", "the ingest has appended nothing for at least 9 d")],
    ),
    "a silent topic without an ingest": (
        with_topic(has_ingest=False, changes=changes({ChangeKind.APPEND: NOW - 2 * DAY})), [],
    ),
    "two take-overs": (with_topic(changes=changes({}, NOW, NOW - HOUR)), []),
    "three take-overs": (
        with_topic(changes=changes({}, NOW, NOW - 1, NOW - HOUR, NOW - HOUR - 1)),
        [(WARNING, "topic orders", "3 take-overs in 1 h: perhaps two ingests take turns to write to the topic")],
    ),
    "the view is behind, but was settled": (with_topic(view_behind=7), []),
    "the view is behind": (
        replace(with_topic(view_behind=7), view_settled_ms=NOW - 4 * HOUR),
        [(WARNING, "topic orders", "log/ was last brought up to date 4 h ago, and lacks 7 records")],
    ),
    "the writer's clock is slow": (
        with_topic(clock_skew_ms=-31_000),
        [(WARNING, "topic orders", "the writer's clock is 31 s behind the storage's clock")],
    ),
    "the writer's clock is fast": (
        with_topic(written_ms=NOW + 40_000, clock_skew_ms=0),
        [(WARNING, "topic orders", "the writer's clock is 40 s ahead of this host's clock")],
    ),
    "little space": (
        replace(ROOT, free_bytes=9_900_000), [(WARNING, "disk", "9.9 MB are free, 9.9% of 100.0 MB")],
    ),
    "no space": (replace(ROOT, free_bytes=0), [(CRITICAL, "disk", "0 B are free, 0.0% of 100.0 MB")]),
    "a damaged topic": (
        replace(ROOT, unreadable={"lost": "meta/lost: gone."}), [(CRITICAL, "topic lost", "meta/lost: gone.")],
    ),
    "a damaged log": (
        with_topic(lag_error="data/x.log: damaged."), [(CRITICAL, "topic orders", "data/x.log: damaged.")],
    ),
    "a damaged consumer": (
        with_topic(damaged_consumers=("meta/orders/groups/x: damaged.",)),
        [(WARNING, "topic orders", "meta/orders/groups/x: damaged.")],
    ),
    "a root that cannot be read": (
        RootFigures("lakelog", NOW, problem="meta: gone."), [(UNKNOWN, "root", "meta: gone.")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("figures", "expected"), CASES.values(), ids=CASES)
def test_a_rule_that_is_broken_is_one_finding(
    figures: RootFigures, expected: list[tuple[PluginStatus, str, str]]
) -> None:
    assert judge(figures, Rules()) == [CheckFinding(*each) for each in expected]


def test_limits_in_records_and_bytes_have_no_default_but_work() -> None:
    rules = Rules().model_copy(
        update={"lag_records": Limit(warning=4), "export_lag_records": Limit(critical=4), "export_lag_seconds": Limit(warning=1),
                "disk_free_bytes": Limit(critical=60_000_000)}
    )  # fmt: skip
    assert judge(with_consumer(GROUP_KIND, 5, None), rules) == [
        CheckFinding(CRITICAL, "disk", "50.0 MB are free, 50.0% of 100.0 MB"),
        CheckFinding(WARNING, GROUP, "5 unread records"),
    ]
    assert judge(with_consumer(EXPORT_KIND, 5, MINUTE), rules)[1:] == [
        CheckFinding(CRITICAL, EXPORT, "5 unread records"),
        CheckFinding(WARNING, EXPORT, "5 unread records, and the first of them is 1 min old"),
    ]


def test_ignored_consumers_and_topics_with_their_own_rules() -> None:
    slow = with_consumer(GROUP_KIND, 5, DAY, ConsumerStatus.STOP)
    assert judge(slow, Rules.model_validate({"ignore.consumers": ["billing"]})) == []
    own = {"topics": {"orders": {"lag.seconds": None, "consumer.status": "false"}}}
    assert judge(slow, Rules.model_validate(own)) == []
    (found,) = judge(slow, Rules.model_validate({"topics": own["topics"] | {"ordres": {}}}))
    text = "the rules name this topic, but it does not exist"
    assert found == CheckFinding(PluginStatus.WARNING, "topic ordres", text)


def test_the_whole_output_of_a_plugin() -> None:
    """With a name that would begin performance data, and characters that have a meaning in a label."""
    lag = PartitionLag(0, 1, 5, 5, NOW - DAY)
    evil = "it's a=|b"
    topic = replace(TOPIC, consumers=(ConsumerFigures(evil, GROUP_KIND, (lag,), ConsumerStatus.OK, NOW),))
    root = replace(ROOT, topics=(topic,), unreadable={"lost": "meta/lost: gone."}, free_bytes=8_000_000)
    findings = judge(root, Rules())
    assert worst(findings) is CRITICAL
    assert plugin_lines(root, Rules(), findings) == [
        (
            "LAKELOG CRITICAL: 2 critical, 1 warning; 2 topics | 'topics'=2;;;0 'unreadable topics'=1;;0;0"
            " 'free'=8%;10:;5:;0 'free bytes'=8000000B;;;0 'orders segments'=3;1000;;0 'orders bytes'=3000B;;;0"
            " 'orders commits'=42c;;;0 'orders it''s a\\x3d\\x7cb lag'=5;;;0"
            " 'orders it''s a\\x3d\\x7cb lag seconds'=86400s;900;3600;0"
        ),
        "CRITICAL: topic lost: meta/lost: gone.",
        "CRITICAL: topic orders, group it's a=\\x7cb: 5 unread records, and the first of them is 1 d old",
        "WARNING: disk: 8.0 MB are free, 8.0% of 100.0 MB",
    ]


def test_output_without_findings_and_without_a_root() -> None:
    small = replace(ROOT, topics=(), free_bytes=None)
    assert plugin_lines(small, Rules(), []) == [
        "LAKELOG OK: nothing is wrong; 0 topics | 'topics'=0;;;0 'unreadable topics'=0;;0;0"
    ]
    gone = RootFigures("lakelog", NOW, problem="meta: gone.")
    assert plugin_lines(gone, Rules(), judge(gone, Rules())) == [
        "LAKELOG UNKNOWN: the root cannot be read; 0 topics | 'topics'=0;;;0 'unreadable topics'=0;;0;0",
        "UNKNOWN: root: meta: gone.",
    ]
    assert unknown_line("a | b\n  c") == "LAKELOG UNKNOWN: a \\x7c b c"
