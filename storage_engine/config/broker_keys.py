"""Declares the broker's keys, and finds the declaration of a topic's or broker's key by its name.

Some broker keys set the default of a topic key, for all topics. Such broker keys are derived from the
declarations in topic_keys.py. All other keys of the broker are declared here. The error for an unknown key suggests the
most similar key. Defaults, bounds and precedence are those of Kafka 4.3 (ServerTopicConfigSynonyms,
AbstractKafkaConfig, KafkaConfig.validateValues), with one exception: the cleaner's buffer may be as small as 1 KiB.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from sys import float_info
from typing import Any, Final

from storage_engine.config.config_key import (
    BrokerSynonym,
    ConfigKey,
    Value,
    ValueKind,
    declared_field,
    declared_keys,
    nearest,
    shown,
)
from storage_engine.config.refused_keys import KAFKA_KEYS_WITHOUT_USE
from storage_engine.config.topic_keys import ALIASES, AT_NEXT_CLEANING, TOPIC_KEYS, TopicConfig, check_lags
from storage_engine.errors import ConfigError
from storage_engine.record.batch_limit import DEFAULT as DEFAULT_MOST_BATCH_BYTES

_MS_PER: Final = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}


def _key(key: str, kind: ValueKind, default: Value, **facts: Any) -> Any:
    return declared_field(key, "broker", kind, default, **facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The broker's configuration: its own settings, and the defaults of the topics' settings."""

    num_partitions: int = _key(
        "num.partitions", "int", 1, minimum=1,
        doc="Number of partitions of a new topic, if the topic does not set a number.",
        cost="Existing topics do not change.",
    )  # fmt: skip
    log_cleaner_dedupe_buffer_bytes: int = _key(
        "log.cleaner.dedupe.buffer.size", "long", 128 * 1024**2, unit="bytes", minimum=1024,
        doc="Memory in which compaction of a partition stores the newest offset of each key. If this memory is too"
        " small for all keys, the keys are written to a temporary file, and compaction needs several passes.",
        cost=AT_NEXT_CLEANING + " Each Spark task that compacts needs this memory. With less memory, compaction takes longer"
        " and needs space in TMPDIR.",
    )  # fmt: skip
    log_cleaner_io_max_bytes_per_second: float = _key(
        "log.cleaner.io.max.bytes.per.second", "double", float_info.max, unit="bytes", minimum=1,
        doc="Limit on the bytes per second of compaction and merging. The limit applies to the sum of bytes read and"
        " bytes written. All tasks of a job together stay below this limit.",
        cost=AT_NEXT_CLEANING + " With a lower value, maintenance takes longer, but leaves more of the storage's"
        " bandwidth to ingests and readers.",
    )  # fmt: skip
    producer_id_expiration_ms: int = _key(
        "producer.id.expiration.ms", "int", 24 * 3_600_000, unit="ms", minimum=1,
        doc="How long a topic's state stores a producer after the producer's last transaction. Lakelog measures this"
        " time with the timestamps of the producer's records.",
        cost="Takes effect at the next retention run. With a longer time, each version of the state stores more"
        " producers.",
    )  # fmt: skip
    sweep_delay_ms: int = _key(
        "lakelog.sweep.delay.ms", "long", 24 * 3_600_000, unit="ms", minimum=1,
        doc="A file is deleted at this age if no version of the topic's state names the file. A job plans each file at"
        " a version of the state. The file's age is counted from the time of this version. Kafka has no such key.",
        cost="Takes effect at the next maintenance. If an append, compaction or import takes longer than this time,"
        " its commit is refused, and the work must be repeated.",
    )  # fmt: skip
    sink_expiration_ms: int = _key(
        "lakelog.sink.expiration.ms", "long", 30 * 24 * 3_600_000, unit="ms", minimum=1,
        doc="A streaming query can write with format('lakelog'). This setting says how long the topic's state stores"
        " the last batch of an idle query. If the query starts again after this time, the topic refuses a batch that"
        " may be committed already. Kafka has no such key.",
        cost="Takes effect at the next micro-batch of any query that writes with format('lakelog'). With a longer time,"
        " each version of the state stores more queries.",
    )  # fmt: skip
    batch_max_uncompressed_bytes: int = _key(
        "batch.max.uncompressed.bytes", "int", DEFAULT_MOST_BATCH_BYTES, unit="bytes", minimum=1024,
        doc="Largest amount of memory that reading one batch may take. The memory includes the decompressed bytes of"
        " the batch and the columns of its records. Readers, compaction, `verify --deep` and `topics import` refuse a"
        " batch that needs more memory. Kafka has no such key.",
        cost="Takes effect at the next start. A reader may need twice this amount of memory. With a smaller value,"
        " existing batches may be refused.",
    )  # fmt: skip
    topic_defaults: TopicConfig = TopicConfig()  # noqa: RUF009 (a TopicConfig is immutable)

    @classmethod
    def from_mapping(cls, values: Mapping[str, object], place: str = "broker configuration") -> BrokerConfig:
        """Read Kafka's broker keys, with Kafka's precedence: for example, log.roll.ms overrides log.roll.hours.

        Raises:
            ConfigError: an unknown key, a wrong type, or a value that is not allowed.
        """
        parsed = {
            key: broker_key(key, value, f"{place}, {key}").parse(value, f"{place}, {key}")
            for key, value in values.items()
        }
        own = {declared.name: parsed[key] for key, declared in BROKER_KEYS.items() if declared.name and key in parsed}
        inherited: dict[str, Value] = {}
        for topic in TOPIC_KEYS.values():
            given = next((synonym for synonym in topic.synonyms if synonym.key in parsed), None)
            if given:
                inherited[topic.name] = _in_topic_unit(parsed[given.key], given)
        defaults = dataclasses.replace(TopicConfig(), **inherited)  # type: ignore[arg-type]  # each from its own key
        check_lags(defaults, place)
        return dataclasses.replace(cls(topic_defaults=defaults), **own)  # type: ignore[arg-type]

    def value_of(self, key: str) -> Value:
        """Return the value of a broker's key. If the key sets a topic's key, the value has the unit of the topic's key."""
        declared = BROKER_KEYS[key]
        value: Value = (
            getattr(self.topic_defaults, TOPIC_KEYS[declared.sets].name)
            if declared.sets
            else getattr(self, declared.name)
        )
        return value


