"""Kafka's configuration, as far as it has a meaning without a broker. Each key is declared once, in this file.

A declaration gives Kafka's key, the Python name (which ends in the unit), the type, the default, the bound, the
broker's keys that set the default of all topics, what the key does and what changing it costs. Parsing, validation,
error messages and docs/CONFIGURATION.md come from it. Defaults, bounds and precedence are those of Kafka 4.3
(LogConfig, ServerTopicConfigSynonyms, AbstractKafkaConfig, KafkaConfig.validateValues), with two exceptions: segments
may be as small as 1 KiB (Kafka: 1 MiB, less through internal.segment.bytes only), and so may the cleaner's buffer.

    a topic's overrides   {"segment.bytes": "1048576"}   stored in the topic's state, as strings
      over the broker's   {"log.roll.hours": 24}         from the settings file
      over Kafka's defaults                              here

A key that Kafka knows but that would have no effect here is refused and not ignored: who sets min.insync.replicas
relies on something that Lakelog does not do. All values are immutable; everything here may be used from any thread.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from sys import float_info
from typing import Any, Final, Literal

from storage_engine.errors import ConfigError
from storage_engine.record.batch_limit import DEFAULT as DEFAULT_MOST_BATCH_BYTES

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

Kind = Literal["boolean", "int", "long", "double", "choice", "list"]
CompressionType = Literal["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"]
TimestampType = Literal["CreateTime", "LogAppendTime"]
Value = bool | int | float | str | frozenset[str]

_MS_PER: Final = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
_DECIMAL_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


_BOOLEANS: Final = {"true": True, "false": False}


def nearest(word: str, candidates: Iterable[str]) -> str:
    """The candidate that looks most like the word, for error messages. There must be one candidate at least."""
    return difflib.get_close_matches(word, candidates, n=1, cutoff=0.0)[0]


def shown(value: object) -> str:
    """A setting's value as an error message names it: the value, and its type where that may be the mistake."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"{str(value).lower()} (true or false)"
        case Mapping():
            return "a section of keys"
        case list() | tuple():
            return "a list"
        case str():
            return f"{value!r}"
        case _:
            return f"{value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSynonym:
    """A broker's key that gives a topic's key its default, in its own unit and with its own bound."""

    key: str
    unit: str = ""
    kind: Kind | None = None
    minimum: int | None = None
    negative_is_unlimited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key of Kafka's configuration and all that is known about it.

    Attributes:
        key: Kafka's name.
        name: the attribute that holds the value; empty for a broker's key that only sets the default of a topic's key.
        default: None where another broker's key decides when this one is absent.
        also: single values beyond minimum and maximum that have a meaning of their own.
        negative_is_unlimited: any negative number is taken, and read as -1.
        synonyms: for a topic's key, the broker's keys that set its default, the first that is given wins.
        sets: for a broker's key, the topic's key whose default it sets.
        cost: what changing it costs, and when the change is felt.
    """

    key: str
    scope: Literal["topic", "broker", "producer"]
    kind: Kind
    doc: str
    cost: str
    default: Value | None
    name: str = ""
    unit: str = ""
    minimum: int | None = None
    maximum: int | None = None
    also: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    negative_is_unlimited: bool = False
    synonyms: tuple[BrokerSynonym, ...] = ()
    sets: str = ""

    @property
    def bound(self) -> str:
        """The allowed values in words."""
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.kind == "boolean":
            return "true or false"
        if self.kind == "list":
            return "any of " + ", ".join(self.choices) + ", separated by commas"
        low, high = self.minimum, self.maximum
        if low is not None and high is not None:
            text = f"{low} to {high}"
        else:
            text = "" if low is None else f"at least {low}"
        others = ("-1 for no limit",) if self.negative_is_unlimited else tuple(str(value) for value in self.also)
        return " or ".join(part for part in (text, *others) if part)

    def parse(self, value: object, place: str) -> Value:
        """The value of a YAML scalar or of its text.

        Raises:
            ConfigError: at `place`: the type is wrong or the value lies outside the bound.
        """
        parsed: Value | None
        if self.kind == "choice":
            parsed = value.strip() if isinstance(value, str) and value.strip() in self.choices else None
        elif self.kind == "list":
            parsed = self._parse_list(value)
        elif self.kind == "boolean":
            parsed = _BOOLEANS.get(str(value).strip().lower())
        else:
            parsed = self._parse_number(value)
        if parsed is None:
            nouns = {"int": "a whole number", "long": "a whole number", "double": "a number"}
            noun = nouns.get(self.kind, "")
            of_unit = f" of {self.unit}" if noun and self.unit else ""
            expected = ", ".join(part for part in (noun + of_unit, self.bound) if part)
            remedy = "" if self.default is None else f"The default is {as_text(self.default)}."
            raise ConfigError(place, f"expected {expected}; found {shown(value)}", remedy)
        return parsed

    def _parse_list(self, value: object) -> frozenset[str] | None:
        words = value.split(",") if isinstance(value, str) else value
        if not isinstance(words, list | tuple | frozenset) or not all(isinstance(word, str) for word in words):
            return None
        names = frozenset(word.strip() for word in words if word.strip() or len(words) > 1)
        return names if names <= set(self.choices) else None

    def _parse_number(self, value: object) -> int | float | None:
        text = value.strip() if isinstance(value, str) else repr(value)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return None
        number: int | float
        if self.kind == "double":
            if not _DECIMAL_NUMBER.fullmatch(text):
                return None
            number = float(text)
        else:
            if not _WHOLE_NUMBER.fullmatch(text) or len(text) > 20:
                return None
            number = int(text)
            largest = INT_MAX if self.kind == "int" else LONG_MAX
            if not -largest - 1 <= number <= largest:
                return None
        if self.negative_is_unlimited and number < 0:
            return -1
        low = -math.inf if self.minimum is None else self.minimum
        high = math.inf if self.maximum is None else self.maximum
        return number if low <= number <= high or number in self.also else None


def as_text(value: Value) -> str:
    """A parsed value as Kafka's tools print it and as a topic's state keeps it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def _topic_key(key: str, kind: Kind, default: Value, *, broker: tuple[BrokerSynonym, ...], **facts: Any) -> Any:
    declared = ConfigKey(key=key, scope="topic", kind=kind, default=default, synonyms=broker, **facts)
    return field(default=default, metadata={"key": declared})


