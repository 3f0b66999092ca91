"""Reads a broker's server.properties, unchanged, for the work on the broker's log directories.

Each key is one of these: a key of the log directories, which has an effect; the name of a directory or of the node; or
a key that has no meaning without a running broker. Keys that have no meaning without a running broker are listed, but
not checked. Values that have an effect are checked, and an error names the file and the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from storage_engine.config.broker_keys import BROKER_KEYS
from storage_engine.config.config_key import INT_MAX, ConfigKey, check_text, shown
from storage_engine.config.kafka_dir_keys import DIRECTORY_BROKER_KEYS, LogManagerConfig
from storage_engine.config.properties_file import Property, read_properties
from storage_engine.errors import ConfigError

LOG_DIRS, LOG_DIR, METADATA_LOG_DIR = "log.dirs", "log.dir", "metadata.log.dir"
_NODE_ID, _BROKER_ID = "node.id", "broker.id"
_TIERED = ConfigKey(
    key="remote.log.storage.system.enable", scope="broker", kind="boolean", default=False, cost="",
    doc="Topics may have segments in a remote storage.",
)  # fmt: skip
_PROVIDERS = "config.providers"
_PROVIDED = re.compile(r"\$\{[^}]+:[^}]*\}")
_NAMES = (LOG_DIRS, LOG_DIR, METADATA_LOG_DIR, _NODE_ID, _BROKER_ID, _TIERED.key)
_OF_ONE_REPLICA = "replica.high.watermark.checkpoint.interval.ms"
"""This key has no effect, because Lakelog does not write a broker's high watermarks: only the broker's replicas
together know them.
"""

ACTING_KEYS: Final[Mapping[str, ConfigKey]] = {
    **{
        key: declared
        for key, declared in BROKER_KEYS.items()
        if declared.sets or key in ("log.cleaner.dedupe.buffer.size", "log.cleaner.io.max.bytes.per.second")
    },
    **{key: declared for key, declared in DIRECTORY_BROKER_KEYS.items() if key != _OF_ONE_REPLICA},
}
"""The broker's keys that have an effect on log directories, by Kafka's name."""
STATIC_KEYS: Final = frozenset({
    "log.roll.hours", "log.roll.jitter.hours", "log.retention.minutes", "log.retention.hours", "log.cleaner.enable",
    "log.flush.scheduler.interval.ms", "log.flush.offset.checkpoint.interval.ms",
    "log.flush.start.offset.checkpoint.interval.ms", "log.retention.check.interval.ms", "log.initial.task.delay.ms",
})  # fmt: skip
"""Those of them that a broker ignores in __cluster_metadata, because they cannot change while it runs
(DynamicBrokerConfig)."""


@dataclass(frozen=True)
class ServerProperties:
    """The part of a server.properties that has a meaning here.

    file: the path of the file.
    log_dirs: the log directories, in the order of the file.
    metadata_log_dir: the directory of __cluster_metadata; None if it is one of the log directories.
    node_id: None if the file does not name the node, for example because the broker's options name it.
    tiered: whether topics may have segments in a remote storage.
    settings: the values that have an effect, by Kafka's keys.
    ignored: the keys that have no meaning here, sorted.
    """

    file: str
    log_dirs: tuple[Path, ...]
    metadata_log_dir: Path | None
    node_id: int | None
    tiered: bool
    settings: Mapping[str, str]
    ignored: tuple[str, ...]

    def with_dynamic(self, settings: Mapping[str, str], place: str) -> ServerProperties:
        """Return the same properties, with settings that were changed while the broker ran. These settings have
        priority over the file. STATIC_KEYS have no effect.

        Args:
            place: where the settings are.

        Raises:
            ConfigError: a value is not allowed. A broker ignores such a value, and uses the one of the file.
        """
        acting = {key: value for key, value in settings.items() if key in ACTING_KEYS and key not in STATIC_KEYS}
        for key, value in acting.items():
            ACTING_KEYS[key].parse(value, f"{place}, {key}")
        return replace(self, settings={**self.settings, **acting})

    def log_manager_config(self) -> LogManagerConfig:
        """The configuration of a LogManager.

        Raises:
            ConfigError: a setting that was changed while the broker ran is not allowed here.
        """
        return LogManagerConfig.from_mapping(self.settings, self.file)


def read_server_properties(file: Path) -> ServerProperties:
    """Read a server.properties.

    Raises:
        ConfigError: the file cannot be read, names no log directory, or has a value that is not allowed, or that only a
            broker can look up.
    """
    found = read_properties(file)
    settings = {}
    for key, (value, place) in found.items():
        if key in ACTING_KEYS or key in _NAMES:
            _refuse_provided(found, key)
        if key in ACTING_KEYS:
            ACTING_KEYS[key].parse(value, place)
            settings[key] = value.strip()
    node = found.get(_NODE_ID) or found.get(_BROKER_ID)
    properties = ServerProperties(
        file=str(file),
        log_dirs=_log_dirs(file, found),
        metadata_log_dir=_metadata_log_dir(found),
        node_id=None if node is None else _node_id(node, is_broker_id=_NODE_ID not in found),
        tiered=_TIERED.key in found and bool(_TIERED.parse(*found[_TIERED.key])),
        settings=settings,
        ignored=tuple(sorted(key for key in found if key not in ACTING_KEYS and key not in _NAMES)),
    )
    properties.log_manager_config()
    return properties


def _log_dirs(file: Path, found: Mapping[str, Property]) -> tuple[Path, ...]:
    key = LOG_DIRS if LOG_DIRS in found else LOG_DIR
    if key not in found:
        raise ConfigError(
            str(file), f"has neither {LOG_DIRS} nor {LOG_DIR}", f"Set {LOG_DIRS} to the broker's log directories."
        )
    value, place = _text(found, key)
    paths = [Path(path.strip()) for path in value.split(",") if path.strip()]
    if not paths:
        raise ConfigError(place, f"expected the paths of directories; found {shown(value)}")
    real = [path.resolve() for path in paths]
    twice = next((path for path, each in zip(paths, real, strict=True) if real.count(each) > 1), None)
    if twice is not None:
        raise ConfigError(place, f"names {twice} twice", "Name each directory once.")
    return tuple(paths)


def _metadata_log_dir(found: Mapping[str, Property]) -> Path | None:
    if METADATA_LOG_DIR not in found:
        return None
    value = _text(found, METADATA_LOG_DIR).value.strip()
    return Path(value) if value else None


def _text(found: Mapping[str, Property], key: str) -> Property:
    """A property that is no number."""
    value, place = found[key]
    check_text(value, place)
    return found[key]


def _refuse_provided(found: Mapping[str, Property], key: str) -> None:
    """With config providers, a broker replaces a part such as ${env:NAME}."""
    value, place = found[key]
    if _PROVIDERS in found and _PROVIDED.search(value) is not None:
        raise ConfigError(
            place, f"only a broker can look up a value of {_PROVIDERS}; found {shown(value)}",
            "Write the value itself, in a copy of the file.",
        )  # fmt: skip


def _node_id(found: Property, *, is_broker_id: bool) -> int | None:
    """The node's id. None for a negative broker.id: then ZooKeeper has given the broker its id."""
    text = found.value.strip()
    if is_broker_id and text.startswith("-") and text[1:].isdecimal():
        return None
    number = int(text) if text.isdecimal() and len(text) <= 10 else -1
    if not 0 <= number <= INT_MAX:
        raise ConfigError(found.place, f"expected a whole number, at least 0; found {shown(found.value)}")
    return number
