"""Kafka's keys: their defaults, precedence, bounds and error messages."""

from __future__ import annotations

import pickle

import pytest

from storage_engine.config import (
    BROKER_KEYS,
    KAFKA_KEYS_WITHOUT_USE,
    TOPIC_KEYS,
    BrokerConfig,
    TopicConfig,
    describe_keys,
    normalise_overrides,
    topic_config,
)
from storage_engine.errors import ConfigError, InvalidTopicNameError
from storage_engine.topic_name import check_topic_name

KAFKA_4_DEFAULTS = {
    "segment.bytes": 1073741824,
    "segment.ms": 604800000,
    "segment.jitter.ms": 0,
    "segment.index.bytes": 10485760,
    "index.interval.bytes": 4096,
    "retention.ms": 604800000,
    "retention.bytes": -1,
    "cleanup.policy": frozenset({"delete"}),
    "max.message.bytes": 1048588,
    "compression.type": "producer",
    "compression.gzip.level": -1,
    "compression.lz4.level": 9,
    "compression.zstd.level": 3,
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": 9223372036854775807,
    "message.timestamp.after.max.ms": 3600000,
    "min.cleanable.dirty.ratio": 0.5,
    "min.compaction.lag.ms": 0,
    "max.compaction.lag.ms": 9223372036854775807,
    "delete.retention.ms": 86400000,
    "file.delete.delay.ms": 60000,
}
OF_OUR_OWN = {
    "cleaner.clean.expired.horizons": False,
    "retention.respect.consumers": False,
    "consumer.max.hold.ms": 7 * 24 * 3_600_000,
}


def of_topic(**overrides: object) -> TopicConfig:
    return topic_config(BrokerConfig(), {key.replace("_", "."): value for key, value in overrides.items()})


def test_defaults_are_those_of_kafka_4() -> None:
    config = TopicConfig()
    assert {
        key: getattr(config, declared.name) for key, declared in TOPIC_KEYS.items()
    } == KAFKA_4_DEFAULTS | OF_OUR_OWN
    assert topic_config(BrokerConfig.from_mapping({}), {}) == config
    assert BrokerConfig().num_partitions == 1
    assert BrokerConfig().log_cleaner_dedupe_buffer_bytes == 134217728


def test_config_survives_pickling_to_executors_and_cannot_be_changed() -> None:
    config = of_topic(cleanup_policy="compact")
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(AttributeError):
        config.segment_bytes = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("policy", "compact", "delete"),
    [
        ("compact", True, False),
        ("delete", False, True),
        ("compact,delete", True, True),
        (" delete , compact ", True, True),
        (["compact", "delete"], True, True),
        ("", False, False),
        ([], False, False),
    ],
)
def test_cleanup_policy_is_a_set_of_compact_and_delete(policy: object, compact: bool, delete: bool) -> None:
    config = of_topic(cleanup_policy=policy)
    assert (config.compact, config.delete) == (compact, delete)


@pytest.mark.parametrize("value", [1048576, "1048576", " 1048576 ", "+1048576"])
def test_numbers_may_be_text_or_yaml_scalars(value: object) -> None:
    assert of_topic(segment_bytes=value).segment_bytes == 1048576


def test_segments_may_be_as_small_as_one_kib_under_either_name() -> None:
    assert of_topic(segment_bytes=1024).segment_bytes == 1024
    assert of_topic(internal_segment_bytes="1024").segment_bytes == 1024
    with pytest.raises(
        ConfigError, match=r"segment\.bytes: expected a whole number of bytes, at least 1024; found 1023"
    ):
        of_topic(segment_bytes=1023)


def test_internal_segment_bytes_wins_over_segment_bytes_as_in_kafka() -> None:
    for overrides in (
        {"internal.segment.bytes": 2048, "segment.bytes": 1048576},
        {"segment.bytes": 1048576, "internal.segment.bytes": 2048},
    ):
        assert normalise_overrides(overrides) == {"segment.bytes": "2048"}


