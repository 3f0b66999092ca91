"""Reads the settings of topics from a YAML file: a section for each topic, with Kafka's keys.

orders: {cleanup.policy: compact, min.cleanable.dirty.ratio: 0.2}
clicks:
  cleanup.policy: [compact, delete]
  retention.ms: 86400000

A file without keys has settings for no topic. A topic without a value is an error: its settings may be comments, and
Kafka's defaults could delete its records.
"""

from __future__ import annotations

from pathlib import Path

from storage_engine.errors import ConfigError


def read_topic_configs(file: Path) -> dict[str, dict[str, str]]:
    """The settings in a file, by topic and by Kafka's key. Each value is checked.

    Raises:
        ConfigError: the file cannot be read, or a topic, a key or a value is not allowed. The error has the line.
    """
    from storage_engine.config import as_text, shown, topic_key
    from storage_engine.config.kafka_dir_keys import DIRECTORY_TOPIC_KEYS
    from storage_engine.config.settings_document import read_document
    from storage_engine.topic_name import is_topic_name

    document = read_document(file, "--topic-config", may_be_empty=True)
    configs: dict[str, dict[str, str]] = {}
    for topic in document.values:
        if not is_topic_name(topic):
            raise ConfigError(document.place((topic,)), f"expected the name of a topic; found {shown(topic)}")
        if document.values[topic] is None:
            raise ConfigError(
                document.place((topic,)), "found no settings",
                "Give the settings of the topic, or remove the topic. With {}, Kafka's defaults apply: retention deletes"
                " records after seven days.",
            )  # fmt: skip
        configs[topic] = {}
        for key, value in document.section((topic,)).items():
            place = document.place((topic, key))
            declared = DIRECTORY_TOPIC_KEYS.get(key) or topic_key(key, value, place)
            configs[topic][key] = as_text(declared.parse(value, place))
    return configs