def _broker_key(key: str, kind: Kind, default: Value, **facts: Any) -> Any:
    return field(
        default=default, metadata={"key": ConfigKey(key=key, scope="broker", kind=kind, default=default, **facts)}
    )


def _from(*keys: str) -> tuple[BrokerSynonym, ...]:
    return tuple(BrokerSynonym(key=key) for key in keys)


_AT_NEXT_BATCH = "None for what is written: felt from the next micro-batch or append on."
_AT_NEXT_ROLL = "Felt when the next segment begins; segments that exist keep their shape."
_AT_NEXT_CLEANING = "Felt at the next compaction; what was removed does not come back."


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What holds for one topic (Kafka's LogConfig).

    The constructor takes values as they are; what people or files say goes through `topic_config`, which checks it.
    """

    segment_bytes: int = _topic_key(
        "segment.bytes", "int", 1024**3, unit="bytes", minimum=1024, broker=_from("log.segment.bytes"),
        doc="Largest size of a segment's .log file. Retention and compaction act on whole closed segments.",
        cost=_AT_NEXT_ROLL + " Smaller ones free space and get compacted sooner, and mean more files and a longer state.",
    )  # fmt: skip
    segment_ms: int = _topic_key(
        "segment.ms", "long", 7 * 24 * 3_600_000, unit="ms", minimum=1,
        broker=(BrokerSynonym(key="log.roll.ms"), BrokerSynonym(key="log.roll.hours", unit="hours", kind="int", minimum=1)),
        doc="Longest span of event time from a segment's first batch to its last, after which the next batch begins a new"
        " segment. Without new batches nothing rolls.",
        cost=_AT_NEXT_ROLL,
    )  # fmt: skip
    segment_jitter_ms: int = _topic_key(
        "segment.jitter.ms", "long", 0, unit="ms", minimum=0,
        broker=(
            BrokerSynonym(key="log.roll.jitter.ms"),
            BrokerSynonym(key="log.roll.jitter.hours", unit="hours", kind="int", minimum=0),
        ),
        doc="Up to so much, drawn anew for each segment, is taken off segment.ms, so that partitions do not all roll at once.",
        cost=_AT_NEXT_ROLL,
    )  # fmt: skip
    segment_index_bytes: int = _topic_key(
        "segment.index.bytes", "int", 10 * 1024**2, unit="bytes", minimum=4, broker=_from("log.index.size.max.bytes"),
        doc="Largest size of a segment's offset index and of its time index. A full index rolls the segment.",
        cost=_AT_NEXT_ROLL,
    )  # fmt: skip
    index_interval_bytes: int = _topic_key(
        "index.interval.bytes", "int", 4096, unit="bytes", minimum=0, broker=_from("log.index.interval.bytes"),
        doc="Bytes of log between two index entries. A look-up scans at most about so many bytes of batch headers.",
        cost=_AT_NEXT_BATCH + " Smaller values make larger indexes.",
    )  # fmt: skip
    retention_ms: int = _topic_key(
        "retention.ms", "long", 7 * 24 * 3_600_000, unit="ms", minimum=0, also=(-1,),
        broker=(
            BrokerSynonym(key="log.retention.ms", minimum=1, negative_is_unlimited=True),
            BrokerSynonym(key="log.retention.minutes", unit="minutes", kind="int", minimum=1, negative_is_unlimited=True),
            BrokerSynonym(key="log.retention.hours", unit="hours", kind="int", minimum=1, negative_is_unlimited=True),
        ),
        doc="Age, by a segment's largest timestamp, beyond which retention drops the segment where cleanup.policy has"
        " delete. -1 keeps it for ever.",
        cost="Felt at the next retention run. Lowering it deletes data for good.",
    )  # fmt: skip
    retention_bytes: int = _topic_key(
        "retention.bytes", "long", -1, unit="bytes", minimum=0, negative_is_unlimited=True, broker=_from("log.retention.bytes"),
        doc="Size of one partition that retention trims down to, oldest segments first, where cleanup.policy has delete."
        " -1 sets no limit.",
        cost="Felt at the next retention run. Lowering it deletes data for good.",
    )  # fmt: skip
    cleanup_policy: frozenset[str] = _topic_key(
        "cleanup.policy", "list", frozenset({"delete"}), choices=("compact", "delete"), broker=_from("log.cleanup.policy"),
        doc="delete drops old segments by age and size; compact keeps the latest record of each key; compact,delete does"
        " both; an empty value does neither. It also picks how exports work: compacted topics are upserted.",
        cost="Turning compact on makes records without a key unwelcome: those that are there stay until the next"
        " compaction, which drops them.",
    )  # fmt: skip
    max_message_bytes: int = _topic_key(
        "max.message.bytes", "int", 1024**2 + 12, unit="bytes", minimum=0, broker=_from("message.max.bytes"),
        doc="Largest size of a record batch, after compression. A record that does not fit even alone is refused by append"
        " and becomes a dead letter in ingest.",
        cost=_AT_NEXT_BATCH + " Kafka consumers of an exported directory need a fetch size to match.",
    )  # fmt: skip
    compression_type: CompressionType = _topic_key(  # noqa: RUF009 (a Literal is immutable)
        "compression.type", "choice", "producer", broker=_from("compression.type"),
        choices=("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"),
        doc="Codec of the batches that are written. producer leaves the choice to the writer (ingest.compression.type).",
        cost=_AT_NEXT_BATCH + " Batches that exist keep their codec, through compaction too.",
    )  # fmt: skip
    compression_gzip_level: int = _topic_key(
        "compression.gzip.level", "int", -1, minimum=1, maximum=9, also=(-1,), broker=_from("compression.gzip.level"),
        doc="Level of gzip where compression.type is gzip; -1 is zlib's own default.",
        cost=_AT_NEXT_BATCH,
    )  # fmt: skip
    compression_lz4_level: int = _topic_key(
        "compression.lz4.level", "int", 9, minimum=1, maximum=17, broker=_from("compression.lz4.level"),
        doc="Level of LZ4 where compression.type is lz4.",
        cost=_AT_NEXT_BATCH,
    )  # fmt: skip
    compression_zstd_level: int = _topic_key(
        "compression.zstd.level", "int", 3, minimum=-131_072, maximum=22, broker=_from("compression.zstd.level"),
        doc="Level of Zstandard where compression.type is zstd; negative levels are faster and pack less.",
        cost=_AT_NEXT_BATCH,
    )  # fmt: skip
    message_timestamp_type: TimestampType = _topic_key(  # noqa: RUF009 (a Literal is immutable)
        "message.timestamp.type", "choice", "CreateTime", choices=("CreateTime", "LogAppendTime"),
        broker=_from("log.message.timestamp.type"),
        doc="Whose clock stamps a record: the event's (CreateTime) or that of the append (LogAppendTime).",
        cost=_AT_NEXT_BATCH + " Under LogAppendTime the event's own time is lost.",
    )  # fmt: skip
    message_timestamp_before_max_ms: int = _topic_key(
        "message.timestamp.before.max.ms", "long", LONG_MAX, unit="ms", minimum=0,
        broker=_from("log.message.timestamp.before.max.ms"),
        doc="How far in the past a record's timestamp may lie. Older ones are refused; not checked under LogAppendTime.",
        cost=_AT_NEXT_BATCH,
    )  # fmt: skip
    message_timestamp_after_max_ms: int = _topic_key(
        "message.timestamp.after.max.ms", "long", 3_600_000, unit="ms", minimum=0,
        broker=_from("log.message.timestamp.after.max.ms"),
        doc="How far in the future a record's timestamp may lie. Later ones are refused; not checked under LogAppendTime.",
        cost=_AT_NEXT_BATCH + " A timestamp in the far future holds retention up for all that comes after it.",
    )  # fmt: skip
    min_cleanable_dirty_ratio: float = _topic_key(
        "min.cleanable.dirty.ratio", "double", 0.5, minimum=0, maximum=1, broker=_from("log.cleaner.min.cleanable.ratio"),
        doc="Share of a partition's bytes that must be uncompacted before compaction takes it up.",
        cost=_AT_NEXT_CLEANING + " Lower values rewrite more often and waste less space.",
    )  # fmt: skip
    min_compaction_lag_ms: int = _topic_key(
        "min.compaction.lag.ms", "long", 0, unit="ms", minimum=0, broker=_from("log.cleaner.min.compaction.lag.ms"),
        doc="How long a record is safe from compaction, whatever comes after it.",
        cost=_AT_NEXT_CLEANING,
    )  # fmt: skip
    max_compaction_lag_ms: int = _topic_key(
        "max.compaction.lag.ms", "long", LONG_MAX, unit="ms", minimum=1, broker=_from("log.cleaner.max.compaction.lag.ms"),
        doc="How long a record may wait for compaction; then min.cleanable.dirty.ratio is not asked. Compacted topics also"
        " begin a new segment after that time.",
        cost=_AT_NEXT_CLEANING,
    )  # fmt: skip
    delete_retention_ms: int = _topic_key(
        "delete.retention.ms", "long", 24 * 3_600_000, unit="ms", minimum=0,
        broker=_from("log.cleaner.delete.retention.ms"),
        doc="How long a tombstone outlives the compaction that first kept it. A reader that needs longer for a whole pass"
        " can miss deletions.",
        cost="Felt by tombstones that compaction has not met yet; the others keep the horizon they were given.",
    )  # fmt: skip
    file_delete_delay_ms: int = _topic_key(
        "file.delete.delay.ms", "long", 60_000, unit="ms", minimum=0, broker=_from("log.segment.delete.delay.ms"),
        doc="How long a file stays after the topic's state has dropped it, for readers that are in the middle of it.",
        cost="Felt by files that are dropped from now on. Longer keeps more bytes on storage.",
    )  # fmt: skip

    cleaner_clean_expired_horizons: bool = _topic_key(
        "cleaner.clean.expired.horizons", "boolean", False, broker=_from("log.cleaner.clean.expired.horizons"),
        doc="Whether a partition that is not due is compacted all the same once a tombstone or a transaction's marker has"
        " outlived its delete horizon; without, it waits for the next compaction. Kafka has no such key.",
        cost=_AT_NEXT_CLEANING + " Partitions that nobody writes to any more are rewritten once more.",
    )  # fmt: skip
    retention_respect_consumers: bool = _topic_key(
        "retention.respect.consumers", "boolean", False, broker=_from("log.retention.respect.consumers"),
        doc="Whether retention by age and size waits for registered consumers (exports) that have not read a segment, for at"
        " most consumer.max.hold.ms. Kafka has no such key.",
        cost="Felt at the next retention run. A consumer that stands still keeps its bytes on storage for so long.",
    )  # fmt: skip
    consumer_max_hold_ms: int = _topic_key(
        "consumer.max.hold.ms", "long", 7 * 24 * 3_600_000, unit="ms", minimum=0, broker=_from("log.consumer.max.hold.ms"),
        doc="How long registered consumers that have not read them hold back tombstones beyond their delete horizon and,"
        " under retention.respect.consumers, segments beyond their retention. Kafka has no such key.",
        cost="Felt at the next cleaning. Lowering it lets a slow consumer miss deletions.",
    )  # fmt: skip

    @property
    def compact(self) -> bool:
        """Whether the latest record of each key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether segments go by age and size."""
        return "delete" in self.cleanup_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """What holds for all topics that do not say otherwise, and the cleaner's own settings."""

    num_partitions: int = _broker_key(
        "num.partitions", "int", 1, minimum=1,
        doc="Partitions of a new topic that does not give a number.",
        cost="None for topics that exist.",
    )  # fmt: skip
    log_cleaner_dedupe_buffer_bytes: int = _broker_key(
        "log.cleaner.dedupe.buffer.size", "long", 128 * 1024**2, unit="bytes", minimum=1024,
        doc="Memory for finding out which records of a partition are outdated. Keys that do not fit are written aside, to "
        "a temporary file, and judged in passes.",
        cost=_AT_NEXT_CLEANING + " Each Spark task that compacts needs so much; less takes longer, and room in TMPDIR.",
    )  # fmt: skip
    log_cleaner_io_max_bytes_per_second: float = _broker_key(
        "log.cleaner.io.max.bytes.per.second", "double", float_info.max, unit="bytes", minimum=1,
        doc="Bytes that compaction and merging may read and write in a second, all tasks of a job together.",
        cost=_AT_NEXT_CLEANING + " Lower values leave more of the storage to ingests and readers, and take longer.",
    )  # fmt: skip
    producer_id_expiration_ms: int = _broker_key(
        "producer.id.expiration.ms", "int", 24 * 3_600_000, unit="ms", minimum=1,
        doc="How long a topic's state knows a producer whose last transaction has ended, by the timestamps of its records.",
        cost="Felt at the next retention. Longer keeps more of them in each version of the state.",
    )  # fmt: skip
    sweep_delay_ms: int = _broker_key(
        "lakelog.sweep.delay.ms", "long", 24 * 3_600_000, unit="ms", minimum=1,
        doc="Files that no version of a topic's state names are deleted once the version that they were planned on is so"
        " old. Kafka has no such key.",
        cost="Felt at the next maintenance. Appends, compactions and imports that take longer are refused and done again.",
    )  # fmt: skip
    batch_max_uncompressed_bytes: int = _broker_key(
        "batch.max.uncompressed.bytes", "int", DEFAULT_MOST_BATCH_BYTES, unit="bytes", minimum=1024,
        doc="Memory that one compressed batch may unfold to when it is read, its records' columns included. One that takes"
        " more is refused by readers, compaction, `verify --deep` and `topics import`. Kafka has no such key.",
        cost="Felt at the next start. Readers may need twice that much memory; smaller values refuse batches that were"
        " written.",
    )  # fmt: skip
    topic_defaults: TopicConfig = TopicConfig()

    @classmethod
    def from_mapping(cls, values: Mapping[str, object], place: str = "broker configuration") -> BrokerConfig:
        """Read Kafka's broker keys, with Kafka's precedence: log.roll.ms beats log.roll.hours, and so on.

        Raises:
            ConfigError: an unknown key, a wrong type, a value outside its bound.
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
        _check_lags(defaults, place)
        return dataclasses.replace(cls(topic_defaults=defaults), **own)  # type: ignore[arg-type]

    def value_of(self, key: str) -> Value:
        """What holds for a broker's key; where it sets a topic's key, in that one's unit."""
        declared = BROKER_KEYS[key]
        value: Value = (
            getattr(self.topic_defaults, TOPIC_KEYS[declared.sets].name)
            if declared.sets
            else getattr(self, declared.name)
        )
        return value


def _in_topic_unit(value: Value, synonym: BrokerSynonym) -> Value:
    """Hours and minutes as ms; -1 means no limit in every unit."""
    factor = _MS_PER.get(synonym.unit, 1)
    return value * factor if isinstance(value, int) and value >= 0 else value


def _declared(config: type[TopicConfig | BrokerConfig]) -> dict[str, ConfigKey]:
    fields = (found for found in dataclasses.fields(config) if "key" in found.metadata)
    return {(key := dataclasses.replace(found.metadata["key"], name=found.name)).key: key for found in fields}


def _default_setters(topic_keys: Iterable[ConfigKey]) -> dict[str, ConfigKey]:
    """The broker's keys that set a default of all topics, made from the topic's keys."""
    setters = {}
    for topic in topic_keys:
        *_, last = topic.synonyms
        for rank, synonym in enumerate(topic.synonyms):
            beats = f" Beats {topic.synonyms[rank + 1].key}." if synonym is not last else ""
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
                doc=f"Default of {topic.key} for all topics{f', in {unit}' if unit != topic.unit else ''}.{beats}",
                cost=f"As for {topic.key}, for each topic that does not set it.",
            )
    return setters


TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = _declared(TopicConfig)
"""All of a topic's keys by Kafka's name."""

BROKER_KEYS: Final[Mapping[str, ConfigKey]] = _declared(BrokerConfig) | _default_setters(TOPIC_KEYS.values())
"""All of the broker's keys by Kafka's name."""

ALIASES: Final[Mapping[str, str]] = {"internal.segment.bytes": "segment.bytes"}
"""Other names of a topic's keys. As in Kafka, internal.segment.bytes wins where both are given."""

_NO_REPLICAS = "there is one copy of the log, and the storage keeps it safe"
_ALWAYS_SYNCED = "every commit is synced to storage before it counts"
_NO_TIERS = "there is one tier of storage, the root"
_JOBS_CLEAN = "cleaning is done by the maintenance jobs, and Spark gives them their threads and memory"

KAFKA_KEYS_WITHOUT_USE: Final[Mapping[str, str]] = {
    "min.insync.replicas": _NO_REPLICAS,
    "unclean.leader.election.enable": _NO_REPLICAS,
    "default.replication.factor": _NO_REPLICAS,
    "leader.replication.throttled.replicas": _NO_REPLICAS,
    "follower.replication.throttled.replicas": _NO_REPLICAS,
    "flush.messages": _ALWAYS_SYNCED,
    "flush.ms": _ALWAYS_SYNCED,
    "log.flush.interval.messages": _ALWAYS_SYNCED,
    "log.flush.interval.ms": _ALWAYS_SYNCED,
    "log.flush.scheduler.interval.ms": _ALWAYS_SYNCED,
    "log.flush.offset.checkpoint.interval.ms": _ALWAYS_SYNCED,
    "log.flush.start.offset.checkpoint.interval.ms": _ALWAYS_SYNCED,
    "preallocate": "segments grow by whole micro-batches",
    "log.preallocate": "segments grow by whole micro-batches",
    "remote.storage.enable": _NO_TIERS,
    "remote.log.copy.disable": _NO_TIERS,
    "remote.log.delete.on.disable": _NO_TIERS,
    "remote.copy.lag.ms": _NO_TIERS,
    "remote.copy.lag.bytes": _NO_TIERS,
    "local.retention.ms": _NO_TIERS,
    "local.retention.bytes": _NO_TIERS,
    "log.local.retention.ms": _NO_TIERS,
    "log.local.retention.bytes": _NO_TIERS,
    "remote.log.storage.system.enable": _NO_TIERS,
    "message.format.version": "batches are always written in magic 2, as by Kafka 4",
    "log.message.format.version": "batches are always written in magic 2, as by Kafka 4",
    "message.downconversion.enable": "no old consumers have to be served",
    "log.message.downconversion.enable": "no old consumers have to be served",
    "message.timestamp.difference.max.ms": "Kafka 4 has message.timestamp.before.max.ms and .after.max.ms in its place",
    "log.message.timestamp.difference.max.ms": "Kafka 4 has log.message.timestamp.before.max.ms and .after.max.ms in its place",
    "log.cleaner.enable": "compaction runs when its job runs",
    "log.cleaner.threads": _JOBS_CLEAN,
    "log.cleaner.backoff.ms": _JOBS_CLEAN,
    "log.cleaner.io.buffer.size": _JOBS_CLEAN,
    "log.cleaner.io.buffer.load.factor": _JOBS_CLEAN,
    "log.retention.check.interval.ms": "retention runs when its job runs",
    "log.dir": "root says where everything lies",
    "log.dirs": "root says where everything lies",
    "auto.create.topics.enable": "ingest creates the topics that the settings describe, and no others",
    "num.recovery.threads.per.data.dir": "nothing has to be recovered at a start",
    "broker.id": "no broker runs",
    "node.id": "no broker runs",
    "process.roles": "no broker runs",
    "listeners": "no broker runs",
    "advertised.listeners": "no broker runs",
}
"""Keys of Kafka that are refused because they would have no effect, each with the reason."""


