"""Resolves the value of each key: a topic's overrides over the broker's settings over Kafka's defaults.

It also encodes settings as text (a topic's overrides in its state, the broker's in the root), and decides which of a
broker's keys applies if several set the same value. Pure functions.
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
    """What holds for a topic: its overrides over the broker's defaults over Kafka's.

    Args:
        overrides: a topic's keys in Kafka's names; values as YAML scalars or as text.
        place: what the overrides belong to, for error messages.

    Raises:
        ConfigError: an unknown key, a wrong type, a value outside its bound.
    """
    parsed = {TOPIC_KEYS[key].name: value for key, value in _parse_overrides(overrides, place).items()}
    config = dataclasses.replace(broker.topic_defaults, **parsed)  # type: ignore[arg-type]  # each from its own key
    check_lags(config, place)
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
