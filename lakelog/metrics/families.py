"""Turns figures into Prometheus's metrics. All functions are pure.

The first group has the names and labels of kafka_exporter. The second group has the names and labels of
kafka-lag-exporter. So boards and alerts for Kafka work with Lakelog. All other names begin with lakelog_. If a figure
is not known, its metric is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lakelog.metrics.change_kinds import ChangeKind
from lakelog.metrics.consumer_status import ConsumerStatus
from lakelog.metrics.figures import ConsumerFigures, PartitionFigures, RootFigures, TopicFigures, lag_seconds
from lakelog.optional import optional
from storage_engine.topic.ingest_reports import NO_REPORT

with optional("prometheus_client", "lakelog[metrics]", "The command `lakelog metrics`"):
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_Samples = Iterator[tuple[Sequence[object], float]]
"""Values of labels, and the value of the metric."""
_TOPIC = ("topic",)
_PARTITION = ("topic", "partition")
_CONSUMER = ("topic", "consumer", "kind")
_GROUP_PARTITION = ("consumergroup", "topic", "partition")
_LAG_PARTITION = ("cluster_name", "topic", "partition")
_LAG_GROUP = ("cluster_name", "group")
_LAG_GROUP_PARTITION = ("cluster_name", "group", "topic", "partition", "member_host", "consumer_id", "client_id")
_CLIENT = "lakelog"


def families(root: RootFigures) -> Iterator[Metric]:
    """All metrics of a root."""
    yield from _of_kafka_exporter(root)
    yield from _of_kafka_lag_exporter(root)
    yield from _of_root(root)
    yield from _of_topics(root)
    yield from _of_partitions(root)
    yield from _of_consumers(root)
    yield from _of_tables(root)


def _gauge(name: str, text: str, labels: Sequence[str], samples: _Samples) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), samples)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, samples: _Samples) -> Metric:
    for values, value in samples:
        family.add_metric([_label(each) for each in values], value)
    return family


def _label(value: object) -> str:
    """The value of a label. The name of a root may have bytes that are not UTF-8; the text has `?` for each."""
    return str(value).encode(errors="replace").decode()


def _of_kafka_exporter(root: RootFigures) -> Iterator[Metric]:
    yield _gauge(
        "kafka_topic_partitions", "The number of partitions of the topic.", _TOPIC,
        (((topic.name,), len(topic.partitions)) for topic in root.topics),
    )  # fmt: skip
    yield _gauge(
        "kafka_topic_partition_current_offset", "The offset of the next record (the high watermark).", _PARTITION,
        _partitions(root, lambda part: part.current_offset),
    )  # fmt: skip
    yield _gauge(
        "kafka_topic_partition_oldest_offset", "The log start offset.", _PARTITION,
        _partitions(root, lambda part: part.oldest_offset),
    )  # fmt: skip
    yield _gauge(
        "kafka_consumergroup_members", "1 if a program reads for the group now, else 0.", ("consumergroup",),
        (((group,), int(any(each.member for each in read.values()))) for group, read in _groups(root).items()),
    )  # fmt: skip
    yield _gauge(
        "kafka_consumergroup_current_offset", "The offset after the last record that the group has read.", _GROUP_PARTITION,
        (
            ((each.name, topic.name, part.partition), part.position)
            for topic, each in _consumers(root) for part in each.partitions if part.position is not None
        ),
    )  # fmt: skip
    yield _gauge(
        "kafka_consumergroup_current_offset_sum", "The sum of the group's offsets over all partitions of the topic.",
        ("consumergroup", "topic"),
        (
            ((each.name, topic.name), sum(part.position or 0 for part in each.partitions))
            for topic, each in _consumers(root)
        ),
    )  # fmt: skip
    yield _gauge(
        "kafka_consumergroup_lag", "The high watermark minus the group's offset.", _GROUP_PARTITION,
        (
            ((each.name, topic.name, part.partition), part.lag)
            for topic, each in _consumers(root) for part in each.partitions
        ),
    )  # fmt: skip
    yield _gauge(
        "kafka_consumergroup_lag_sum", "The sum of the group's lag over all partitions of the topic.",
        ("consumergroup", "topic"), (((each.name, topic.name), each.lag) for topic, each in _consumers(root)),
    )  # fmt: skip


def _of_kafka_lag_exporter(root: RootFigures) -> Iterator[Metric]:
    cluster = root.cluster
    yield _gauge(
        "kafka_partition_latest_offset", "The offset of the next record (the high watermark).", _LAG_PARTITION,
        (((cluster, *values), value) for values, value in _partitions(root, lambda part: part.current_offset)),
    )  # fmt: skip
    yield _gauge(
        "kafka_partition_earliest_offset", "The log start offset.", _LAG_PARTITION,
        (((cluster, *values), value) for values, value in _partitions(root, lambda part: part.oldest_offset)),
    )  # fmt: skip
    places = [
        ((cluster, each.name, topic.name, part.partition, each.host, each.member, _CLIENT if each.member else ""), part)
        for topic, each in _consumers(root)
        for part in each.partitions
    ]
    yield _gauge(
        "kafka_consumergroup_group_offset", "The offset after the last record that the group has read.",
        _LAG_GROUP_PARTITION, ((labels, part.position) for labels, part in places if part.position is not None),
    )  # fmt: skip
    yield _gauge(
        "kafka_consumergroup_group_lag", "The high watermark minus the group's offset.", _LAG_GROUP_PARTITION,
        ((labels, part.lag) for labels, part in places),
    )  # fmt: skip
    yield _gauge(
        "kafka_consumergroup_group_lag_seconds", "The age of the first record that the group has not read; 0 if all is read.",
        _LAG_GROUP_PARTITION,
        (
            (labels, seconds) for labels, part in places
            if (seconds := lag_seconds(root, part.unread, part.oldest_unread_ms)) is not None
        ),
    )  # fmt: skip
    groups = _groups(root)
    yield _gauge(
        "kafka_consumergroup_group_max_lag", "The largest lag of the group in a partition.", _LAG_GROUP,
        (
            ((cluster, group), max((part.lag for each in read.values() for part in each.partitions), default=0))
            for group, read in groups.items()
        ),
    )  # fmt: skip
    yield _gauge(
        "kafka_consumergroup_group_max_lag_seconds", "The largest lag of the group in a partition, in seconds.", _LAG_GROUP,
        (((cluster, group), seconds) for group, read in groups.items() if (seconds := _largest_age(root, read)) is not None),
    )  # fmt: skip
    yield _gauge(
        "kafka_consumergroup_group_sum_lag", "The sum of the group's lag over all topics.", _LAG_GROUP,
        (((cluster, group), sum(each.lag for each in read.values())) for group, read in groups.items()),
    )  # fmt: skip
    yield _gauge(
        "kafka_consumergroup_group_topic_sum_lag", "The sum of the group's lag over all partitions of the topic.",
        (*_LAG_GROUP, "topic"), (((cluster, each.name, topic.name), each.lag) for topic, each in _consumers(root)),
    )  # fmt: skip


def _of_root(root: RootFigures) -> Iterator[Metric]:
    yield _gauge("lakelog_root_readable", "1 if the root can be read, else 0.", (), iter([((), int(not root.problem))]))
    for name, text, value in (
        ("lakelog_root_free_bytes", "The free bytes of the root's file system.", root.free_bytes),
        ("lakelog_root_capacity_bytes", "The capacity of the root's file system.", root.capacity_bytes),
        (
            "lakelog_view_settled_timestamp_seconds", "When the offsets that log/ shows last changed.",
            None if root.view_settled_ms is None else root.view_settled_ms / 1000,
        ),
        (
            "lakelog_root_ingest_reports_readable", "1 if the reports of ingests can be listed, else 0.",
            None if root.problem else int(not root.reports_error),
        ),
    ):  # fmt: skip
        yield _gauge(name, text, (), iter([] if value is None else [((), value)]))


def _of_topics(root: RootFigures) -> Iterator[Metric]:
    readable = {topic.name: 1 for topic in root.topics} | dict.fromkeys(root.unreadable, 0)
    yield _gauge(
        "lakelog_topic_readable", "1 if the state of the topic can be read, 0 if it is damaged or lost.", _TOPIC,
        (((name,), value) for name, value in sorted(readable.items())),
    )  # fmt: skip
    yield _filled(
        CounterMetricFamily("lakelog_topic_commits", "The number of commits to the topic.", labels=_TOPIC),
        (((topic.name,), topic.version + 1) for topic in root.topics),
    )
    for name, text, figure in _TOPIC_GAUGES:
        yield _gauge(
            name, text, _TOPIC,
            (((topic.name,), value) for topic in root.topics if (value := figure(topic)) is not None),
        )  # fmt: skip
    yield _gauge(
        "lakelog_topic_last_change_timestamp_seconds", "When the topic last had a change of this kind.", ("topic", "change"),
        (((topic.name, kind), ms / 1000) for topic in root.topics for kind, ms in sorted(_last_changes(topic).items())),
    )  # fmt: skip


def _last_changes(topic: TopicFigures) -> dict[ChangeKind, int]:
    """The times of the last changes. If an ingest feeds the topic, the time of the last append is never missing: an alert
    that rests on it must not resolve because the append is older than all versions that were read."""
    least = {ChangeKind.APPEND: topic.changes.since_ms} if topic.has_ingest else {}
    return least | dict(topic.changes.last_ms)


_TOPIC_GAUGES: tuple[tuple[str, str, Callable[[TopicFigures], float | None]], ...] = (
    ("lakelog_topic_version", "The newest version of the topic's state.", lambda topic: topic.version),
    (
        "lakelog_topic_versions_kept",
        "The number of versions of the state in storage.",
        lambda topic: topic.versions_kept,
    ),
    (
        "lakelog_topic_written_timestamp_seconds",
        "When the newest version of the state was written.",
        lambda topic: topic.written_ms / 1000,
    ),
    ("lakelog_topic_has_ingest", "1 if an ingest feeds the topic, else 0.", lambda topic: int(topic.has_ingest)),
    ("lakelog_topic_writer_epoch", "The writer's epoch. Each take-over adds one.", lambda topic: topic.epoch),
    (
        "lakelog_topic_ingest_report_readable",
        "1 if the report of the topic's ingest can be read, 0 if not.",
        lambda topic: None if topic.ingest == NO_REPORT else int(topic.ingest.error is None),
    ),
    (
        "lakelog_topic_ingest_lag_records",
        "Records of the source that the ingest had not read at its last report.",
        lambda topic: None if topic.ingest.report is None else topic.ingest.report.lag_records,
    ),
    (
        "lakelog_topic_ingest_running",
        "1 if the ingest ran at its last report, 0 if it had ended.",
        lambda topic: None if topic.ingest.report is None else int(topic.ingest.report.is_running),
    ),
    (
        "lakelog_topic_ingest_reported_timestamp_seconds",
        "When the ingest wrote its last report.",
        lambda topic: None if topic.ingest.report is None else topic.ingest.report.updated_ms / 1000,
    ),
    (
        "lakelog_topic_waiting_segments",
        "Dropped segments whose files are not deleted yet.",
        lambda topic: topic.waiting_segments,
    ),
    (
        "lakelog_topic_due_segments",
        "Segments that the next maintenance would drop, and dropped segments whose files it would delete.",
        lambda topic: topic.due_segments,
    ),
    (
        "lakelog_topic_due_timestamp_seconds",
        "When the first of these segments became due.",
        lambda topic: None if topic.due_since_ms is None else topic.due_since_ms / 1000,
    ),
    (
        "lakelog_topic_cleaned_timestamp_seconds",
        "When maintenance last changed the topic. If that is not known: when the oldest version that was read was written.",
        lambda topic: (topic.changes.last_cleaned_ms() or topic.changes.since_ms) / 1000,
    ),
    (
        "lakelog_topic_view_behind_offsets",
        "The number of offsets that log/ does not show yet.",
        lambda topic: topic.view_behind,
    ),
    (
        "lakelog_topic_clock_skew_seconds",
        "How far the writer's clock was ahead of the storage's clock at the newest version.",
        lambda topic: None if topic.clock_skew_ms is None else topic.clock_skew_ms / 1000,
    ),
    (
        "lakelog_topic_damaged_consumers",
        "The number of consumers whose files cannot be read.",
        lambda topic: len(topic.damaged_consumers),
    ),
)


def _of_partitions(root: RootFigures) -> Iterator[Metric]:
    for name, text, figure in _PARTITION_GAUGES:
        yield _gauge(name, text, _PARTITION, _partitions(root, figure))


_PARTITION_GAUGES: tuple[tuple[str, str, Callable[[PartitionFigures], float | None]], ...] = (
    ("lakelog_partition_segments", "The number of segments.", lambda part: part.segments),
    ("lakelog_partition_bytes", "The size of all segments.", lambda part: part.bytes),
    (
        "lakelog_partition_clean_bytes",
        "The size of the compacted segments of a compacted topic.",
        lambda part: None if part.dirty_bytes is None else part.bytes - part.dirty_bytes,
    ),
    (
        "lakelog_partition_dirty_bytes",
        "The size of the segments of a compacted topic that were not compacted yet.",
        lambda part: part.dirty_bytes,
    ),
)


def _of_consumers(root: RootFigures) -> Iterator[Metric]:
    def labelled(figure: Callable[[ConsumerFigures], float | None]) -> _Samples:
        for topic, each in _consumers(root):
            if (value := figure(each)) is not None:
                yield (topic.name, each.name, each.kind), value

    yield _gauge(
        "lakelog_consumer_lag_records", "The number of offsets that the consumer can still read.", _CONSUMER,
        labelled(lambda each: each.unread),
    )  # fmt: skip
    yield _gauge(
        "lakelog_consumer_lag_seconds", "The age of the first record that the consumer has not read; 0 if all is read.",
        _CONSUMER, labelled(lambda each: lag_seconds(root, each.unread, each.oldest_unread_ms)),
    )  # fmt: skip
    yield _gauge(
        "lakelog_consumer_updated_timestamp_seconds", "When the consumer last stored another position.", _CONSUMER,
        labelled(lambda each: each.updated_ms / 1000),
    )  # fmt: skip
    yield _gauge(
        "lakelog_consumer_status", "1 for the consumer's status by Burrow's rules, 0 for every other status.",
        (*_CONSUMER, "status"),
        (
            ((topic.name, each.name, each.kind, status), int(each.status is status))
            for topic, each in _consumers(root) for status in ConsumerStatus
        ),
    )  # fmt: skip


def _of_tables(root: RootFigures) -> Iterator[Metric]:
    """Only if the tables were counted."""
    letters = {topic.name: topic.dead_letters for topic in root.topics if topic.dead_letters is not None}
    if letters:
        counts: dict[tuple[object, ...], int] = {}
        for name, found in letters.items():
            for each in found:
                labels = (name, each.kind, each.reason, each.outcome)
                counts[labels] = counts.get(labels, 0) + each.count
        yield _gauge(
            "lakelog_dead_letters",
            "The number of dead letters.",
            ("topic", "origin", "reason", "outcome"),
            iter(counts.items()),
        )
    if any(topic.stale_rows is not None for topic in root.topics):
        yield _gauge(
            "lakelog_stale_rows", "Rows of an exported table whose newest record cannot be decoded.", ("topic", "table"),
            (((topic.name, each.table), each.count) for topic in root.topics for each in topic.stale_rows or ()),
        )  # fmt: skip


def _partitions(root: RootFigures, figure: Callable[[PartitionFigures], float | None]) -> _Samples:
    for topic in root.topics:
        for part in topic.partitions:
            if (value := figure(part)) is not None:
                yield (topic.name, part.number), value


def _consumers(root: RootFigures) -> Iterator[tuple[TopicFigures, ConsumerFigures]]:
    yield from ((topic, each) for topic in root.topics for each in topic.consumers)


def _groups(root: RootFigures) -> dict[str, dict[str, ConsumerFigures]]:
    """The consumers by name and by topic."""
    found: dict[str, dict[str, ConsumerFigures]] = {}
    for topic, each in _consumers(root):
        found.setdefault(each.name, {})[topic.name] = each
    return found


def _largest_age(root: RootFigures, read: dict[str, ConsumerFigures]) -> float | None:
    ages = (lag_seconds(root, each.unread, each.oldest_unread_ms) for each in read.values())
    return max((age for age in ages if age is not None), default=None)
