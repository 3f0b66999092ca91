"""Judges the figures of a root by rules. The rules are pure functions: their result is a list of findings, and they
read and print nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from lakelog.metrics.change_kinds import ChangeKind
from lakelog.metrics.consumer_status import ConsumerStatus
from lakelog.metrics.figures import ConsumerFigures, RootFigures, TopicFigures, lag_seconds
from lakelog.metrics.rules import Limit, Rules, TopicRules
from storage_engine.quantities import counted, shown_duration, shown_size
from storage_engine.topic.readers.consumer_files import EXPORT_KINDS


class PluginStatus(IntEnum):
    """The exit statuses of monitoring plugins (Nagios, Icinga and others)."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True)
class CheckFinding:
    """A rule that is broken.

    place: what the finding is about, such as "topic orders".
    """

    status: PluginStatus
    place: str
    text: str


def judge(root: RootFigures, rules: Rules) -> list[CheckFinding]:
    """All findings, the most serious first."""
    if root.problem:
        return [CheckFinding(PluginStatus.UNKNOWN, "root", root.problem)]
    found = [*_disk(root, rules)]
    found += (CheckFinding(PluginStatus.CRITICAL, f"topic {name}", text) for name, text in root.unreadable.items())
    if root.reports_error:
        found.append(CheckFinding(PluginStatus.WARNING, "reports of ingests", root.reports_error))
    known = {topic.name for topic in root.topics} | root.unreadable.keys()
    for name in sorted(rules.topics.keys() - known):
        found.append(
            CheckFinding(PluginStatus.WARNING, f"topic {name}", "the rules name this topic, but it does not exist")
        )
    for topic in root.topics:
        found += _topic(root, topic, rules.of_topic(topic.name), set(rules.ignore_consumers))
    return sorted(found, key=lambda each: -each.status)


def _above(limit: Limit, value: float) -> PluginStatus:
    if limit.critical is not None and value > limit.critical:
        return PluginStatus.CRITICAL
    return PluginStatus.WARNING if limit.warning is not None and value > limit.warning else PluginStatus.OK


def _below(limit: Limit, value: float) -> PluginStatus:
    if limit.critical is not None and value < limit.critical:
        return PluginStatus.CRITICAL
    return PluginStatus.WARNING if limit.warning is not None and value < limit.warning else PluginStatus.OK


def _broken(status: PluginStatus, place: str, text: str) -> Iterator[CheckFinding]:
    if status is not PluginStatus.OK:
        yield CheckFinding(status, place, text)


def _disk(root: RootFigures, rules: Rules) -> Iterator[CheckFinding]:
    if root.free_bytes is None or not root.capacity_bytes:
        return
    percent = 100 * root.free_bytes / root.capacity_bytes
    status = max(_below(rules.disk_free_percent, percent), _below(rules.disk_free_bytes, root.free_bytes))
    yield from _broken(
        status, "disk", f"{shown_size(root.free_bytes)} are free, {percent:.1f}% of {shown_size(root.capacity_bytes)}"
    )


def _topic(root: RootFigures, topic: TopicFigures, rules: TopicRules, ignored: set[str]) -> Iterator[CheckFinding]:
    place = f"topic {topic.name}"
    if topic.lag_error:
        yield CheckFinding(PluginStatus.CRITICAL, place, topic.lag_error)
    for text in topic.damaged_consumers:
        yield CheckFinding(PluginStatus.WARNING, place, text)
    yield from _ingest(root, topic, rules)
    for consumer in topic.consumers:
        if consumer.name not in ignored:
            yield from _consumer(root, topic, consumer, rules)
    yield from _writer(root, topic, rules)
    cleaned_ms = topic.changes.last_cleaned_ms()
    age = (root.now_ms - (topic.changes.since_ms if cleaned_ms is None else cleaned_ms)) / 1000
    if topic.due_since_ms is not None:
        waiting = (root.now_ms - topic.due_since_ms) / 1000
        when = (
            f"has not changed the topic for at least {shown_duration(age)}"
            if cleaned_ms is None
            else f"last changed the topic {shown_duration(age)} ago"
        )
        yield from _broken(
            _above(rules.maintenance_age_seconds, min(age, waiting)), place,
            f"maintenance {when}; {counted(topic.due_segments, 'segment')} to delete, the first for"
            f" {shown_duration(waiting)}",
        )  # fmt: skip
    for part in topic.partitions:
        yield from _broken(
            _above(rules.partition_segments, part.segments), f"{place}, partition {part.number}",
            counted(part.segments, "segment"),
        )  # fmt: skip
    yield from _broken(
        _above(rules.waiting_segments, topic.waiting_segments), place,
        f"the files of {counted(topic.waiting_segments, 'dropped segment')} are not deleted yet",
    )  # fmt: skip
    yield from _broken(
        _above(rules.versions, topic.versions_kept), place,
        f"{counted(topic.versions_kept, 'version')} of the state are in storage: neither maintenance nor"
        " `lakelog state prune` runs",
    )  # fmt: skip
    if topic.view_behind and root.view_settled_ms is not None:
        age = (root.now_ms - root.view_settled_ms) / 1000
        yield from _broken(
            _above(rules.view_age_seconds, age), place,
            f"log/ was last brought up to date {shown_duration(age)} ago, and lacks"
            f" {counted(topic.view_behind, 'record')}",
        )  # fmt: skip


