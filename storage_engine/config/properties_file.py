"""Reads a file in the format of Java's Properties, as Kafka reads server.properties, and records the line of each key.

    # a comment; ! also begins a comment
    log.dirs=/data/1,\\
             /data/2               a backslash at the end continues the line
    log.retention.hours : 168      =, : or white space ends the key
    name = caf\\u00e9               \\t \\n \\r \\f \\uXXXX; a backslash before any other character is dropped
    name = \\ud83d\\ude00           two escapes that are the two halves of a character in UTF-16

White space at the beginning of a line, and around the end of the key, has no meaning. White space at the end of a value
belongs to the value. Later, the parser of Lakelog's keys trims the values, as Kafka does. If a file has a key twice,
the last value counts. The bytes are ISO 8859-1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from storage_engine.errors import ConfigError

_BLANK = " \t\f"
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.|\Z)", re.DOTALL)
_BAD_UNICODE = re.compile(r"(?<!\\)(?:\\\\)*\\u(?![0-9a-fA-F]{4})")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY = re.compile(r"(?P<key>(?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)


class Property(NamedTuple):
    """A value, and the file and line in which its key begins."""

    value: str
    place: str


def read_properties(file: Path) -> dict[str, Property]:
    """The values of a file by their keys, in the order of the file.

    Raises:
        ConfigError: the file cannot be read, or an escape is malformed.
    """
    try:
        text = file.read_bytes().decode("iso-8859-1")
    except OSError as error:
        raise ConfigError(str(file), f"cannot be read: {error.strerror}", "Give the path of a file.") from None
    properties: dict[str, Property] = {}
    for number, line in _logical_lines(text):
        place = f"{file}, line {number}"
        if _BAD_UNICODE.search(line):
            raise ConfigError(place, "expected four hexadecimal digits after \\u")
        found = _KEY.fullmatch(line)
        assert found is not None, "every line has a key, which may be empty"
        key = _unescaped(found["key"])
        properties.pop(key, None)
        properties[key] = Property(_unescaped(found["value"]), f"{place}, {key}")
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line with a key, joined with its continuation lines, and the number of its first line."""
    first = 0
    joined: str | None = None
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        stripped = line.lstrip(_BLANK)
        if joined is None:
            if not stripped or stripped[0] in "#!":
                continue
            first, joined = number, ""
        joined += stripped
        backslashes = len(joined) - len(joined.rstrip("\\"))
        if backslashes % 2:
            joined = joined[:-1]
            continue
        yield first, joined
        joined = None
    if joined:
        yield first, joined


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        escape = found[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED.get(escape, escape)

    units = _ESCAPE.sub(character, text)
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