def _in_topic_unit(value: Value, synonym: BrokerSynonym) -> Value:
    """Convert hours and minutes to ms. -1 means no limit in every unit, and is not converted."""
    factor = _MS_PER.get(synonym.unit, 1)
    return value * factor if isinstance(value, int) and value >= 0 else value


def _default_setters(topic_keys: Iterable[ConfigKey]) -> dict[str, ConfigKey]:
    """Derive the broker's keys that set the default of a topic's key."""
    setters = {}
    for topic in topic_keys:
        *_, last = topic.synonyms
        for rank, synonym in enumerate(topic.synonyms):
            beats = f" Overrides {topic.synonyms[rank + 1].key}." if synonym is not last else ""
            unit = synonym.unit or topic.unit
            own_default = topic.default
            if isinstance(own_default, int) and unit in ("hours", "minutes"):
                own_default //= _MS_PER[unit]
            setters[synonym.key] = dataclasses.replace(
                topic,
                key=synonym.key,
                scope="broker",
                name="",
                kind=synonym.kind or topic.kind,
                unit=unit,
                default=own_default if synonym is last else None,
                minimum=topic.minimum if synonym.minimum is None else synonym.minimum,
                also=() if synonym.negative_is_unlimited else topic.also,
                negative_is_unlimited=synonym.negative_is_unlimited or topic.negative_is_unlimited,
                synonyms=(),
                sets=topic.key,
                doc=f"The default of {topic.key} for all topics."
                f"{f' This key is in {unit}.' if unit != topic.unit else ''}{beats}",
                cost=f"The cost of {topic.key}, in each topic that does not set {topic.key}.",
            )
    return setters


BROKER_KEYS: Final[Mapping[str, ConfigKey]] = declared_keys(BrokerConfig) | _default_setters(TOPIC_KEYS.values())
"""All of the broker's keys, by Kafka's name."""


def topic_key(key: str, value: object, place: str) -> ConfigKey:
    """Return the declaration of a topic's key, found by its name or its alias.

    Raises:
        ConfigError: at `place`: Lakelog has no such key. The message contains the value and the most similar key.
    """
    canonical = ALIASES.get(key, key)
    if canonical in TOPIC_KEYS:
        return TOPIC_KEYS[canonical]
    if key in BROKER_KEYS and BROKER_KEYS[key].sets:
        problem = f"{key} (with value {shown(value)}) is a key of the broker"
        raise ConfigError(place, problem, f"The topic's key is {BROKER_KEYS[key].sets}.")
    raise _unknown(key, value, place, "topic", TOPIC_KEYS)


def broker_key(key: str, value: object, place: str) -> ConfigKey:
    """Return the declaration of a broker's key.

    Raises:
        ConfigError: at `place`: Lakelog has no such key. The message contains the value and the most similar key.
    """
    if key in BROKER_KEYS:
        return BROKER_KEYS[key]
    topic = TOPIC_KEYS.get(ALIASES.get(key, key))
    if topic:
        problem = f"{key} (with value {shown(value)}) is a key of a topic"
        raise ConfigError(
            place, problem, f"The broker's key that sets the default of all topics is {topic.synonyms[0].key}."
        )
    raise _unknown(key, value, place, "broker", BROKER_KEYS)


def _unknown(key: str, value: object, place: str, scope: str, known: Mapping[str, ConfigKey]) -> ConfigError:
    if key in KAFKA_KEYS_WITHOUT_USE:
        problem = f"Kafka's key {key} (found with value {shown(value)}) would have no effect in Lakelog:"
        return ConfigError(place, f"{problem} {KAFKA_KEYS_WITHOUT_USE[key]}", "Remove the key.")
    problem = f"unknown {scope} key {key} with value {shown(value)}"
    return ConfigError(place, problem, f"The nearest valid key is {nearest(key, known)}.")