@pytest.mark.parametrize(
    ("broker", "retention_ms"),
    [
        ({}, 604800000),
        ({"log.retention.hours": 1}, 3600000),
        ({"log.retention.hours": 1, "log.retention.minutes": "2"}, 120000),
        ({"log.retention.hours": 1, "log.retention.minutes": 2, "log.retention.ms": 3}, 3),
        ({"log.retention.hours": 1, "log.retention.ms": -1}, -1),
        ({"log.retention.minutes": -1}, -1),
        ({"log.retention.hours": -5}, -1),
    ],
)
def test_broker_retention_in_ms_beats_minutes_beats_hours(broker: dict[str, object], retention_ms: int) -> None:
    assert topic_config(BrokerConfig.from_mapping(broker), {}).retention_ms == retention_ms


def test_broker_roll_and_jitter_in_ms_beat_hours() -> None:
    hours = BrokerConfig.from_mapping({"log.roll.hours": 24, "log.roll.jitter.hours": 1}).topic_defaults
    assert (hours.segment_ms, hours.segment_jitter_ms) == (86400000, 3600000)
    both = BrokerConfig.from_mapping({"log.roll.hours": 24, "log.roll.ms": 7, "log.roll.jitter.ms": 0}).topic_defaults
    assert (both.segment_ms, both.segment_jitter_ms) == (7, 0)


def test_a_topics_override_beats_the_brokers_default() -> None:
    broker = BrokerConfig.from_mapping(
        {"log.segment.bytes": 4096, "message.max.bytes": 2000, "log.cleanup.policy": "compact"}
    )
    config = topic_config(broker, {"segment.bytes": 8192})
    assert (config.segment_bytes, config.max_message_bytes, config.compact) == (8192, 2000, True)


def test_each_topic_key_has_a_broker_key_that_sets_its_default() -> None:
    assert {key.sets for key in BROKER_KEYS.values() if key.sets} == set(TOPIC_KEYS)


def test_unknown_key_names_place_value_and_nearest_key() -> None:
    with pytest.raises(ConfigError) as failure:
        topic_config(BrokerConfig(), {"cleanup.polcy": "compact"}, "topic flights")
    message = str(failure.value)
    assert message.startswith("topic flights, cleanup.polcy: ")
    assert "'compact'" in message
    assert "The nearest valid key is cleanup.policy." in message


def test_unknown_broker_key_names_nearest_broker_key() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown broker key num\.partition .*nearest valid key is num\.partitions\."
    ):
        BrokerConfig.from_mapping({"num.partition": 3})


def test_a_key_in_the_wrong_scope_is_sent_to_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"is a key of the broker.*The topic's key is retention\.ms\."):
        topic_config(BrokerConfig(), {"log.retention.hours": 1})
    with pytest.raises(ConfigError, match=r"is a key of a topic.*default of all topics is log\.retention\.ms\."):
        BrokerConfig.from_mapping({"retention.ms": 1})


@pytest.mark.parametrize("key", ["min.insync.replicas", "flush.messages", "preallocate", "remote.storage.enable"])
def test_kafka_keys_without_effect_here_are_refused_with_the_reason(key: str) -> None:
    with pytest.raises(ConfigError, match=r"Kafka's key .* would have no effect in Lakelog.*Remove the key") as failure:
        topic_config(BrokerConfig(), {key: "1"})
    assert KAFKA_KEYS_WITHOUT_USE[key] in str(failure.value)


