"""Opens a root: decides which storage its path names, and which broker settings apply there.

The command-line tool and `lakelog.open` open roots with `open_topics`. A job first reads all its settings, and then
uses `topics_under`. A settings file means the same for the tool, for `lakelog.open` and for a job: the section `broker`
of the file applies in the process that reads the file. If a root has no stored broker settings yet, this section is
stored when the first topic of the root is created.
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
from storage_engine.storage.storage_opening import open_storage
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
    """The topics under a root, with the broker settings that apply there.

    Args:
        root: a path; if it is None, the settings file names the root.
        conf: a settings file.
        warn: called for each setting in which this process differs from the root's stored settings.
        creates: the path need not be a root yet.
        makes_topics: the caller may create topics. If the root has no stored broker settings, the file's settings are
            stored.
        examines: the caller itself reports damage. So if the root's stored settings are damaged, Kafka's defaults
            apply.

    Raises:
        UsageError: no root is named, the root cannot be used, or the settings file is wrong.
        NoRootError: the path is not a root.
        CorruptionError: the root's stored broker settings are damaged.
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
    return topics_under(storage, broker, settings, (lambda _: None) if is_damaged else warn)


def topics_under(
    storage: Storage, broker: BrokerConfig, settings: BrokerSettings, warn: Callable[[str], None]
) -> Topics:
    """The topics under a root that is already open. From now on, the broker settings apply in this process.

    Args:
        broker: the effective broker settings.
        settings: the sources of these settings.
        warn: called for each setting in which this process differs from the root's stored settings.
    """
    for difference in settings.differences():
        warn(difference)
    choose_most_batch_bytes(broker.batch_max_uncompressed_bytes)
    return Topics(storage, broker, SystemClock(), settings.to_keep)


def open_root(
    root: str | None, conf: Path | None, *, creates: bool = False, makes_topics: bool = False, kept: bool = True
) -> tuple[Storage, BrokerSettings]:
    """The root's storage, and the sources of this run's broker settings. Raises the errors of open_topics.

    Args:
        kept: also read the root's stored settings.
    """
    section: dict[str, str] = {}
    places: dict[str, str] = {}
    run_settings: dict[str, str] = {}
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
        if value := os.environ.get(
            VARIABLE
        ):  # a process without a settings file reads no other setting from the environment
            places[KEY] = f"environment variable {VARIABLE}"
            run_settings[KEY] = as_text(BROKER_KEYS[KEY].parse(value, places[KEY]))
        if not root:
            raise ConfigError(
                "--root",
                "no root is given, so Lakelog does not know where the topics are",
                "Give --root or LAKELOG_ROOT.",
            )
        storage = open_storage(root)
    except ConfigError as error:
        raise UsageError(error.place, error.problem, error.remedy) from None
    if not creates:
        check_root(storage)
    settings = BrokerSettings(
        kept=read_broker_settings(storage) if kept else None,
        section=section,
        run_settings=section | run_settings,
        places=places,
        makes_topics=makes_topics,
    )
    return storage, settings
