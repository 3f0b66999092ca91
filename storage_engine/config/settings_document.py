"""Reads a YAML settings file into a tree of text values, and records the line of each value.

Jobs and the `lakelog` tool both use this module. Scalars stay text. The type of a value depends only on the declaration
of its key, even if the value comes from the environment or the command line. The special scalars of YAML 1.1 (`no` is
false, `010` is 8, `1:30` is 90) therefore have no effect. An empty value and `null` become None, which means that an
optional key is not set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from storage_engine.config import BrokerConfig, as_text, broker_key, check_text, shown
from storage_engine.errors import ConfigError

KeyPath = tuple[str, ...]
"""The keys from the top of the tree to a value. A dotted path would be ambiguous, because keys contain dots."""

_MOST_VALUES = 100_000
"""Limit for one file, after aliases are expanded. A few lines with nested aliases can expand to billions of values."""

_NAME = re.compile(r"'[^'<][^']+'")
_MAP, _SEQ, _STR, _NULL = (f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "null"))


class _TextLoader(yaml.SafeLoader):
    """Loads every scalar as text, except null."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML reads this attribute


_TextLoader.add_implicit_resolver(_NULL, re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])


class Document:
    """Settings before validation: nested dicts, lists and text, with the place of each value.

    Attributes:
        name: the name of the whole document in messages.
        values: the tree of values.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, object] = {}
        self._places: dict[KeyPath, str] = {}
        self._count = 0

    def place(self, path: KeyPath) -> str:
        """Return the place of a value, or of the nearest enclosing section that has a place."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._places:
                return self._places[path[:length]]
        return self.name

    def places(self) -> Iterator[tuple[str, str]]:
        """Return each dotted path with its place."""
        return ((".".join(path), place) for path, place in self._places.items())

    def section(self, path: KeyPath) -> Mapping[str, object]:
        """Return the keys of a section; an empty mapping if the section is missing.

        Raises:
            ConfigError: the value is not a section.
        """
        value: object = self.values
        for length, key in enumerate(path, 1):
            value = value.get(key) if isinstance(value, Mapping) else None
            if value is None:
                return {}
            if not isinstance(value, Mapping):
                raise ConfigError(self.place(path[:length]), f"expected a section of keys; found {section_kind(value)}")
        return value if isinstance(value, Mapping) else {}

    def put(self, path: KeyPath, value: object, place: str) -> None:
        """Set one value, and create the sections around it if they are missing.

        Raises:
            ConfigError: the value is text with a character that paths and Spark cannot contain.
        """
        if isinstance(value, str):
            check_text(value, place)
        section = self.values
        for length in range(1, len(path)):
            inner = dict(self.section(path[:length]))
            section[path[length - 1]] = inner
            section = inner
        section[path[-1]] = value
        self._places[path] = place

    def note(self, path: KeyPath, place: str) -> None:
        """Record the place of a value that is already in the tree."""
        self._places[path] = place

    def count_value(self, path: KeyPath) -> None:
        """Count one more value of the file.

        Raises:
            ConfigError: the file has too many values.
        """
        self._count += 1
        if self._count > _MOST_VALUES:
            raise ConfigError(
                self.place(path), f"the file has more than {_MOST_VALUES} values after its aliases (*name) are expanded"
            )


def read_document(file: Path, option: str = "--conf", *, may_be_empty: bool = False) -> Document:
    """Read a YAML file.

    Args:
        option: the option that names the file, for the error message.
        may_be_empty: a file without keys is a document without values. By default, it is an error.

    Raises:
        ConfigError: the file is missing, unreadable, not YAML, empty, not a mapping, or has a key twice.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            str(file), f"cannot be read: {error.strerror}", f"Give {option} the path of a YAML file."
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(str(file), f"is not UTF-8 text: byte {error.start} is {_offending_byte(error)}") from None
    try:
        node = yaml.compose(text, _TextLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        context = f"{error.context}, " if error.context else ""
        raise ConfigError(f"{file}{line}", f"is not YAML: {_without_names(f'{context}{error.problem}')}") from None
    except yaml.YAMLError as error:
        raise ConfigError(str(file), f"is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(str(file), "has sections or lists that are nested too deeply") from None
    if node is None or node.tag == _NULL:
        if may_be_empty:
            return Document(str(file))
        raise ConfigError(str(file), "has no settings", "Set at least root; docs/CONFIGURATION.md lists all settings.")
    if not isinstance(node, yaml.MappingNode):
        found = "a list" if isinstance(node, yaml.SequenceNode) else "text"
        raise ConfigError(
            f"{file}, line {_line(node)}", f"expected keys with values, as in `key: value`; found {found}"
        )
    document = Document(str(file))
    document.values.update(_mapping(node, (), (), document))
    return document


def read_broker(document: Document) -> BrokerConfig:
    """Return the configuration in the section `broker`.

    Raises:
        ConfigError: an unknown key, a wrong type, or a value that is not allowed. The message has the line.
    """
    return BrokerConfig.from_mapping(read_broker_section(document), document.place(("broker",)))


def read_broker_section(document: Document) -> dict[str, str]:
    """Return the keys of the section `broker`, each parsed separately, with their values as canonical text.

    Raises:
        ConfigError: an unknown key, a wrong type, or a value that is not allowed. The message has the line.
    """
    section = {}
    for key, value in document.section(("broker",)).items():
        place = document.place(("broker", key))
        section[key] = as_text(broker_key(key, value, place).parse(value, place))
    return section


def _offending_byte(error: UnicodeDecodeError) -> str:
    """Return the first byte that is not UTF-8, in hexadecimal."""
    return f"0x{error.object[error.start]:02x}"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _mapping(node: yaml.MappingNode, path: KeyPath, around: tuple[int, ...], document: Document) -> dict[str, object]:
    values: dict[str, object] = {}
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        place = f"{document.name}, line {_line(key_node)}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(place, "expected a key; found a list or a section")
        key = key_node.value
        check_text(key, place)
        inner = (*path, key)
        place = f"{place}, {'.'.join(inner)}"
        if key in lines:
            raise ConfigError(place, f"line {lines[key]} has the key {key} already", "Remove one of the two lines.")
        lines[key] = _line(key_node)
        document.note(inner, place)
        values[key] = _value(value_node, inner, (*around, id(node)), document)
    return values


def _value(node: yaml.Node, path: KeyPath, around: tuple[int, ...], document: Document) -> object:
    document.count_value(path)
    if id(node) in around:
        raise ConfigError(document.place(path), "the alias (*name) is inside the section that it refers to")
    if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
        return _mapping(node, path, around, document)
    if isinstance(node, yaml.SequenceNode) and node.tag == _SEQ:
        return [_value(item, path, (*around, id(node)), document) for item in node.value]
    if isinstance(node, yaml.ScalarNode) and node.tag in (_STR, _NULL):
        check_text(node.value, document.place(path))
        return None if node.tag == _NULL else node.value
    raise ConfigError(
        document.place(path), "a YAML tag (!name) has no meaning here", "Write the value without a tag, or in quotes."
    )


def section_kind(value: object) -> str:
    """The value of a section in words. The value itself may be a password at the place of the section."""
    return "text" if isinstance(value, str) else shown(value)


def _without_names(problem: str) -> str:
    """PyYAML's description of a mistake, without the names of aliases and tags: a password that is not in quotes and
    begins with `*`, `&` or `!` looks like such a name. Single characters, and kinds of tokens such as '<scalar>', stay.
    """
    return _NAME.sub("...", problem)
