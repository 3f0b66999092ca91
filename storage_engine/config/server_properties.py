"""Reads a broker's server.properties, unchanged, for the work on the broker's log directories.

Each key is one of these: a key of the log directories, which has an effect; the name of a directory or of the node; or
a key that has no meaning without a running broker. Keys that have no meaning without a running broker are listed, but
not checked. Values that have an effect are checked, and an error names the file and the line.
"""

from __future__ import annotations

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
_TIERED = "remote.log.storage.system.enable"
_NAMES = (LOG_DIRS, LOG_DIR, METADATA_LOG_DIR, _NODE_ID, _BROKER_ID, _TIERED)
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


@dataclass(frozen=True)
class ServerProperties:
    """The part of a server.properties that has a meaning here.

    file: the path of the file.
    log_dirs: the log directories, in the order of the file.
    metadata_log_dir: the directory of __cluster_metadata; None if it is one of the log directories.
    node_id: None if the file does not name the node.
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

    def with_dynamic(self, settings: Mapping[str, str]) -> ServerProperties:
        """Return the same properties, with settings that were changed while the broker ran. These settings have
        priority over the file.
        """
        acting = {key: value for key, value in settings.items() if key in ACTING_KEYS}
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
        ConfigError: the file cannot be read, names no log directory, or has a value that is not allowed.
    """
    found = read_properties(file)
    settings = {}
    for key, (value, place) in found.items():
        if key in ACTING_KEYS:
            ACTING_KEYS[key].parse(value, place)
            settings[key] = value.strip()
    node = found.get(_NODE_ID) or found.get(_BROKER_ID)
    tiered = found.get(_TIERED)
    properties = ServerProperties(
        file=str(file),
        log_dirs=_log_dirs(file, found),
        metadata_log_dir=_path(found.get(METADATA_LOG_DIR)),
        node_id=None if node is None else _node_id(node),
        tiered=tiered is not None and tiered.value.strip().lower() == "true",
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
    value, place = found[key]
    check_text(value, place)
    paths = (
        [Path(path.strip()) for path in value.split(",") if path.strip()] if key == LOG_DIRS else [Path(value.strip())]
    )
    if not paths or paths == [Path()]:
        raise ConfigError(place, f"expected the paths of directories; found {shown(value)}")
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise ConfigError(place, f"names {twice} twice", "Name each directory once.")
    return tuple(paths)


def _path(found: Property | None) -> Path | None:
    if found is None or not found.value.strip():
        return None
    check_text(*found)
    return Path(found.value.strip())


def _node_id(found: Property) -> int:
    text = found.value.strip()
    number = int(text) if text.removeprefix("-").isdecimal() and len(text) <= 11 else -1
    if not 0 <= number <= INT_MAX:
        raise ConfigError(found.place, f"expected a whole number, at least 0; found {shown(found.value)}")
    return number