def topic_key(key: str, value: object, place: str) -> ConfigKey:
    """The declaration of a topic's key, by its name or an alias of it.

    Raises:
        ConfigError: at `place`: Lakelog has no such key. Names the value, and the key that was probably meant.
    """
    canonical = ALIASES.get(key, key)
    if canonical in TOPIC_KEYS:
        return TOPIC_KEYS[canonical]
    if key in BROKER_KEYS and BROKER_KEYS[key].sets:
        problem = f"{key} (with value {shown(value)}) is a key of the broker"
        raise ConfigError(place, problem, f"A topic's key for it is {BROKER_KEYS[key].sets}.")
    raise _unknown(key, value, place, "topic", TOPIC_KEYS)


def broker_key(key: str, value: object, place: str) -> ConfigKey:
    """The declaration of a broker's key.

    Raises:
        ConfigError: at `place`: Lakelog has no such key. Names the value, and the key that was probably meant.
    """
    if key in BROKER_KEYS:
        return BROKER_KEYS[key]
    topic = TOPIC_KEYS.get(ALIASES.get(key, key))
    if topic:
        problem = f"{key} (with value {shown(value)}) is a key of a topic"
        raise ConfigError(place, problem, f"The broker's key for the default of all topics is {topic.synonyms[0].key}.")
    raise _unknown(key, value, place, "broker", BROKER_KEYS)