def _writer(root: RootFigures, topic: TopicFigures, rules: TopicRules) -> Iterator[CheckFinding]:
    place, changes = f"topic {topic.name}", topic.changes
    if topic.has_ingest:
        last_ms = changes.last_ms.get(ChangeKind.APPEND)
        silent = (root.now_ms - (changes.since_ms if last_ms is None else last_ms)) / 1000
        since = f"for {shown_duration(silent)}" if last_ms is not None else f"for at least {shown_duration(silent)}"
        yield from _broken(
            _above(rules.writer_silent_seconds, silent), place, f"the ingest has appended nothing {since}"
        )
    window = rules.takeovers_window_seconds
    count = changes.take_overs_since(root.now_ms - int(window * 1000))
    yield from _broken(
        _above(rules.writer_takeovers, count), place,
        f"{counted(count, 'take-over')} in {shown_duration(window)}: perhaps two ingests take turns to write to the"
        " topic",
    )  # fmt: skip
    skews = {"this host's clock": topic.written_ms - root.now_ms} if topic.written_ms > root.now_ms else {}
    if topic.clock_skew_ms is not None:
        skews["the storage's clock"] = topic.clock_skew_ms
    for other, skew_ms in skews.items():
        far = f"{shown_duration(abs(skew_ms) / 1000)} {'ahead of' if skew_ms > 0 else 'behind'} {other}"
        yield from _broken(_above(rules.clock_skew_seconds, abs(skew_ms) / 1000), place, f"the writer's clock is {far}")


def _ingest(root: RootFigures, topic: TopicFigures, rules: TopicRules) -> Iterator[CheckFinding]:
    place = f"topic {topic.name}, ingest"
    if topic.ingest.error is not None:
        yield CheckFinding(PluginStatus.WARNING, place, str(topic.ingest.error))
    if (report := topic.ingest.report) is None:
        return
    if report.lag_records is not None:
        behind = f"{counted(report.lag_records, 'record')} behind its source"
        yield from _broken(_above(rules.ingest_lag_records, report.lag_records), place, behind)
    age = (root.now_ms - report.updated_ms) / 1000
    if report.is_running:
        text = f"the last report was {shown_duration(age)} ago, and the ingest had not ended"
        yield from _broken(_above(rules.ingest_report_age_seconds, age), place, text)


def _consumer(
    root: RootFigures, topic: TopicFigures, consumer: ConsumerFigures, rules: TopicRules
) -> Iterator[CheckFinding]:
    is_export = consumer.kind in EXPORT_KINDS
    place = f"topic {topic.name}, {'' if is_export else 'group '}{consumer.name}"
    records, seconds = (
        (rules.export_lag_records, rules.export_lag_seconds) if is_export else (rules.lag_records, rules.lag_seconds)
    )
    unread = counted(consumer.unread, "unread record")
    yield from _broken(_above(records, consumer.unread), place, unread)
    age = lag_seconds(root, consumer.unread, consumer.oldest_unread_ms)
    if age is not None:
        text = f"{unread}, and the first of them is {shown_duration(age)} old"
        yield from _broken(_above(seconds, age), place, text)
    if is_export and consumer.unread:
        since = (root.now_ms - consumer.updated_ms) / 1000
        text = f"no position was stored for {shown_duration(since)}; {unread}"
        waiting = since if age is None else min(since, age)
        yield from _broken(_above(rules.export_age_seconds, waiting), place, text)
    if rules.consumer_status and consumer.status is not ConsumerStatus.OK:
        severity = PluginStatus.CRITICAL if consumer.status.is_error else PluginStatus.WARNING
        yield CheckFinding(severity, place, f"status {consumer.status}: {_MEANINGS[consumer.status]}; {unread}")


_MEANINGS = {
    ConsumerStatus.WARN: "the consumer reads more slowly than the topic grows",
    ConsumerStatus.STOP: "the consumer has stopped",
    ConsumerStatus.STALL: "the consumer starts again and again, and reads nothing",
    ConsumerStatus.REWIND: "the consumer's position went back",
}
