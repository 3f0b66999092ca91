"""Finds the setting to which an environment variable or a --set refers.

All settings are known, so a variable or a --set is looked up in the list of all settings. The path of a --set is
compared with the path of each setting. The path of a setting is its keys, joined by dots. A key can contain dots, so a
path cannot simply be split.

The name of a variable is LAKELOG_ and the path of a setting in capitals. In the path, _ replaces each character that is
neither A-Z nor 0-9. If a path matches two topics, the topic with the longer name is chosen. Two variables are not
settings, and are passed over: LAKELOG_STORAGE_OPTIONS contains all storage options, and the engine reads it
(storage_engine.storage.storage_options). LAKELOG_UI_TOKEN is the token of `lakelog ui` (lakelog.ui.access.options).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pipeline.settings.export_settings import ExportSettings
from pipeline.settings.model import SECTIONS, TOPIC_ENTRY, section_in
from pipeline.settings.section import Section
from storage_engine.config import ALIASES, BROKER_KEYS, TOPIC_KEYS, nearest
from storage_engine.config.settings_document import Document, KeyPath
from storage_engine.errors import ConfigError, UsageError
from storage_engine.storage.storage_options import VARIABLE

PREFIX = "LAKELOG_"
STORAGE_OPTIONS: KeyPath = ("storage", "options")
"""The path of the storage options. Their values may be passwords, so no message contains them."""
_NOT_SETTINGS = frozenset({VARIABLE, "LAKELOG_UI_TOKEN"})
_OPTIONS: KeyPath = ("ingest", "source", "options")
_KEY = re.compile(r"[\w.-]*")
_TOPIC_KEYS = (*TOPIC_ENTRY, *TOPIC_KEYS, *ALIASES)


def known_paths(document: Document) -> list[KeyPath]:
    """The paths of all settings. Topics and source options are included only if the document names them."""
    paths: list[KeyPath] = [("root",), *(("broker", key) for key in BROKER_KEYS)]
    paths += (("topics", topic, key) for topic in document.section(("topics",)) for key in _TOPIC_KEYS)
    for name, section in SECTIONS.items():
        paths += _paths_in(section, (name,))
    for export in document.section(("exports",)):
        paths += _paths_in(ExportSettings, ("exports", export))
    return paths + [(*_OPTIONS, option) for option in document.section(_OPTIONS)]


def _paths_in(section: type[Section], path: KeyPath) -> Iterator[KeyPath]:
    for key, found in section.fields_by_key().items():
        inner = section_in(found.annotation)
        if inner:
            yield from _paths_in(inner, (*path, key))
        elif (*path, key) not in (_OPTIONS, STORAGE_OPTIONS):
            yield (*path, key)


def variable(path: KeyPath) -> str:
    """The environment variable of a setting: LAKELOG_ and the path in capitals.

    Every character except A-Z and 0-9 becomes _.
    """
    return PREFIX + re.sub(r"[^A-Z0-9]", "_", ".".join(path).upper())


def apply_environment(document: Document, environ: Mapping[str, str]) -> None:
    """Override values of the document with those of the LAKELOG_ variables. An empty variable counts as not set.

    Raises:
        ConfigError: a variable matches no setting, or matches two.
    """
    by_variable: dict[str, list[KeyPath]] = {}
    for path in known_paths(document):
        by_variable.setdefault(variable(path), []).append(path)
    for name, value in sorted(environ.items()):
        if not name.startswith(PREFIX) or not value or name in _NOT_SETTINGS:
            continue
        place = f"environment variable {name}"
        paths = by_variable.get(name, [])
        if not paths:
            raise ConfigError(place, "matches no setting", f"The nearest valid name is {nearest(name, by_variable)}.")
        if len(paths) > 1:
            both = " and ".join(".".join(path) for path in paths)
            raise ConfigError(place, f"matches both {both}", "Use --set, where the two keys have different names.")
        document.put(paths[0], value, place)


def apply_arguments(document: Document, arguments: Sequence[str]) -> None:
    """Override values of the document with those of --set. A later --set overrides an earlier one.

    Raises:
        UsageError: an argument is not KEY=VALUE, or its key is not a setting.
    """
    for argument in arguments:
        dotted, equals, value = argument.partition("=")
        dotted = dotted.strip()
        place = f"--set {dotted}"
        if not equals or not dotted:
            raise UsageError(
                "--set", f"expected KEY=VALUE; found {_only_key(argument)}", "For example ingest.batch.size=500000."
            )
        path = _resolve(document, dotted)
        if path is None:
            raise _no_setting(document, dotted, place)
        document.put(path, value, place)


def _only_key(argument: str) -> str:
    """The part of an argument that can be a key. The rest may be a password, as in `storage.options.x: password`."""
    found = _KEY.match(argument)
    key = found[0] if found else ""
    return repr(key) if key == argument else f"{key!r} and other text"


def _resolve(document: Document, dotted: str) -> KeyPath | None:
    """The setting that a dotted path names. The document need not name the topic or the source option of the setting
    yet.

    If the section is right and only the key is unknown, the path is returned, because the later check of the key has the
    better error message.
    """
    exact = [path for path in known_paths(document) if ".".join(path) == dotted]
    if exact:
        return max(exact, key=lambda path: len(path[1]) if len(path) > 1 else 0)
    section, _, rest = dotted.partition(".")
    if section == "broker" and rest:
        return ("broker", rest)
    option = dotted.removeprefix(".".join(_OPTIONS) + ".")
    if option not in (dotted, ""):
        named = {known.lower(): known for known in document.section(_OPTIONS)}
        return (*_OPTIONS, named.get(option.lower(), option))
    option = dotted.removeprefix(".".join(STORAGE_OPTIONS) + ".")
    if option not in (dotted, ""):
        return (*STORAGE_OPTIONS, option)
    if section == "exports":
        export, _, key = rest.partition(".")
        return ("exports", export, key) if key else None
    if section == "topics":
        keys = [key for key in _TOPIC_KEYS if rest.endswith(f".{key}") and rest != f".{key}"]
        if keys:
            key = max(keys, key=len)
            return ("topics", rest.removesuffix(f".{key}"), key)
        topics = [topic for topic in document.section(("topics",)) if rest.startswith(f"{topic}.")]
        if topics:
            topic = max(topics, key=len)
            return ("topics", topic, rest.removeprefix(f"{topic}."))
    return None


def _no_setting(document: Document, dotted: str, place: str) -> UsageError:
    known = [".".join(path) for path in known_paths(document)]
    inside = [path for path in known if path.startswith(f"{dotted}.")]
    if inside:
        return UsageError(place, "is a section, not a single setting", f"Set one of its keys, for example {inside[0]}.")
    return UsageError(place, "there is no such setting", f"The nearest valid key is {nearest(dotted, known)}.")