def _unknown(key: str, value: object, place: str, scope: str, known: Mapping[str, ConfigKey]) -> ConfigError:
    if key in KAFKA_KEYS_WITHOUT_USE:
        problem = f"Kafka has the key {key} (here with value {shown(value)}), but Lakelog has no use for it:"
        return ConfigError(place, f"{problem} {KAFKA_KEYS_WITHOUT_USE[key]}", "It can be left out.")
    problem = f"unknown {scope} key {key} with value {shown(value)}"
    return ConfigError(place, problem, f"The nearest valid key is {nearest(key, known)}.")


def _parse_overrides(overrides: Mapping[str, object], place: str) -> dict[str, Value]:
    """By canonical key, in the order of the keys."""
    parsed = {
        key: topic_key(key, value, f"{place}, {key}").parse(value, f"{place}, {key}")
        for key, value in overrides.items()
    }
    for alias, canonical in ALIASES.items():
        if alias in parsed:
            parsed[canonical] = parsed.pop(alias)
    return dict(sorted(parsed.items()))


def _check_lags(config: TopicConfig, place: str) -> None:
    """LogConfig.validateValues."""
    low, high = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    if low > high:
        problem = f"expected a value of at most max.compaction.lag.ms, which is {high}; found {low}"
        raise ConfigError(f"{place}, min.compaction.lag.ms", problem, "Lower the one or raise the other.")


