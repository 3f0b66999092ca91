"""Declares the configuration keys of Kafka that have an effect without a broker. Each key is declared once.

A declaration has Kafka's name of the key, the Python name (with the unit at its end), the type, the default and the
allowed values. The declaration also has the broker's keys that set the default for all topics, a description of the
key, and the cost of changing the key. Parsing, validation, error messages and docs/CONFIGURATION.md use the
declarations.

    a topic's overrides              {"segment.bytes": "1048576"}   stored in the topic's state, as strings
      override the broker's keys     {"log.roll.hours": 24}         in the settings file, or stored in the root
      override Kafka's defaults                                     in the declarations

    config_key.py         the declaration of one key, and how its values are parsed
    topic_keys.py         the keys of a topic
    broker_keys.py        the keys of the broker, and the search for a key by its name
    refused_keys.py       Kafka's keys that would have no effect here, each with the reason
    resolving.py          the value of each key after overrides and defaults
    kafka_dir_keys.py     more keys, which only plain Kafka log directories have
    settings_document.py  a settings file, with the line of each value
    properties_file.py    a file in the format of Java's Properties, with the line of each value
    server_properties.py  the keys of a broker's server.properties that have an effect on log directories

All values are immutable, and all functions are thread-safe.
"""

from storage_engine.config.broker_keys import BROKER_KEYS, BrokerConfig, broker_key, topic_key
from storage_engine.config.config_key import INT_MAX, LONG_MAX, ConfigKey, Value, as_text, check_text, nearest, shown
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
    "check_text",
    "describe_keys",
    "nearest",
    "normalise_broker_settings",
    "normalise_overrides",
    "over_broker_settings",
    "shown",
    "topic_config",
    "topic_key",
]
