"""Declares the keys of a topic's configuration (Kafka's LogConfig), each with the broker's keys that set its default.

Defaults and bounds are those of Kafka 4.3, with one exception: segments may be as small as 1 KiB. Kafka's minimum is 1
MiB, and only internal.segment.bytes allows less. For each key that Kafka does not have, the description says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from storage_engine.config.config_key import (
    LONG_MAX,
    BrokerSynonym,
    ConfigKey,
    Value,
    ValueKind,
    declared_field,
    declared_keys,
)
from storage_engine.errors import ConfigError

CompressionType = Literal["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"]
TimestampType = Literal["CreateTime", "LogAppendTime"]

_AT_NEXT_BATCH = "Takes effect at the next micro-batch or append. Existing batches do not change."
_AT_NEXT_ROLL = "Takes effect at the next segment roll. Existing segments do not change."
AT_NEXT_CLEANING = "Takes effect at the next compaction. Removed records are not restored."


def _key(key: str, kind: ValueKind, default: Value, *, broker: tuple[BrokerSynonym, ...], **facts: Any) -> Any:
    return declared_field(key, "topic", kind, default, synonyms=broker, **facts)


def _from(*keys: str) -> tuple[BrokerSynonym, ...]:
    return tuple(BrokerSynonym(key=key) for key in keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The configuration of one topic (Kafka's LogConfig).

    The constructor does not check values. `topic_config` parses and checks values from users and files.
    """

    segment_bytes: int = _key(
        "segment.bytes", "int", 1024**3, unit="bytes", minimum=1024, broker=_from("log.segment.bytes"),
        doc="Largest size of a segment's .log file. Retention and compaction act on whole closed segments.",
        cost=_AT_NEXT_ROLL + " Smaller segments are deleted and compacted sooner. The disadvantages are more"
        " files and a larger state of the topic.",
    )  # fmt: skip
    segment_ms: int = _key(
        "segment.ms", "long", 7 * 24 * 3_600_000, unit="ms", minimum=1,
        broker=(BrokerSynonym(key="log.roll.ms"), BrokerSynonym(key="log.roll.hours", unit="hours", kind="int", minimum=1)),
        doc="Longest span of record timestamps in one segment. A batch beyond this span begins a new segment. Without"
        " a new batch, no new segment begins.",
        cost=_AT_NEXT_ROLL,
    )  # fmt: skip
    segment_jitter_ms: int = _key(
        "segment.jitter.ms", "long", 0, unit="ms", minimum=0,
        broker=(
            BrokerSynonym(key="log.roll.jitter.ms"),
            BrokerSynonym(key="log.roll.jitter.hours", unit="hours", kind="int", minimum=0),
        ),
        doc="A random time up to this value is subtracted from segment.ms, so that not all partitions roll at the same time.",
        cost=_AT_NEXT_ROLL,
    )  # fmt: skip
    segment_index_bytes: int = _key(
        "segment.index.bytes", "int", 10 * 1024**2, unit="bytes", minimum=4, broker=_from("log.index.size.max.bytes"),
        doc="Largest size of a segment's offset index and of its time index. When an index is full, the segment is"
        " closed and a new segment begins.",
        cost=_AT_NEXT_ROLL,
    )  # fmt: skip
    index_interval_bytes: int = _key(
        "index.interval.bytes", "int", 4096, unit="bytes", minimum=0, broker=_from("log.index.interval.bytes"),
        doc="Bytes of the .log between two index entries. A lookup starts at an index entry, and reads the batch"
        " headers in about this number of bytes after the entry.",
        cost=_AT_NEXT_BATCH + " Smaller values make larger indexes.",
    )  # fmt: skip
    retention_ms: int = _key(
        "retention.ms", "long", 7 * 24 * 3_600_000, unit="ms", minimum=0, also=(-1,),
        broker=(
            BrokerSynonym(key="log.retention.ms", minimum=1, negative_is_unlimited=True),
            BrokerSynonym(key="log.retention.minutes", unit="minutes", kind="int", minimum=1, negative_is_unlimited=True),
            BrokerSynonym(key="log.retention.hours", unit="hours", kind="int", minimum=1, negative_is_unlimited=True),
        ),
        doc="If cleanup.policy contains delete, retention deletes a segment when the segment's largest timestamp is this"
        " old. -1: segments are never deleted by age.",
        cost="Takes effect at the next retention run. With a lower value, retention permanently deletes more data.",
    )  # fmt: skip
    retention_bytes: int = _key(
        "retention.bytes", "long", -1, unit="bytes", minimum=0, negative_is_unlimited=True, broker=_from("log.retention.bytes"),
        doc="If cleanup.policy contains delete, retention deletes the oldest segments of a partition that is larger than"
        " this size. -1: no limit.",
        cost="Takes effect at the next retention run. With a lower value, retention permanently deletes more data.",
    )  # fmt: skip
    cleanup_policy: frozenset[str] = _key(
        "cleanup.policy", "list", frozenset({"delete"}), choices=("compact", "delete"), broker=_from("log.cleanup.policy"),
        doc="delete: old segments are deleted by age and size. compact: only the latest record of each key is kept."
        " compact,delete: both. An empty value: neither. An export upserts the rows of compacted topics, and appends"
        " the rows of all other topics.",
        cost="With compact, new records without a key are refused. The next compaction deletes existing records without a"
        " key.",
    )  # fmt: skip
    max_message_bytes: int = _key(
        "max.message.bytes", "int", 1024**2 + 12, unit="bytes", minimum=0, broker=_from("message.max.bytes"),
        doc="Largest size of a record batch, after compression. If a single record is larger, `lakelog append` refuses"
        " the record, and ingest makes it a dead letter.",
        cost=_AT_NEXT_BATCH + " Kafka consumers of an exported directory need a fetch size of at least this value.",
    )  # fmt: skip
    compression_type: CompressionType = _key(  # noqa: RUF009 (a Literal is immutable)
        "compression.type", "choice", "producer", broker=_from("compression.type"),
        choices=("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"),
        doc="Codec of new batches. With producer, the writer chooses the codec (ingest.compression.type).",
        cost=_AT_NEXT_BATCH + " Compaction does not change the codec of existing batches.",
    )  # fmt: skip
    compression_gzip_level: int = _key(
        "compression.gzip.level", "int", -1, minimum=1, maximum=9, also=(-1,), broker=_from("compression.gzip.level"),
        doc="Compression level of gzip. -1 is the default of zlib.",
        cost=_AT_NEXT_BATCH,
    )  # fmt: skip
    compression_lz4_level: int = _key(
        "compression.lz4.level", "int", 9, minimum=1, maximum=17, broker=_from("compression.lz4.level"),
        doc="Compression level of LZ4.",
        cost=_AT_NEXT_BATCH,
    )  # fmt: skip
    compression_zstd_level: int = _key(
        "compression.zstd.level", "int", 3, minimum=-131_072, maximum=22, broker=_from("compression.zstd.level"),
        doc="Compression level of Zstandard. Negative levels are faster and compress less.",
        cost=_AT_NEXT_BATCH,
    )  # fmt: skip
    message_timestamp_type: TimestampType = _key(  # noqa: RUF009 (a Literal is immutable)
        "message.timestamp.type", "choice", "CreateTime", choices=("CreateTime", "LogAppendTime"),
        broker=_from("log.message.timestamp.type"),
        doc="CreateTime: the timestamp of a record is set by the writer. LogAppendTime: the timestamp is the time of"
        " the append.",
        cost=_AT_NEXT_BATCH + " With LogAppendTime, the writer's timestamps are not stored.",
    )  # fmt: skip
    message_timestamp_before_max_ms: int = _key(
        "message.timestamp.before.max.ms", "long", LONG_MAX, unit="ms", minimum=0,
        broker=_from("log.message.timestamp.before.max.ms"),
        doc="How far in the past a record's timestamp may be. Older records are refused. This limit is not checked if"
        " message.timestamp.type is LogAppendTime.",
        cost=_AT_NEXT_BATCH,
    )  # fmt: skip
    message_timestamp_after_max_ms: int = _key(
        "message.timestamp.after.max.ms", "long", 3_600_000, unit="ms", minimum=0,
        broker=_from("log.message.timestamp.after.max.ms"),
        doc="How far in the future a record's timestamp may be. Later records are refused. This limit is not checked if"
        " message.timestamp.type is LogAppendTime.",
        cost=_AT_NEXT_BATCH + " Retention by age does not delete a segment with a timestamp in the far future, and"
        " keeps all later segments, too.",
    )  # fmt: skip
    min_cleanable_dirty_ratio: float = _key(
        "min.cleanable.dirty.ratio", "double", 0.5, minimum=0, maximum=1, broker=_from("log.cleaner.min.cleanable.ratio"),
        doc="A partition is compacted when more than this share of its bytes has not been compacted yet.",
        cost=AT_NEXT_CLEANING + " With a lower value, segments are rewritten more often, and outdated records use less"
        " space.",
    )  # fmt: skip
    min_compaction_lag_ms: int = _key(
        "min.compaction.lag.ms", "long", 0, unit="ms", minimum=0, broker=_from("log.cleaner.min.compaction.lag.ms"),
        doc="Minimum age at which compaction may delete a record.",
        cost=AT_NEXT_CLEANING,
    )  # fmt: skip
    max_compaction_lag_ms: int = _key(
        "max.compaction.lag.ms", "long", LONG_MAX, unit="ms", minimum=1, broker=_from("log.cleaner.max.compaction.lag.ms"),
        doc="Longest time that a record waits for compaction. After this time, the partition is compacted even if"
        " min.cleanable.dirty.ratio is not reached. Compacted topics also begin a new segment after this time.",
        cost=AT_NEXT_CLEANING,
    )  # fmt: skip
    delete_retention_ms: int = _key(
        "delete.retention.ms", "long", 24 * 3_600_000, unit="ms", minimum=0,
        broker=_from("log.cleaner.delete.retention.ms"),
        doc="How long a tombstone is kept after the first compaction that reads it. If a reader needs longer than this"
        " time to read a whole partition, the reader can miss deletions.",
        cost="Takes effect for tombstones that no compaction has read yet. The delete horizon of other tombstones does"
        " not change.",
    )  # fmt: skip
    file_delete_delay_ms: int = _key(
        "file.delete.delay.ms", "long", 60_000, unit="ms", minimum=0, broker=_from("log.segment.delete.delay.ms"),
        doc="How long a file is kept after the topic's state no longer names the file. Readers may still read the"
        " file during this time.",
        cost="Takes effect for files that are removed from the state after the change. With a longer delay, more bytes are"
        " stored.",
    )  # fmt: skip

    cleaner_clean_expired_horizons: bool = _key(
        "cleaner.clean.expired.horizons", "boolean", False, broker=_from("log.cleaner.clean.expired.horizons"),
        doc="true: a partition is compacted as soon as one of its tombstones or transaction markers passes its delete"
        " horizon. false: the tombstone or marker is deleted when the partition is next compacted for another reason."
        " Kafka has no such key.",
        cost=AT_NEXT_CLEANING + " With true, a partition is compacted one more time even if it gets no new records.",
    )  # fmt: skip
    retention_respect_consumers: bool = _key(
        "retention.respect.consumers", "boolean", False, broker=_from("log.retention.respect.consumers"),
        doc="Whether retention by age and size waits until registered consumers (exports) have read a segment. Retention"
        " waits for at most consumer.max.hold.ms. Kafka has no such key.",
        cost="Takes effect at the next retention run. If a consumer does not read, its unread segments use space for up"
        " to consumer.max.hold.ms.",
    )  # fmt: skip
    consumer_max_hold_ms: int = _key(
        "consumer.max.hold.ms", "long", 7 * 24 * 3_600_000, unit="ms", minimum=0, broker=_from("log.consumer.max.hold.ms"),
        doc="How long cleaning keeps records that a registered consumer has not read. For up to this time, cleaning"
        " keeps unread tombstones beyond their delete horizon. With retention.respect.consumers, cleaning also keeps"
        " unread segments that retention would delete. Kafka has no such key.",
        cost="Takes effect at the next cleaning. With a lower value, a slow consumer can miss deletions.",
    )  # fmt: skip

    @property
    def compact(self) -> bool:
        """Whether the topic is compacted."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether retention deletes segments by age and size."""
        return "delete" in self.cleanup_policy


TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = declared_keys(TopicConfig)
"""All of a topic's keys, by Kafka's name."""

ALIASES: Final[Mapping[str, str]] = {"internal.segment.bytes": "segment.bytes"}
"""Other names of a topic's keys. If both names are set, internal.segment.bytes is used, as in Kafka."""


def check_lags(config: TopicConfig, place: str) -> None:
    """Check that the smallest compaction lag is not above the largest, as Kafka's LogConfig.validateValues does.

    Raises:
        ConfigError: at `place`: min.compaction.lag.ms is above max.compaction.lag.ms.
    """
    low, high = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    if low > high:
        problem = f"expected a value of at most max.compaction.lag.ms, which is {high}; found {low}"
        raise ConfigError(
            f"{place}, min.compaction.lag.ms", problem, "Lower min.compaction.lag.ms, or raise max.compaction.lag.ms."
        )
