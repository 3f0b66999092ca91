"""Kafka's configuration, as far as it has a meaning without a broker. Each key is declared once.

A declaration gives Kafka's key, the Python name (which ends in the unit), the type, the default, the bound, the
broker's keys that set the default of all topics, what the key does and what changing it costs. Parsing, validation,
error messages and docs/CONFIGURATION.md come from it.

    a topic's overrides   {"segment.bytes": "1048576"}   stored in the topic's state, as strings
      over the broker's   {"log.roll.hours": 24}         from the settings file, or kept by the root
      over Kafka's defaults                              in the declarations

    config_key.py         what is declared about one key, and how a value is read by it
    topic_keys.py         the keys of a topic
    broker_keys.py        the broker's keys, and finding a key by its name
    refused_keys.py       Kafka's keys that would have no effect here, each with the reason
    resolving.py          what holds, of all that was set
    kafka_dir.py          what plain log directories have beyond that
    settings_document.py  a settings file, and where each value stands in it

All values are immutable; everything here may be used from any thread.
"""

from storage_engine.config.broker_keys import BROKER_KEYS, BrokerConfig, broker_key, topic_key
from storage_engine.config.config_key import INT_MAX, LONG_MAX, ConfigKey, Value, as_text, nearest, shown
from storage_engine.config.refused_keys import KAFKA_KEYS_WITHOUT_USE
from storage_engine.config.resolving import (
    acting_broker_key,
    broker_synonyms,
    describe_keys,
    normalise_broker_settings,
    normalise_overrides,
    over_broker_settings,
    topic_config,
)
from storage_engine.config.topic_keys import ALIASES, TOPIC_KEYS, TopicConfig

__all__ = [
    "ALIASES",
    "BROKER_KEYS",
    "INT_MAX",
    "KAFKA_KEYS_WITHOUT_USE",
    "LONG_MAX",
    "TOPIC_KEYS",
    "BrokerConfig",
    "ConfigKey",
    "TopicConfig",
    "Value",
    "acting_broker_key",
    "as_text",
    "broker_key",
    "broker_synonyms",
    "describe_keys",
    "nearest",
    "normalise_broker_settings",
    "normalise_overrides",
    "over_broker_settings",
    "shown",
    "topic_config",
    "topic_key",
]
