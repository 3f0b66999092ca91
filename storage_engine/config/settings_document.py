"""Reads a settings file as a tree of text with the place of each value. Jobs and the `lakelog` tool read it alike.

Scalars stay text, as they were written: the declaration of a key gives its type, whether the value comes from a file,
from the environment or from the command line. So YAML 1.1's surprises (`no` is false, `010` is 8, `1:30` is 90) do not
reach the settings. An empty value and `null` are None: an optional key then counts as left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from storage_engine.config import BrokerConfig, as_text, broker_key, shown
from storage_engine.errors import ConfigError

KeyPath = tuple[str, ...]
"""The keys from the top to a value. Keys hold dots themselves, so a joined path says less than this."""

_MOST_VALUES = 100_000
"""Of a file, aliases written out. Aliases of aliases can make billions of a few lines."""

_NO_CHARACTER = re.compile(r"[\0\ud800-\udfff]")
"""NUL, which no path holds, and half characters, which no UTF-8 holds; Python has them for bytes that are no text."""

_MAP, _SEQ, _STR, _NULL = (f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "null"))


class _TextLoader(yaml.SafeLoader):
    """Resolves nothing but null."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  (PyYAML's own name and type)


_TextLoader.add_implicit_resolver(_NULL, re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])


class Document:
    """Settings before they are checked: nested dicts, lists and text, and the place of each.

    Attributes:
        name: what the settings as a whole are called in messages.
        values: the tree.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, object] = {}
        self._places: dict[KeyPath, str] = {}
        self._count = 0

    def place(self, path: KeyPath) -> str:
        """Where the value stands, or the nearest section around it that stands anywhere."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._places:
                return self._places[path[:length]]
        return self.name

    def places(self) -> Iterator[tuple[str, str]]:
        """Each dotted path with its place."""
        return ((".".join(path), place) for path, place in self._places.items())

    def section(self, path: KeyPath) -> Mapping[str, object]:
        """The keys of a section; none where it was left out.

        Raises:
            ConfigError: something else than a section stands there.
        """
        value: object = self.values
        for length, key in enumerate(path, 1):
            value = value.get(key) if isinstance(value, Mapping) else None
            if value is None:
                return {}
            if not isinstance(value, Mapping):
                raise ConfigError(self.place(path[:length]), f"expected a section of keys; found {shown(value)}")
        return value if isinstance(value, Mapping) else {}

    def put(self, path: KeyPath, value: object, place: str) -> None:
        """Set one value, making the sections around it.

        Raises:
            ConfigError: the value is text with a character that neither files nor Spark take.
        """
        if isinstance(value, str):
            _check_text(value, place)
        section = self.values
        for length in range(1, len(path)):
            inner = dict(self.section(path[:length]))
            section[path[length - 1]] = inner
            section = inner
        section[path[-1]] = value
        self._places[path] = place

    def note(self, path: KeyPath, place: str) -> None:
        """Remember where the value stands that is already in the tree."""
        self._places[path] = place

    def count_value(self, path: KeyPath) -> None:
        """Count one more value that is read from a file.

        Raises:
            ConfigError: there are more than settings can have.
        """
        self._count += 1
        if self._count > _MOST_VALUES:
            raise ConfigError(
                self.place(path), f"the file holds more than {_MOST_VALUES} values, aliases (*name) written out"
            )


def read_document(file: Path) -> Document:
    """Read a YAML file.

    Raises:
        ConfigError: it is missing, unreadable, not YAML, empty, not a mapping, or says a key twice.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            str(file), f"cannot be read: {error.strerror}", "Give --conf the path of a YAML file."
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(str(file), f"is not UTF-8 text: byte {error.start} is {_offending_byte(error)}") from None
    try:
        node = yaml.compose(text, _TextLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        context = f"{error.context}, " if error.context else ""
        raise ConfigError(f"{file}{line}", f"is not YAML: {context}{error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(str(file), f"is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(str(file), "holds sections or lists that are nested too deeply") from None
    if node is None or node.tag == _NULL:
        raise ConfigError(
            str(file), "holds no settings", "docs/CONFIGURATION.md lists them; root is the first to give."
        )
    if not isinstance(node, yaml.MappingNode):
        found = "a list" if isinstance(node, yaml.SequenceNode) else "text"
        raise ConfigError(
            f"{file}, line {_line(node)}", f"expected keys with values, as in `root: ./log`; found {found}"
        )
    document = Document(str(file))
    document.values.update(_mapping(node, (), (), document))
    return document


def read_broker(document: Document) -> BrokerConfig:
    """What the broker section says.

    Raises:
        ConfigError: an unknown key, a wrong type, a value outside its bound; names the line.
    """
    return BrokerConfig.from_mapping(read_broker_section(document), document.place(("broker",)))


def read_broker_section(document: Document) -> dict[str, str]:
    """The keys of the broker section, each checked by itself, with their values in canonical text.

    Raises:
        ConfigError: an unknown key, a wrong type, a value outside its bound; names the line.
    """
    section = {}
    for key, value in document.section(("broker",)).items():
        place = document.place(("broker", key))
        section[key] = as_text(broker_key(key, value, place).parse(value, place))
    return section


def _offending_byte(error: UnicodeDecodeError) -> str:
    """The byte that is no UTF-8, in hexadecimal."""
    return f"0x{error.object[error.start]:02x}"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _mapping(node: yaml.MappingNode, path: KeyPath, around: tuple[int, ...], document: Document) -> dict[str, object]:
    values: dict[str, object] = {}
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        place = f"{document.name}, line {_line(key_node)}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(place, "expected a key; found a list or a section in its place")
        key = key_node.value
        _check_text(key, place)
        inner = (*path, key)
        place = f"{place}, {'.'.join(inner)}"
        if key in lines:
            raise ConfigError(place, f"the key {key} stands in line {lines[key]} already", "Keep one of the two.")
        lines[key] = _line(key_node)
        document.note(inner, place)
        values[key] = _value(value_node, inner, (*around, id(node)), document)
    return values


def _value(node: yaml.Node, path: KeyPath, around: tuple[int, ...], document: Document) -> object:
    document.count_value(path)
    if id(node) in around:
        raise ConfigError(document.place(path), "an alias (*name) stands for a section that holds the alias itself")
    if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
        return _mapping(node, path, around, document)
    if isinstance(node, yaml.SequenceNode) and node.tag == _SEQ:
        return [_value(item, path, (*around, id(node)), document) for item in node.value]
    if isinstance(node, yaml.ScalarNode) and node.tag in (_STR, _NULL):
        _check_text(node.value, document.place(path))
        return None if node.tag == _NULL else node.value
    raise ConfigError(document.place(path), f"the YAML tag {node.tag} has no meaning here", "Write the plain value.")


def _check_text(text: str, place: str) -> None:
    """Refuse what can be written in YAML or in a shell, and is neither a path nor a text for Spark."""
    found = _NO_CHARACTER.search(text)
    if found:
        raise ConfigError(place, f"found U+{ord(found[0]):04X} at position {found.start()}, which is no text")
