"""Opens a root: decides which storage its path means, and which settings of the broker apply there.

The command-line tool and `lakelog.open` open roots by this module. A settings file means the same as in a job: its section
`broker` applies in this process. A root that keeps no settings yet keeps that section from its first topic on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from storage_engine.clock import SystemClock
from storage_engine.config import BROKER_KEYS, BrokerConfig, as_text, shown
from storage_engine.errors import ConfigError, CorruptionError, UsageError
from storage_engine.record.batch_limit import KEY, VARIABLE, choose_most_batch_bytes
from storage_engine.storage import Storage
from storage_engine.storage.opening import open_storage
from storage_engine.topic.broker_settings import BrokerSettings, read_broker_settings
from storage_engine.topic.topics import Topics, check_root


def open_topics(
    root: str | None,
    conf: Path | None,
    warn: Callable[[str], None],
    *,
    creates: bool = False,
    makes_topics: bool = False,
    examines: bool = False,
) -> Topics:
    """The topics under a root, with the broker's settings that apply there.

    Args:
        root: a path; if it is None, the settings file names the root.
        conf: a settings file.
        warn: is told each setting by which this process differs from what the root keeps.
        creates: the path may be no root yet.
        makes_topics: the caller may make topics. Then a root that keeps no settings of the broker keeps the file's settings.
        examines: the caller reports damage itself. If the root's settings are damaged, Kafka's defaults apply.

    Raises:
        UsageError: no root is named, the root cannot be used, or the settings file is wrong.
        NoRootError: the path is not a root.
        CorruptionError: the broker's settings that the root keeps are damaged.
    """
    is_damaged = False
    try:
        storage, settings = open_root(root, conf, creates=creates, makes_topics=makes_topics)
    except CorruptionError:
        if not examines:
            raise
        storage, settings = open_root(root, conf, creates=creates, kept=False)
        is_damaged = True
    try:
        broker = BrokerConfig.from_mapping(settings.in_force)
    except ConfigError as error:
        raise UsageError(error.place, error.problem, error.remedy) from None
    choose_most_batch_bytes(broker.batch_max_uncompressed_bytes)
    for difference in () if is_damaged else settings.differences():
        warn(difference)
    return Topics(storage, broker, SystemClock(), settings.to_keep)


def open_root(
    root: str | None, conf: Path | None, *, creates: bool = False, makes_topics: bool = False, kept: bool = True
) -> tuple[Storage, BrokerSettings]:
    """The root's storage, and where this run's settings of the broker come from. Raises as open_topics does.

    Args:
        kept: also read the settings that the root keeps.
    """
    section: dict[str, str] = {}
    places: dict[str, str] = {}
    told: dict[str, str] = {}
    try:
        if conf is not None:
            from storage_engine.config.settings_document import read_broker, read_broker_section, read_document

            document = read_document(conf)
            read_broker(document)
            section = read_broker_section(document)
            places = {key: document.place(("broker", key)) for key in section}
            named = document.values.get("root")
            if named is not None and not isinstance(named, str):
                raise ConfigError(document.place(("root",)), f"expected a path; found {shown(named)}")
            root = root or named
        if value := os.environ.get(VARIABLE):  # the one key that processes without settings take from there, too
            places[KEY] = f"environment variable {VARIABLE}"
            told[KEY] = as_text(BROKER_KEYS[KEY].parse(value, places[KEY]))
        if not root:
            raise ConfigError(
                "--root", "no root is given, which says where the topics are", "Give --root or LAKELOG_ROOT."
            )
        storage = open_storage(root)
    except ConfigError as error:
        raise UsageError(error.place, error.problem, error.remedy) from None
    if not creates:
        check_root(storage)
    settings = BrokerSettings(
        kept=read_broker_settings(storage) if kept else None,
        section=section,
        told=section | told,
        places=places,
        makes_topics=makes_topics,
    )
    return storage, settings
