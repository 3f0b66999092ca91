"""Kafka's configuration of plain log directories, where it goes beyond that of a root (storage_engine.config).

Under a root every commit is synced and what is due runs in jobs, so these keys are refused there. A LogManager syncs,
writes checkpoints and deletes on a schedule, as a broker does. Declared like the others, with Kafka's names, defaults
and precedence; immutable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from storage_engine.config import LONG_MAX, BrokerConfig, ConfigKey, TopicConfig, Value, topic_config

_AT_NEXT_APPEND = "Felt from the next append on."
_AT_NEXT_TURN = "Felt the next time it is due."


def _key(key: str, kind: Literal["int", "long", "choice"], default: Value | None, scope: Any, **facts: Any) -> Any:
    return field(
        default=default, metadata={"key": ConfigKey(key=key, scope=scope, kind=kind, default=default, **facts)}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(TopicConfig):
    """What holds for one topic in a plain log directory: Kafka's LogConfig in full."""

    flush_messages: int = _key(
        "flush.messages", "long", LONG_MAX, "topic", minimum=1,
        doc="After so many records a partition's files are synced. The default leaves that to the operating system:"
        " a closed segment is always synced.",
        cost=_AT_NEXT_APPEND + " Small numbers make appends slow.",
    )  # fmt: skip
    flush_ms: int = _key(
        "flush.ms", "long", LONG_MAX, "topic", unit="ms", minimum=0,
        doc="After so long a partition's files are synced, where log.flush.scheduler.interval.ms looks often enough.",
        cost=_AT_NEXT_TURN,
    )  # fmt: skip
    preallocate: str = _key(
        "preallocate", "choice", "false", "topic", choices=("false", "true"),
        doc="Whether a new segment's .log gets its full size at once, and is cut to what it holds when it is closed.",
        cost="Felt when the next segment begins.",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManagerConfig:
    """What holds for all log directories of a LogManager.

    broker: the keys that a root has too. topic_defaults: of topics without overrides.
    """

    flush_interval_messages: int = _key(
        "log.flush.interval.messages", "long", LONG_MAX, "broker", minimum=1, sets="flush.messages",
        doc="Default of flush.messages for all topics.", cost="As for flush.messages.",
    )  # fmt: skip
    flush_interval_ms: int | None = _key(
        "log.flush.interval.ms", "long", None, "broker", unit="ms", minimum=0, sets="flush.ms",
        doc="Default of flush.ms for all topics; log.flush.scheduler.interval.ms where it is not given.",
        cost="As for flush.ms.",
    )  # fmt: skip
    flush_scheduler_interval_ms: int = _key(
        "log.flush.scheduler.interval.ms", "long", LONG_MAX, "broker", unit="ms", minimum=1,
        doc="How often it is looked whether a partition has to be synced by flush.ms.", cost=_AT_NEXT_TURN,
    )  # fmt: skip
    flush_offset_checkpoint_interval_ms: int = _key(
        "log.flush.offset.checkpoint.interval.ms", "int", 60_000, "broker", unit="ms", minimum=0,
        doc="How often the recovery points are written: after a crash, what lies behind them is read.",
        cost=_AT_NEXT_TURN,
    )  # fmt: skip
    flush_start_offset_checkpoint_interval_ms: int = _key(
        "log.flush.start.offset.checkpoint.interval.ms", "int", 60_000, "broker", unit="ms", minimum=0,
        doc="How often the log start offsets are written: after a crash, records deleted since are back.",
        cost=_AT_NEXT_TURN,
    )  # fmt: skip
    high_watermark_checkpoint_interval_ms: int = _key(
        "replica.high.watermark.checkpoint.interval.ms", "long", 5_000, "broker", unit="ms", minimum=1,
        doc="How often the high watermarks are written.", cost=_AT_NEXT_TURN,
    )  # fmt: skip
    retention_check_interval_ms: int = _key(
        "log.retention.check.interval.ms", "long", 300_000, "broker", unit="ms", minimum=1,
        doc="How often it is looked which segments retention drops.", cost=_AT_NEXT_TURN,
    )  # fmt: skip
    preallocate: str = _key(
        "log.preallocate", "choice", "false", "broker", choices=("false", "true"), sets="preallocate",
        doc="Default of preallocate for all topics.", cost="As for preallocate.",
    )  # fmt: skip
    recovery_threads: int = _key(
        "num.recovery.threads.per.data.dir", "int", 2, "broker", minimum=1,
        doc="Threads for each log directory that load its partitions at the start and close them at the end.",
        cost="Felt at the next start.",
    )  # fmt: skip
    producer_expiration_ms: int = _key(
        "producer.id.expiration.ms", "int", 86_400_000, "broker", unit="ms", minimum=1,
        doc="A producer without an open transaction is forgotten when its last batch is so old, by its own timestamps.",
        cost="Felt at the next look, each ten minutes.",
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


def _declared(config: type[LogConfig | LogManagerConfig]) -> dict[str, ConfigKey]:
    inherited = {each.name for each in dataclasses.fields(TopicConfig)}
    found = [each for each in dataclasses.fields(config) if "key" in each.metadata and each.name not in inherited]
    return {(key := dataclasses.replace(each.metadata["key"], name=each.name)).key: key for each in found}


DIRECTORY_TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = _declared(LogConfig)
"""A topic's keys that count in a plain log directory only, by Kafka's name."""

DIRECTORY_BROKER_KEYS: Final[Mapping[str, ConfigKey]] = _declared(LogManagerConfig)
"""The broker's."""


def _parsed(values: Mapping[str, object], place: str) -> dict[str, Value]:
    declared = {**DIRECTORY_TOPIC_KEYS, **DIRECTORY_BROKER_KEYS}
    return {declared[key].name: declared[key].parse(value, f"{place}, {key}") for key, value in values.items()}
