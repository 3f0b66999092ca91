"""Declares the keys that a plain Kafka log directory has, but a Lakelog root does not have.

In a plain directory a LogManager syncs files, writes checkpoints and deletes segments on a schedule, as a broker does.
Under a root, every commit is synced, and jobs do the other work. Lakelog refuses these keys under a root, because they
would have no effect. Names, defaults and precedence are Kafka's. All values are immutable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from storage_engine.config import LONG_MAX, BrokerConfig, ConfigKey, TopicConfig, Value, topic_config
from storage_engine.config.config_key import declared_field, declared_keys

_AT_NEXT_APPEND = "Takes effect at the next append."
_AT_NEXT_TURN = "Takes effect at the next scheduled time."


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(TopicConfig):
    """The configuration of one topic in a plain log directory: all keys of Kafka's LogConfig."""

    flush_messages: int = declared_field(
        "flush.messages", "topic", "long", LONG_MAX, minimum=1,
        doc="A partition's files are synced after this number of records. With the default, the operating system"
        " decides when the active segment is written to disk. A closed segment is always synced.",
        cost=_AT_NEXT_APPEND + " Small numbers make appends slow.",
    )  # fmt: skip
    flush_ms: int = declared_field(
        "flush.ms", "topic", "long", LONG_MAX, unit="ms", minimum=0,
        doc="A partition's files are synced when this time has passed after their last sync."
        " log.flush.scheduler.interval.ms sets how often the log manager checks this.",
        cost=_AT_NEXT_TURN,
    )  # fmt: skip
    preallocate: bool = declared_field(
        "preallocate", "topic", "boolean", False,
        doc="Whether a new .log file is created with the size of a full segment. The file is truncated to its contents"
        " when it is closed.",
        cost="Takes effect at the next segment roll.",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManagerConfig:
    """The configuration of all log directories of a LogManager.

    broker: the other keys of the broker, which a root has, too. These keys include the defaults of topics.
    """

    flush_interval_messages: int = declared_field(
        "log.flush.interval.messages", "broker", "long", LONG_MAX, minimum=1, sets="flush.messages",
        doc="Default of flush.messages for all topics.", cost="The cost of flush.messages.",
    )  # fmt: skip
    flush_interval_ms: int | None = declared_field(
        "log.flush.interval.ms", "broker", "long", None, unit="ms", minimum=0, sets="flush.ms",
        doc="Default of flush.ms for all topics. If this key is not set, log.flush.scheduler.interval.ms is the"
        " default.",
        cost="The cost of flush.ms.",
    )  # fmt: skip
    flush_scheduler_interval_ms: int = declared_field(
        "log.flush.scheduler.interval.ms", "broker", "long", LONG_MAX, unit="ms", minimum=1,
        doc="How often the log manager looks for partitions that must be synced because of flush.ms.", cost=_AT_NEXT_TURN,
    )  # fmt: skip
    flush_offset_checkpoint_interval_ms: int = declared_field(
        "log.flush.offset.checkpoint.interval.ms", "broker", "int", 60_000, unit="ms", minimum=0,
        doc="How often the recovery points are written. After a crash, each log is read and checked, beginning at its"
        " recovery point.",
        cost=_AT_NEXT_TURN,
    )  # fmt: skip
    flush_start_offset_checkpoint_interval_ms: int = declared_field(
        "log.flush.start.offset.checkpoint.interval.ms", "broker", "int", 60_000, unit="ms", minimum=0,
        doc="How often the log start offsets are written. If records are deleted after such a write, and the"
        " process crashes before the next write, these records become visible again.",
        cost=_AT_NEXT_TURN,
    )  # fmt: skip
    high_watermark_checkpoint_interval_ms: int = declared_field(
        "replica.high.watermark.checkpoint.interval.ms", "broker", "long", 5_000, unit="ms", minimum=1,
        doc="How often the high watermarks are written.", cost=_AT_NEXT_TURN,
    )  # fmt: skip
    retention_check_interval_ms: int = declared_field(
        "log.retention.check.interval.ms", "broker", "long", 300_000, unit="ms", minimum=1,
        doc="How often retention is applied.", cost=_AT_NEXT_TURN,
    )  # fmt: skip
    initial_task_delay_ms: int = declared_field(
        "log.initial.task.delay.ms", "broker", "long", 30_000, unit="ms", minimum=0,
        doc="How long `lakelog log-manager` waits after its start before the first scheduled task. Cleaning does not wait.",
        cost="Takes effect at the next start.",
    )  # fmt: skip
    cleaner_enable: bool = declared_field(
        "log.cleaner.enable", "broker", "boolean", True,
        doc="Whether `lakelog log-manager` compacts topics.", cost="Takes effect at the next start.",
    )  # fmt: skip
    cleaner_threads: int = declared_field(
        "log.cleaner.threads", "broker", "int", 1, minimum=0,
        doc="Number of threads that `lakelog log-manager` uses for compaction. Each thread compacts one partition at a"
        " time. All threads share log.cleaner.dedupe.buffer.size and log.cleaner.io.max.bytes.per.second.",
        cost="Takes effect at the next start.",
    )  # fmt: skip
    cleaner_backoff_ms: int = declared_field(
        "log.cleaner.backoff.ms", "broker", "long", 15_000, unit="ms", minimum=0,
        doc="How long a thread waits if no partition must be compacted.", cost="Takes effect at the next start.",
    )  # fmt: skip
    preallocate: bool = declared_field(
        "log.preallocate", "broker", "boolean", False, sets="preallocate",
        doc="Default of preallocate for all topics.", cost="The cost of preallocate.",
    )  # fmt: skip
    recovery_threads: int = declared_field(
        "num.recovery.threads.per.data.dir", "broker", "int", 2, minimum=1,
        doc="Number of threads for each log directory. These threads load the directory's partitions at the start, and"
        " close the partitions at the end.",
        cost="Takes effect at the next start.",
    )  # fmt: skip
    producer_expiration_ms: int = declared_field(
        "producer.id.expiration.ms", "broker", "int", 86_400_000, unit="ms", minimum=1,
        doc="The state of a producer is deleted when the last batch of the producer is this old, by the batch's"
        " timestamps. A producer with an open transaction is kept.",
        cost="Takes effect at the next check. Checks run every ten minutes.",
    )  # fmt: skip
    broker: BrokerConfig = field(default_factory=BrokerConfig)

    @classmethod
    def from_mapping(cls, values: Mapping[str, object], place: str = "broker configuration") -> LogManagerConfig:
        """Read Kafka's broker keys.

        Raises:
            ConfigError: an unknown key, a wrong type, or a value that is not allowed.
        """
        own = _parsed({key: value for key, value in values.items() if key in DIRECTORY_BROKER_KEYS}, place)
        others = {key: value for key, value in values.items() if key not in DIRECTORY_BROKER_KEYS}
        return dataclasses.replace(cls(broker=BrokerConfig.from_mapping(others, place)), **own)  # type: ignore[arg-type]

    def topic(self, overrides: Mapping[str, object], place: str = "topic configuration") -> LogConfig:
        """Return the configuration of a topic: its overrides, then these defaults, then Kafka's defaults.

        Raises:
            ConfigError: as in from_mapping.
        """
        own = _parsed({key: value for key, value in overrides.items() if key in DIRECTORY_TOPIC_KEYS}, place)
        others = {key: value for key, value in overrides.items() if key not in DIRECTORY_TOPIC_KEYS}
        shared = topic_config(self.broker, others, place)
        interval = self.flush_interval_ms
        defaults: dict[str, Value] = {
            "flush_messages": self.flush_interval_messages,
            "flush_ms": self.flush_scheduler_interval_ms if interval is None else interval,
            "preallocate": self.preallocate,
        }
        values = {each.name: getattr(shared, each.name) for each in dataclasses.fields(shared)}
        return LogConfig(**values | defaults | own)


DIRECTORY_TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = declared_keys(LogConfig, beyond=TopicConfig)
"""A topic's keys that have an effect only in a plain log directory, by Kafka's name."""

DIRECTORY_BROKER_KEYS: Final[Mapping[str, ConfigKey]] = declared_keys(LogManagerConfig)
"""The broker's keys that have an effect only in a plain log directory, by Kafka's name."""


def _parsed(values: Mapping[str, object], place: str) -> dict[str, Value]:
    declared = {**DIRECTORY_TOPIC_KEYS, **DIRECTORY_BROKER_KEYS}
    return {declared[key].name: declared[key].parse(value, f"{place}, {key}") for key, value in values.items()}