def topic_config(
    broker: BrokerConfig, overrides: Mapping[str, object], place: str = "topic configuration"
) -> TopicConfig:
    """What holds for a topic: its overrides over the broker's defaults over Kafka's.

    Args:
        overrides: a topic's keys in Kafka's names; values as YAML scalars or as text.
        place: what the overrides belong to, for error messages.

    Raises:
        ConfigError: an unknown key, a wrong type, a value outside its bound.
    """
    parsed = {TOPIC_KEYS[key].name: value for key, value in _parse_overrides(overrides, place).items()}
    config = dataclasses.replace(broker.topic_defaults, **parsed)  # type: ignore[arg-type]  # each from its own key
    _check_lags(config, place)
    return config


def normalise_overrides(overrides: Mapping[str, object], place: str = "topic configuration") -> dict[str, str]:
    """Overrides as a topic's state keeps them: checked, by canonical key in order, with values in canonical text.

    Raises:
        ConfigError: an unknown key, a wrong type, a value outside its bound.
    """
    topic_config(BrokerConfig(), overrides, place)
    return {key: as_text(value) for key, value in _parse_overrides(overrides, place).items()}


def normalise_broker_settings(settings: Mapping[str, object], place: str = "broker configuration") -> dict[str, str]:
    """The broker's settings as a root keeps them: checked, by key in order, with values in canonical text.

    Raises:
        ConfigError: an unknown key, a wrong type, a value outside its bound.
    """
    BrokerConfig.from_mapping(settings, place)
    return {key: as_text(BROKER_KEYS[key].parse(value, place)) for key, value in sorted(settings.items())}


def broker_synonyms(key: str) -> tuple[str, ...]:
    """The broker's keys that set the same as this one, itself included: the first that is given wins."""
    sets = BROKER_KEYS[key].sets
    return tuple(synonym.key for synonym in TOPIC_KEYS[sets].synonyms) if sets else (key,)


def acting_broker_key(settings: Mapping[str, object], key: str) -> str | None:
    """Of a broker's key and its synonyms the one that acts among these settings; None where none is given."""
    return next((each for each in broker_synonyms(key) if each in settings), None)


def over_broker_settings(lower: Mapping[str, str], upper: Mapping[str, str]) -> dict[str, str]:
    """Settings over others, key by key. A synonym in the lower ones would beat one in the upper ones, so it goes."""
    hidden = {synonym for key in upper for synonym in broker_synonyms(key)}
    return {key: value for key, value in lower.items() if key not in hidden} | dict(upper)


def describe_keys() -> tuple[ConfigKey, ...]:
    """All keys, the topic's before the broker's, in the order of their declaration."""
    return (*TOPIC_KEYS.values(), *BROKER_KEYS.values())
