"""Loads the settings from a file, the environment and the command line, and checks them together.

--set overrides the environment, and the environment overrides the file. --root overrides LAKELOG_ROOT, and LAKELOG_ROOT
overrides the file. Settings from the command line, the environment and the file override the broker settings that the
root stores. Loading stops at the first mistake, with a message that names the file and line, the variable or the
argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from pipeline.settings.model import TOPIC_ENTRY, Settings, TopicDefinition, section_in
from pipeline.settings.overlays import STORAGE_OPTIONS, apply_arguments, apply_environment
from pipeline.settings.section import Section
from pipeline.settings.values import noun
from storage_engine.config import (
    BROKER_KEYS,
    KAFKA_KEYS_WITHOUT_USE,
    TOPIC_KEYS,
    BrokerConfig,
    ConfigKey,
    as_text,
    nearest,
    normalise_overrides,
    shown,
    topic_config,
    topic_key,
)
from storage_engine.config.settings_document import (
    Document,
    KeyPath,
    read_broker,
    read_broker_section,
    read_document,
    section_kind,
)
from storage_engine.errors import ConfigError, InvalidTopicNameError, UsageError
from storage_engine.topic.broker_settings import BrokerSettings
from storage_engine.topic_name import check_topic_name


def load_settings(
    conf: Path | None,
    overrides: Sequence[str] = (),
    root: str | None = None,
    environ: Mapping[str, str] | None = None,
    kept_by: Callable[[Settings], Mapping[str, str] | None] = lambda _: None,
    *,
    options: Mapping[KeyPath, tuple[object, str]] = {},
    makes_topics: bool = False,
) -> Settings:
    """Read the settings, apply the overrides, and check the result.

    Args:
        conf: a YAML file; None: there is no file.
        overrides: the values of --set, each KEY=VALUE.
        root: the value of --root.
        environ: the environment variables.
        kept_by: returns the broker settings that the root of the settings stores, or None if it stores none.
        options: by path, a value that another option of the command line gives, and the name of this option.
        makes_topics: the run may create topics. If the root then has no broker settings, it stores those of the file.

    Raises:
        UsageError: an argument, a variable or the file is wrong.
        LogError: kept_by raised it.
    """
    try:
        document = read_document(conf) if conf else Document("settings")
        file = Document(document.name)
        for key, value in document.section(("broker",)).items():
            file.put(("broker", key), value, document.place(("broker", key)))
        apply_environment(document, environ or {})
        for path, (value, option) in options.items():
            document.put(path, value, option)
        described = set(document.section(("topics",)))
        apply_arguments(document, overrides)
        if root is not None:
            document.put(("root",), root, "--root")
        settings = _settings(document)
        _check_new_topics(settings, described)
    except ConfigError as error:
        raise UsageError(error.place, error.problem, error.remedy) from None
    kept = kept_by(settings)
    try:
        run_settings = read_broker_section(document)
        places = {key: document.place(("broker", key)) for key in run_settings}
        section = read_broker_section(file) if makes_topics and kept is None else {}
        broker = BrokerSettings(
            kept=kept, section=section, run_settings=run_settings, places=places, makes_topics=makes_topics
        )
        BrokerConfig.from_mapping(section, document.place(("broker",)))
        if kept:
            for key, value in broker.in_force.items():
                if key not in run_settings:
                    document.put(("broker", key), value, f"broker settings stored in {settings.root}, {key}")
            settings = _settings(document)
    except ConfigError as error:
        raise UsageError(error.place, error.problem, error.remedy) from None
    settings.remember_broker_settings(broker)
    return settings


def _settings(document: Document) -> Settings:
    values = {key: value for key, value in document.values.items() if value is not None}
    values["broker"] = broker = read_broker(document)
    values["topics"] = {name: _topic(document, name, broker) for name in document.section(("topics",))}
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise _first_mistake(document, error) from None
    settings.remember_places(document.name, document.places())
    return settings


def _topic(document: Document, name: str, broker: BrokerConfig) -> TopicDefinition:
    path: KeyPath = ("topics", name)
    try:
        check_topic_name(name)
    except InvalidTopicNameError as error:
        raise ConfigError(document.place(path), error.problem, error.remedy) from None
    entry = document.section(path)
    overrides = {key: value for key, value in entry.items() if key not in TOPIC_ENTRY}
    for key, value in overrides.items():
        place = document.place((*path, key))
        _topic_key(key, value, place).parse(value, place)
    topic_config(broker, overrides, document.place(path))
    partitions = entry.get("partitions")
    schema, key_schema = (
        _text(document, (*path, key), "the name of a model, or module:Class, or a file, or columns in Spark's DDL")
        for key in ("schema", "key.schema")
    )
    registry, key_registry = (
        _text(document, (*path, key), "the URL of a schema registry, or a folder")
        for key in ("schema.registry", "key.schema.registry")
    )
    given = broker.num_partitions
    if partitions is not None:
        number = BROKER_KEYS["num.partitions"].parse(partitions, document.place((*path, "partitions")))
        given = int(as_text(number))
    return TopicDefinition(
        partitions=given,
        partitions_given=partitions is not None,
        overrides=normalise_overrides(overrides, document.place(path)),
        schema=schema,
        registry=registry,
        key_schema=key_schema,
        key_registry=key_registry,
    )


def _text(document: Document, path: KeyPath, expected: str) -> str | None:
    """The text of a key of a topic; None if the key is not there."""
    found = document.section(path[:-1]).get(path[-1])
    if found is None:
        return None
    if isinstance(found, str) and (text := found.strip()):
        return text
    # A registry's URL may contain a password, so its text is not shown.
    shown_value = "" if path[-1].endswith("registry") else f"; found {shown(found)}"
    raise ConfigError(document.place(path), f"expected {expected}{shown_value}")


def _topic_key(key: str, value: object, place: str) -> ConfigKey:
    """The topic key of Kafka with this name. If there is none, the error suggests the nearest valid key of a topic."""
    candidates = (*TOPIC_ENTRY, *TOPIC_KEYS)
    if key in KAFKA_KEYS_WITHOUT_USE or key in BROKER_KEYS or nearest(key, candidates) not in TOPIC_ENTRY:
        return topic_key(key, value, place)
    problem = f"unknown topic key {key} with value {shown(value)}"
    raise ConfigError(place, problem, f"The nearest valid key is {nearest(key, candidates)}.")


def _check_new_topics(settings: Settings, described: set[str]) -> None:
    """Refuse a topic that only --set names: the name is probably mistyped. A topic that a section names is accepted."""
    named = {export.topic for export in (settings.export, *settings.exports.values()) if export}
    named.update(settings.ingest.ingest_topics if settings.ingest else ())
    for job in (settings.retention, settings.compaction, settings.maintenance):
        named.update(job.topics or ())
    for topic in settings.topics:
        if topic not in described and topic not in named:
            others = described | named
            remedy = f"Did you mean {nearest(topic, others)}?" if others else f"Also set ingest.topic={topic}."
            raise UsageError(
                "--set",
                f"the topic {topic} is named neither in the section `topics` nor in the section of a job",
                remedy,
            )


def _only_variable(document: Document, section: KeyPath) -> str:
    """The environment variable without which the settings would not have a section; empty if there is no such variable."""
    prefix = f"{'.'.join(section)}."
    places = [place for path, place in document.places() if path.startswith(prefix)]
    are_variables = all(place.startswith("environment variable ") for place in places)
    return places[0] if places and are_variables else ""


def _first_mistake(document: Document, error: ValidationError) -> ConfigError:
    """The mistake to report: an unknown key first, because it is usually a misspelling of a key that is missing."""
    mistakes = [found for found in error.errors() if found["type"] != "default_factory_not_called"]
    found = min(mistakes, key=lambda each: each["type"] != "extra_forbidden")
    path = tuple(key for key in found["loc"] if isinstance(key, str))
    place = document.place(path)
    if found["type"] == "mistake":
        return ConfigError(place, found["ctx"]["problem"], found["ctx"]["remedy"])
    section: type[Section] | None = Settings
    if path[:1] == ("exports",) and len(path) == 2:
        return ConfigError(place, f"expected a section with the keys of an export; found {shown(found['input'])}")
    for key in path[:-1] if path[:1] != ("exports",) else ("exports", *path[2:-1]):
        around = section.fields_by_key().get(key) if section else None
        section = section_in(around.annotation) if around else None
    fields = section.fields_by_key() if section else {}
    field = fields.get(path[-1])
    if found["type"] == "extra_forbidden":
        meant = ".".join((*path[:-1], nearest(path[-1], fields)))
        return ConfigError(place, f"unknown key {path[-1]}", f"The nearest valid key is {meant}.")
    if found["type"] == "missing" and path == ("root",):
        problem = "the setting root is missing: the directory of all topics, checkpoints and tables"
        return ConfigError(
            place, problem, "Set root in the settings file, set LAKELOG_ROOT in the environment, or use --root."
        )
    if found["type"] == "missing" and (named := _only_variable(document, path[:-1])):
        return ConfigError(
            named, f"needs the key {'.'.join(path)}, which is missing",
            "Set the variable only for jobs whose settings have this key.",
        )  # fmt: skip
    if found["type"] == "missing":
        return ConfigError(place, f"the key {'.'.join(path)} is missing", (field and field.description) or "")
    expected = noun(field) if field else "text"
    if path[:2] == STORAGE_OPTIONS or path[-1].endswith("password"):
        return ConfigError(place, f"expected {expected}; the value is not shown, because it may be a password")
    if field and section_in(field.annotation):  # the value may be the password of an option inside the section
        return ConfigError(place, f"expected {expected}; found {section_kind(found['input'])}")
    return ConfigError(place, f"expected {expected}; found {shown(found['input'])}")
