"""Declares Kafka's keys of plain log directories that a root does not have (storage_engine.config).

Under a root every commit is synced and due work runs in jobs, so these keys are refused there. A LogManager syncs,
writes checkpoints and deletes on a schedule, as a broker does. The keys are declared like the others, with Kafka's
names, defaults and precedence; immutable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from storage_engine.config import LONG_MAX, BrokerConfig, ConfigKey, TopicConfig, Value, topic_config
from storage_engine.config.config_key import declared_field, declared_keys

_AT_NEXT_APPEND = "Takes effect with the next append."
_AT_NEXT_TURN = "Takes effect the next time it is due."


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(TopicConfig):
    """What holds for one topic in a plain log directory: Kafka's LogConfig in full."""

    flush_messages: int = declared_field(
        "flush.messages", "topic", "long", LONG_MAX, minimum=1,
        doc="A partition's files are synced after this many records. The default leaves that to the operating system:"
        " a closed segment is always synced.",
        cost=_AT_NEXT_APPEND + " Small numbers make appends slow.",
    )  # fmt: skip
    flush_ms: int = declared_field(
        "flush.ms", "topic", "long", LONG_MAX, unit="ms", minimum=0,
        doc="A partition's files are synced after this time, if log.flush.scheduler.interval.ms checks often enough.",
        cost=_AT_NEXT_TURN,
    )  # fmt: skip
    preallocate: str = declared_field(
        "preallocate", "topic", "choice", "false", choices=("false", "true"),
        doc="Whether a new segment's .log gets its full size at once. It is cut to its contents when it is closed.",
        cost="Takes effect at the next segment roll.",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManagerConfig:
    """What holds for all log directories of a LogManager.

    broker: the keys that a root has too, and with them the defaults of topics.
    """

    flush_interval_messages: int = declared_field(
        "log.flush.interval.messages", "broker", "long", LONG_MAX, minimum=1, sets="flush.messages",
        doc="Default of flush.messages for all topics.", cost="As for flush.messages.",
    )  # fmt: skip
    flush_interval_ms: int | None = declared_field(
        "log.flush.interval.ms", "broker", "long", None, unit="ms", minimum=0, sets="flush.ms",
        doc="Default of flush.ms for all topics; log.flush.scheduler.interval.ms where it is not given.",
        cost="As for flush.ms.",
    )  # fmt: skip
    flush_scheduler_interval_ms: int = declared_field(
        "log.flush.scheduler.interval.ms", "broker", "long", LONG_MAX, unit="ms", minimum=1,
        doc="How often the manager checks which partitions flush.ms wants synced.", cost=_AT_NEXT_TURN,
    )  # fmt: skip
    flush_offset_checkpoint_interval_ms: int = declared_field(
        "log.flush.offset.checkpoint.interval.ms", "broker", "int", 60_000, unit="ms", minimum=0,
        doc="How often the recovery points are written. After a crash, the log after them is read.",
        cost=_AT_NEXT_TURN,
    )  # fmt: skip
    flush_start_offset_checkpoint_interval_ms: int = declared_field(
        "log.flush.start.offset.checkpoint.interval.ms", "broker", "int", 60_000, unit="ms", minimum=0,
        doc="How often the log start offsets are written: after a crash, records deleted since are back.",
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
    preallocate: str = declared_field(
        "log.preallocate", "broker", "choice", "false", choices=("false", "true"), sets="preallocate",
        doc="Default of preallocate for all topics.", cost="As for preallocate.",
    )  # fmt: skip
    recovery_threads: int = declared_field(
        "num.recovery.threads.per.data.dir", "broker", "int", 2, minimum=1,
        doc="Threads for each log directory that load its partitions at the start and close them at the end.",
        cost="Takes effect at the next start.",
    )  # fmt: skip
    producer_expiration_ms: int = declared_field(
        "producer.id.expiration.ms", "broker", "int", 86_400_000, unit="ms", minimum=1,
        doc="A producer without an open transaction is forgotten when its last batch has this age, by its own timestamps.",
        cost="Takes effect at the next check, every ten minutes.",
    )  # fmt: skip
    broker: BrokerConfig = field(default_factory=BrokerConfig)

    @classmethod
    def from_mapping(cls, values: Mapping[str, object], place: str = "broker configuration") -> LogManagerConfig:
        """Read Kafka's broker keys.

        Raises:
            ConfigError: an unknown key, a wrong type, a value outside its bound.
        """
        own = _parsed({key: value for key, value in values.items() if key in DIRECTORY_BROKER_KEYS}, place)
        others = {key: value for key, value in values.items() if key not in DIRECTORY_BROKER_KEYS}
        return dataclasses.replace(cls(broker=BrokerConfig.from_mapping(others, place)), **own)  # type: ignore[arg-type]

    def topic(self, overrides: Mapping[str, object], place: str = "topic configuration") -> LogConfig:
        """What holds for a topic: its overrides over these defaults over Kafka's.

        Raises:
            ConfigError: as from_mapping.
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
"""A topic's keys that count in a plain log directory only, by Kafka's name."""

DIRECTORY_BROKER_KEYS: Final[Mapping[str, ConfigKey]] = declared_keys(LogManagerConfig)
"""The broker's."""


def _parsed(values: Mapping[str, object], place: str) -> dict[str, Value]:
    declared = {**DIRECTORY_TOPIC_KEYS, **DIRECTORY_BROKER_KEYS}
    return {declared[key].name: declared[key].parse(value, f"{place}, {key}") for key, value in values.items()}
