"""Resolves the value of each key. A topic's override comes first, then the broker's setting, and then Kafka's default.

This module also encodes settings as text: a topic's overrides are stored in the topic's state, and the broker's
settings are stored in the root. If several of the broker's keys set the same value, this module decides which key is
used. All functions are pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from storage_engine.config.broker_keys import BROKER_KEYS, BrokerConfig, topic_key
from storage_engine.config.config_key import ConfigKey, Value, as_text
from storage_engine.config.topic_keys import ALIASES, TOPIC_KEYS, TopicConfig, check_lags


def topic_config(
    broker: BrokerConfig, overrides: Mapping[str, object], place: str = "topic configuration"
) -> TopicConfig:
    """Return the configuration of a topic: its overrides, else the broker's settings, else Kafka's defaults.

    Args:
        overrides: values of a topic's keys, by Kafka's names, as YAML scalars or as text.
        place: the name of the overrides in error messages.

    Raises:
        ConfigError: an unknown key, a wrong type, or a value that is not allowed.
    """
    parsed = {TOPIC_KEYS[key].name: value for key, value in _parse_overrides(overrides, place).items()}
    config = dataclasses.replace(broker.topic_defaults, **parsed)  # type: ignore[arg-type]  # each from its own key
    check_lags(config, place)
    return config


def normalise_overrides(overrides: Mapping[str, object], place: str = "topic configuration") -> dict[str, str]:
    """Return overrides as a topic's state stores them: checked, sorted by canonical key, with values as canonical text.

    Raises:
        ConfigError: an unknown key, a wrong type, or a value that is not allowed.
    """
    topic_config(BrokerConfig(), overrides, place)
    return {key: as_text(value) for key, value in _parse_overrides(overrides, place).items()}


def normalise_broker_settings(settings: Mapping[str, object], place: str = "broker configuration") -> dict[str, str]:
    """Return the broker's settings as a root stores them: checked, sorted by key, with values as canonical text.

    Raises:
        ConfigError: an unknown key, a wrong type, or a value that is not allowed.
    """
    BrokerConfig.from_mapping(settings, place)
    return {key: as_text(BROKER_KEYS[key].parse(value, place)) for key, value in sorted(settings.items())}


def broker_synonyms(key: str) -> tuple[str, ...]:
    """Return the broker's keys that set the same value, including the key itself. Only the first of them that is set
    has an effect.
    """
    sets = BROKER_KEYS[key].sets
    return tuple(synonym.key for synonym in TOPIC_KEYS[sets].synonyms) if sets else (key,)


def acting_broker_key(settings: Mapping[str, object], key: str) -> str | None:
    """Return the key that has an effect in these settings: the given key, or one of its synonyms. None if none of these
    keys is set.
    """
    return next((each for each in broker_synonyms(key) if each in settings), None)


def over_broker_settings(lower: Mapping[str, str], upper: Mapping[str, str]) -> dict[str, str]:
    """Merge two sets of settings. A key in `upper` replaces the key and its synonyms in `lower`."""
    hidden = {synonym for key in upper for synonym in broker_synonyms(key)}
    return {key: value for key, value in lower.items() if key not in hidden} | dict(upper)


def describe_keys() -> tuple[ConfigKey, ...]:
    """Return all keys in the order of their declaration, the topic's keys first."""
    return (*TOPIC_KEYS.values(), *BROKER_KEYS.values())


def _parse_overrides(overrides: Mapping[str, object], place: str) -> dict[str, Value]:
    """Parse overrides; returns the values by canonical key, sorted."""
    parsed = {
        key: topic_key(key, value, f"{place}, {key}").parse(value, f"{place}, {key}")
        for key, value in overrides.items()
    }
    for alias, canonical in ALIASES.items():
        if alias in parsed:
            parsed[canonical] = parsed.pop(alias)
    return dict(sorted(parsed.items()))
