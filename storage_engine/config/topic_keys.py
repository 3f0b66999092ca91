"""Declares the keys of a topic's configuration (Kafka's LogConfig), each with the broker's keys that set its default.

Defaults and bounds are those of Kafka 4.3, with one exception: segments may be as small as 1 KiB. Kafka's minimum is 1
MiB, and only internal.segment.bytes allows less. The text of a key says if Kafka does not have the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from storage_engine.config.config_key import (
    LONG_MAX,
    BrokerSynonym,
    ConfigKey,
    Kind,
    Value,
    declared_field,
    declared_keys,
)
from storage_engine.errors import ConfigError

CompressionType = Literal["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"]
TimestampType = Literal["CreateTime", "LogAppendTime"]

_AT_NEXT_BATCH = "Takes effect with the next micro-batch or append; existing batches do not change."
_AT_NEXT_ROLL = "Takes effect at the next segment roll; existing segments keep their shape."
AT_NEXT_CLEANING = "Takes effect at the next compaction. Removed records do not come back."


def _key(key: str, kind: Kind, default: Value, *, broker: tuple[BrokerSynonym, ...], **facts: Any) -> Any:
    return declared_field(key, "topic", kind, default, synonyms=broker, **facts)


def _from(*keys: str) -> tuple[BrokerSynonym, ...]:
    return tuple(BrokerSynonym(key=key) for key in keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What holds for one topic (Kafka's LogConfig).

    The constructor takes values as they are; what people or files say goes through `topic_config`, which checks it.
    """

    segment_bytes: int = _key(
        "segment.bytes", "int", 1024**3, unit="bytes", minimum=1024, broker=_from("log.segment.bytes"),
        doc="Largest size of a segment's .log file. Retention and compaction act on whole closed segments.",
        cost=_AT_NEXT_ROLL + " Smaller segments free space and are compacted sooner, but mean more files and a longer state.",
    )  # fmt: skip
    segment_ms: int = _key(
        "segment.ms", "long", 7 * 24 * 3_600_000, unit="ms", minimum=1,
        broker=(BrokerSynonym(key="log.roll.ms"), BrokerSynonym(key="log.roll.hours", unit="hours", kind="int", minimum=1)),
        doc="Longest span of event time from a segment's first batch to its last, after which the next batch begins a new"
        " segment. Without new batches nothing rolls.",
        cost=_AT_NEXT_ROLL,
    )  # fmt: skip
    segment_jitter_ms: int = _key(
        "segment.jitter.ms", "long", 0, unit="ms", minimum=0,
        broker=(
            BrokerSynonym(key="log.roll.jitter.ms"),
            BrokerSynonym(key="log.roll.jitter.hours", unit="hours", kind="int", minimum=0),
        ),
        doc="A random time up to this value is subtracted from segment.ms, so that partitions do not all roll at once.",
        cost=_AT_NEXT_ROLL,
    )  # fmt: skip
    segment_index_bytes: int = _key(
        "segment.index.bytes", "int", 10 * 1024**2, unit="bytes", minimum=4, broker=_from("log.index.size.max.bytes"),
        doc="Largest size of a segment's offset index and of its time index. A full index rolls the segment.",
        cost=_AT_NEXT_ROLL,
    )  # fmt: skip
    index_interval_bytes: int = _key(
        "index.interval.bytes", "int", 4096, unit="bytes", minimum=0, broker=_from("log.index.interval.bytes"),
        doc="Bytes of log between two index entries. A look-up scans the batch headers of about this many bytes at most.",
        cost=_AT_NEXT_BATCH + " Smaller values make larger indexes.",
    )  # fmt: skip
    retention_ms: int = _key(
        "retention.ms", "long", 7 * 24 * 3_600_000, unit="ms", minimum=0, also=(-1,),
        broker=(
            BrokerSynonym(key="log.retention.ms", minimum=1, negative_is_unlimited=True),
            BrokerSynonym(key="log.retention.minutes", unit="minutes", kind="int", minimum=1, negative_is_unlimited=True),
            BrokerSynonym(key="log.retention.hours", unit="hours", kind="int", minimum=1, negative_is_unlimited=True),
        ),
        doc="Age, by a segment's largest timestamp, beyond which retention drops the segment where cleanup.policy has"
        " delete. -1 keeps it for ever.",
        cost="Takes effect at the next retention run. A lower value deletes data for good.",
    )  # fmt: skip
    retention_bytes: int = _key(
        "retention.bytes", "long", -1, unit="bytes", minimum=0, negative_is_unlimited=True, broker=_from("log.retention.bytes"),
        doc="Size to which retention cuts a partition, oldest segments first, where cleanup.policy has delete."
        " -1 sets no limit.",
        cost="Takes effect at the next retention run. A lower value deletes data for good.",
    )  # fmt: skip
    cleanup_policy: frozenset[str] = _key(
        "cleanup.policy", "list", frozenset({"delete"}), choices=("compact", "delete"), broker=_from("log.cleanup.policy"),
        doc="delete drops old segments by age and size; compact keeps the latest record of each key; compact,delete does"
        " both; an empty value does neither. It also decides how exports work: compacted topics are upserted.",
        cost="With compact, records without a key are refused. Those that are there stay until the next compaction,"
        " which drops them.",
    )  # fmt: skip
    max_message_bytes: int = _key(
        "max.message.bytes", "int", 1024**2 + 12, unit="bytes", minimum=0, broker=_from("message.max.bytes"),
        doc="Largest size of a record batch, after compression. A record that does not fit even alone is refused by append"
        " and becomes a dead letter in ingest.",
        cost=_AT_NEXT_BATCH + " Kafka consumers of an exported directory need a fetch size to match.",
    )  # fmt: skip
    compression_type: CompressionType = _key(  # noqa: RUF009 (a Literal is immutable)
        "compression.type", "choice", "producer", broker=_from("compression.type"),
        choices=("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"),
        doc="Codec of the batches that are written. producer leaves the choice to the writer (ingest.compression.type).",
        cost=_AT_NEXT_BATCH + " Compaction keeps their codec, too.",
    )  # fmt: skip
    compression_gzip_level: int = _key(
        "compression.gzip.level", "int", -1, minimum=1, maximum=9, also=(-1,), broker=_from("compression.gzip.level"),
        doc="Level of gzip where compression.type is gzip; -1 is zlib's own default.",
        cost=_AT_NEXT_BATCH,
    )  # fmt: skip
    compression_lz4_level: int = _key(
        "compression.lz4.level", "int", 9, minimum=1, maximum=17, broker=_from("compression.lz4.level"),
        doc="Level of LZ4 where compression.type is lz4.",
        cost=_AT_NEXT_BATCH,
    )  # fmt: skip
    compression_zstd_level: int = _key(
        "compression.zstd.level", "int", 3, minimum=-131_072, maximum=22, broker=_from("compression.zstd.level"),
        doc="Level of Zstandard where compression.type is zstd; negative levels are faster and pack less.",
        cost=_AT_NEXT_BATCH,
    )  # fmt: skip
    message_timestamp_type: TimestampType = _key(  # noqa: RUF009 (a Literal is immutable)
        "message.timestamp.type", "choice", "CreateTime", choices=("CreateTime", "LogAppendTime"),
        broker=_from("log.message.timestamp.type"),
        doc="Whose clock stamps a record: the event's (CreateTime) or that of the append (LogAppendTime).",
        cost=_AT_NEXT_BATCH + " Under LogAppendTime the event's own time is lost.",
    )  # fmt: skip
    message_timestamp_before_max_ms: int = _key(
        "message.timestamp.before.max.ms", "long", LONG_MAX, unit="ms", minimum=0,
        broker=_from("log.message.timestamp.before.max.ms"),
        doc="How far in the past a record's timestamp may be. Older records are refused. Not checked under LogAppendTime.",
        cost=_AT_NEXT_BATCH,
    )  # fmt: skip
    message_timestamp_after_max_ms: int = _key(
        "message.timestamp.after.max.ms", "long", 3_600_000, unit="ms", minimum=0,
        broker=_from("log.message.timestamp.after.max.ms"),
        doc="How far in the future a record's timestamp may be. Later records are refused. Not checked under LogAppendTime.",
        cost=_AT_NEXT_BATCH + " A timestamp in the far future keeps retention from all segments after it.",
    )  # fmt: skip
    min_cleanable_dirty_ratio: float = _key(
        "min.cleanable.dirty.ratio", "double", 0.5, minimum=0, maximum=1, broker=_from("log.cleaner.min.cleanable.ratio"),
        doc="Share of a partition's bytes that must be uncompacted before compaction takes it up.",
        cost=AT_NEXT_CLEANING + " Lower values rewrite more often and waste less space.",
    )  # fmt: skip
    min_compaction_lag_ms: int = _key(
        "min.compaction.lag.ms", "long", 0, unit="ms", minimum=0, broker=_from("log.cleaner.min.compaction.lag.ms"),
        doc="How long compaction leaves a record alone, whatever comes after it.",
        cost=AT_NEXT_CLEANING,
    )  # fmt: skip
    max_compaction_lag_ms: int = _key(
        "max.compaction.lag.ms", "long", LONG_MAX, unit="ms", minimum=1, broker=_from("log.cleaner.max.compaction.lag.ms"),
        doc="How long a record may wait for compaction. After that min.cleanable.dirty.ratio does not count. Compacted topics"
        " also begin a new segment after that time.",
        cost=AT_NEXT_CLEANING,
    )  # fmt: skip
    delete_retention_ms: int = _key(
        "delete.retention.ms", "long", 24 * 3_600_000, unit="ms", minimum=0,
        broker=_from("log.cleaner.delete.retention.ms"),
        doc="How long a tombstone outlives the compaction that first kept it. A reader that needs longer for a whole pass"
        " can miss deletions.",
        cost="Takes effect for tombstones that compaction has not met yet. The others keep their delete horizon.",
    )  # fmt: skip
    file_delete_delay_ms: int = _key(
        "file.delete.delay.ms", "long", 60_000, unit="ms", minimum=0, broker=_from("log.segment.delete.delay.ms"),
        doc="How long a file stays after the topic's state has dropped it, for readers that are still reading it.",
        cost="Takes effect for files that are dropped from now on. A longer delay keeps more bytes on storage.",
    )  # fmt: skip

    cleaner_clean_expired_horizons: bool = _key(
        "cleaner.clean.expired.horizons", "boolean", False, broker=_from("log.cleaner.clean.expired.horizons"),
        doc="Whether a partition that is not due is compacted all the same once the delete horizon of a tombstone or a"
        " transaction marker has passed. Otherwise they wait for the next compaction. Kafka has no such key.",
        cost=AT_NEXT_CLEANING + " Partitions that nobody writes to any more are rewritten once more.",
    )  # fmt: skip
    retention_respect_consumers: bool = _key(
        "retention.respect.consumers", "boolean", False, broker=_from("log.retention.respect.consumers"),
        doc="Whether retention by age and size waits for registered consumers (exports) that have not read a segment. It waits"
        " for consumer.max.hold.ms at most. Kafka has no such key.",
        cost="Takes effect at the next retention run. A consumer that does not read keeps its bytes on storage for that time.",
    )  # fmt: skip
    consumer_max_hold_ms: int = _key(
        "consumer.max.hold.ms", "long", 7 * 24 * 3_600_000, unit="ms", minimum=0, broker=_from("log.consumer.max.hold.ms"),
        doc="How long a registered consumer keeps what it has not read: tombstones beyond their delete horizon and, under"
        " retention.respect.consumers, segments beyond their retention. Kafka has no such key.",
        cost="Takes effect at the next cleaning. With a lower value a slow consumer can miss deletions.",
    )  # fmt: skip

    @property
    def compact(self) -> bool:
        """Whether the latest record of each key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether segments go by age and size."""
        return "delete" in self.cleanup_policy


TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = declared_keys(TopicConfig)
"""All of a topic's keys by Kafka's name."""

ALIASES: Final[Mapping[str, str]] = {"internal.segment.bytes": "segment.bytes"}
"""Other names of a topic's keys. As in Kafka, internal.segment.bytes wins where both are given."""


def check_lags(config: TopicConfig, place: str) -> None:
    """Refuse lags between which nothing could be compacted, as Kafka's LogConfig.validateValues does.

    Raises:
        ConfigError: at `place`: the least lag is above the largest.
    """
    low, high = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    if low > high:
        problem = f"expected a value of at most max.compaction.lag.ms, which is {high}; found {low}"
        raise ConfigError(f"{place}, min.compaction.lag.ms", problem, "Lower the one or raise the other.")