def test_no_key_is_both_used_and_refused() -> None:
    assert not set(KAFKA_KEYS_WITHOUT_USE) & (set(TOPIC_KEYS) | set(BROKER_KEYS))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("segment.bytes", "64m", "a whole number of bytes, at least 1024; found '64m'"),
        ("segment.bytes", 2**31, "found 2147483648"),
        ("segment.bytes", 2048.0, "found 2048.0"),
        ("segment.bytes", True, "found true (true or false)"),
        ("segment.bytes", None, "found nothing"),
        ("segment.bytes", {"a": 1}, "found a section of keys"),
        ("segment.bytes", "1_048_576", "found '1_048_576'"),
        ("segment.ms", 0, "a whole number of ms, at least 1; found 0"),
        ("segment.ms", "9" * 5000, "a whole number of ms"),
        ("segment.index.bytes", 3, "at least 4; found 3"),
        ("retention.ms", -2, "at least 0 or -1; found -2"),
        ("compression.type", "none", "one of uncompressed, gzip, snappy, lz4, zstd, producer; found 'none'"),
        ("compression.gzip.level", 0, "1 to 9 or -1; found 0"),
        ("compression.lz4.level", 18, "1 to 17; found 18"),
        ("compression.zstd.level", 23, "-131072 to 22; found 23"),
        ("cleanup.policy", "compact,keep", "any of compact, delete, separated by commas; found 'compact,keep'"),
        ("cleanup.policy", "compact,", "found 'compact,'"),
        ("message.timestamp.type", "EventTime", "one of CreateTime, LogAppendTime; found 'EventTime'"),
        ("min.cleanable.dirty.ratio", "1.01", "a number, 0 to 1; found '1.01'"),
        ("min.cleanable.dirty.ratio", "nan", "found 'nan'"),
        ("max.compaction.lag.ms", 0, "at least 1; found 0"),
    ],
)
def test_a_wrong_value_names_key_value_and_what_is_allowed(key: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as failure:
        normalise_overrides({key: value}, "topic flights")
    assert failure.value.place == f"topic flights, {key}"
    assert expected in failure.value.problem


def test_broker_refuses_retention_of_zero_as_kafka_does() -> None:
    with pytest.raises(ConfigError, match=r"log\.retention\.ms: expected a whole number of ms, at least 1 or -1"):
        BrokerConfig.from_mapping({"log.retention.ms": 0})
    assert of_topic(retention_ms=0).retention_ms == 0


def test_compaction_lags_must_fit_each_other_across_topic_and_broker() -> None:
    broker = BrokerConfig.from_mapping({"log.cleaner.max.compaction.lag.ms": 1000})
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms: expected .* at most .* 1000; found 2000"):
        topic_config(broker, {"min.compaction.lag.ms": 2000})
    assert topic_config(broker, {"min.compaction.lag.ms": 1000}).min_compaction_lag_ms == 1000


def test_overrides_are_stored_as_canonical_text_in_order() -> None:
    overrides = {
        "retention.bytes": -7,
        "cleanup.policy": "delete,compact",
        "internal.segment.bytes": 2048,
        "min.cleanable.dirty.ratio": "0",
        "compression.type": " zstd ",
    }
    stored = normalise_overrides(overrides)
    assert list(stored.items()) == [
        ("cleanup.policy", "compact,delete"),
        ("compression.type", "zstd"),
        ("min.cleanable.dirty.ratio", "0.0"),
        ("retention.bytes", "-1"),
        ("segment.bytes", "2048"),
    ]
    assert normalise_overrides(stored) == stored
    assert topic_config(BrokerConfig(), stored) == topic_config(BrokerConfig(), overrides)


def test_every_key_is_described_with_a_sentence_and_a_cost() -> None:
    described = describe_keys()
    assert len({(key.scope, key.key) for key in described}) == len(described)
    for key in described:
        assert key.doc.endswith("."), key.key
        assert key.cost.endswith("."), key.key
        assert key.bound, key.key


def test_every_default_is_a_value_that_its_own_key_accepts() -> None:
    for key in describe_keys():
        if key.default is not None:
            assert key.parse(key.default, key.key) == key.default


@pytest.mark.parametrize("name", ["flights", "a.b_c-D9", "x" * 249, "...", "__consumer_offsets"])
def test_names_that_kafka_allows_are_allowed(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "flüge", "flights\n"])
def test_names_that_kafka_refuses_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopicNameError, match="topic"):
        check_topic_name(name)


def test_an_illegal_name_says_which_character_is_wrong() -> None:
    with pytest.raises(InvalidTopicNameError, match=r"'/' at position 2 is not allowed.*letters, digits"):
        check_topic_name("us/flights")
