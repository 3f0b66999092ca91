"""Stores the broker's settings of a root, so that every job and command on the root uses the same settings.

    meta/@broker/settings.json    {"format":2,"id":"8d1f...","settings":{"log.retention.hours":"24"},"digest":"..."}

`settings` contains Kafka's broker keys with their values as text. `id` is different each time, so two documents never
have the same bytes: Storage.replace requires this. Documents of older versions have no `id`. The document is written
once. A run writes it if three conditions are met: the root has no document, the settings file of the run has a section
`broker`, and the run is about to create a topic. The document then contains this section. An ingest into an existing
topic also writes the document. If two runs with a section `broker` start together, one run writes the document first.
The second run ends with an error if its section has other settings. After the first write, only `lakelog broker alter`
changes the document, by one atomic replacement. If two operators change the document at the same time, the last change
wins. A topic's name cannot contain `@`, so no topic uses the folder meta/@broker/.

The settings of one run (a file, the environment, --set) override the root's settings in that run, key by key. If a
run uses another value than the root's value, the run prints a line with the difference.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from storage_engine.config import (
    BROKER_KEYS,
    BrokerConfig,
    acting_broker_key,
    as_text,
    broker_synonyms,
    normalise_broker_settings,
    over_broker_settings,
)
from storage_engine.errors import AlreadyExistsError, ConflictError, CorruptionError, NotFoundError
from storage_engine.storage import Storage
from storage_engine.topic.chain.documents import FORMAT, begin_root, decode_document, encode_document

BROKER_SETTINGS = "meta/@broker"
"""The folder of the document."""
SETTINGS_KEY = f"{BROKER_SETTINGS}/settings.json"
_WHAT = "the broker's settings of the root"
_REMEDY = (
    "`lakelog verify --repair` undoes one changed byte. Otherwise restore the file from a backup, or delete the file"
    " and set the keys again with `lakelog broker alter`."
)


def read_broker_settings(storage: Storage) -> dict[str, str] | None:
    """The stored settings of the root, by Kafka's key; None if no settings are stored yet.

    Raises:
        CorruptionError: the document is damaged.
        ConfigError: this version of Lakelog does not know a key or a value.
        StorageError: the storage refused or failed.
    """
    try:
        data = storage.read(SETTINGS_KEY)
    except NotFoundError:
        return None
    settings = decode_document(storage, SETTINGS_KEY, data, _WHAT, _REMEDY).get("settings")
    if not isinstance(settings, dict) or not all(isinstance(value, str) for value in settings.values()):
        raise CorruptionError(SETTINGS_KEY, 0, _WHAT, "settings that are not text", _REMEDY)
    return normalise_broker_settings(settings, f"{storage.uri}/{SETTINGS_KEY}")


def put_broker_settings(storage: Storage, settings: Mapping[str, str]) -> None:
    """Store these settings in the root, in place of all earlier settings.

    Raises:
        StorageError: the storage refused or failed.
    """
    begin_root(storage)
    storage.replace(SETTINGS_KEY, _encoded(settings))


def begin_broker_settings(storage: Storage, settings: Mapping[str, str]) -> None:
    """Store these settings in a root that has no stored settings yet.

    Raises:
        ConflictError: another run has stored different settings meanwhile.
        StorageError: the storage refused or failed.
    """
    begin_root(storage)
    try:
        storage.put_new(SETTINGS_KEY, _encoded(settings))
    except AlreadyExistsError:
        if read_broker_settings(storage) != settings:
            raise ConflictError(
                SETTINGS_KEY, "another run stored different settings of the broker at the same time",
                "Start again. The new run prints the differences.",
            ) from None  # fmt: skip


def _encoded(settings: Mapping[str, str]) -> bytes:
    document = {"format": FORMAT, "id": uuid.uuid4().hex, "settings": dict(sorted(settings.items()))}
    return encode_document(SETTINGS_KEY, json.dumps(document, separators=(",", ":")).encode())


@dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """The broker's settings of one run. All values are checked, and are text by Kafka's key.

    Attributes:
        kept: the settings that are stored in the root; None if there are none yet.
        section: the section `broker` of the settings file. It is stored if the root has no settings.
        run_settings: the settings of this run: the section, overridden by the environment and the command line.
        places: the source of each key in `run_settings`, for messages.
        makes_topics: whether the run may create topics. Only such a run stores the section.
    """

    kept: Mapping[str, str] | None = None
    section: Mapping[str, str] = field(default_factory=dict)
    run_settings: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    makes_topics: bool = False

    @property
    def in_force(self) -> dict[str, str]:
        """The effective settings of this run."""
        return over_broker_settings(self.kept or {}, self.run_settings)

    @property
    def to_keep(self) -> Mapping[str, str]:
        """The settings that this run stores in the root with its first topic; empty if the root has stored settings."""
        return self.section if self.makes_topics and self.kept is None else {}

    def differences(self) -> Iterator[str]:
        """A line for each setting of this run that differs from the stored settings."""
        kept = self.kept or self.to_keep
        ours, theirs = BrokerConfig.from_mapping(self.in_force), BrokerConfig.from_mapping(kept)
        for key, value in self.run_settings.items():
            if acting_broker_key(self.run_settings, key) == key and ours.value_of(key) != theirs.value_of(key):
                yield (
                    f"{self.places[key]}: {key}={value} is used in this run only. The root has {_shown(kept, key)};"
                    f" `lakelog broker alter --config {key}={value}` stores this value in the root"
                )


def effective_settings(settings: BrokerSettings) -> Iterator[tuple[str, str, str]]:
    """Key, value and source of each setting. The source is `environment`, `file`, `root` or `default`. Of several keys
    for one setting, only the key with the highest priority is returned."""
    in_force = settings.in_force
    for key, declared in BROKER_KEYS.items():
        acting = acting_broker_key(in_force, key)
        if acting is None and declared.default is not None:
            yield key, as_text(declared.default), "default"
        elif acting == key and key in settings.run_settings:
            yield (
                key,
                in_force[key],
                "file" if settings.run_settings[key] == settings.section.get(key) else "environment",
            )
        elif acting == key:
            yield key, in_force[key], "root"


def _shown(kept: Mapping[str, str], key: str) -> str:
    acting = acting_broker_key(kept, key)
    if acting is not None:
        return f"{acting}={kept[acting]}"
    *_, last = broker_synonyms(key)
    default = BROKER_KEYS[last].default
    assert default is not None, "of synonyms the last one has a default"
    return f"the default, {last}={as_text(default)}"
