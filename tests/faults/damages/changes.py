"""Damages a small file. The seed alone decides how the file is damaged.

A damage is one of these:

- a bit, a byte, a digit, a field, or the length of a file is changed;
- the bytes of a file are replaced by those of an older version, of another topic, or of another file of the same kind;
- two files are swapped, a file is deleted, or a folder is put in the place of a file.

If a damage changes the JSON, it leaves the digest unchanged or removes the digest. It may also remove the format number
that requires the digest.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any


class Instead(Enum):
    """What is in a file's place."""

    NOTHING = "nothing"
    FOLDER = "a folder"


Content = bytes | Instead


@dataclass(frozen=True)
class Damage:
    """What was done to a file. contents: what is there now, by key, of this file and of the one that it changed places
    with.
    """

    kind: str
    key: str
    what: str
    contents: Mapping[str, Content]

    @property
    def deletes(self) -> bool:
        """Whether the damage deletes a file. Nothing shows the deletion, unless another file names the deleted file."""
        return Instead.NOTHING in self.contents.values()


@dataclass(frozen=True)
class File:
    """One small file of a root. kinds: all of them, by kind."""

    root: Path
    key: str
    data: bytes
    kinds: Mapping[str, list[str]]


_Change = Callable[[random.Random, File], "Content | Mapping[str, Content] | None"]
"""Gives the new content, or that of several files; None where the change does not apply."""


def small_files(root: Path) -> dict[str, list[str]]:
    """Keys by kind."""
    kinds: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix not in (".log", ".batches", ".lock") and path.name != ".lock":
            key = str(path.relative_to(root))
            kinds.setdefault(_kind_of(root, key), []).append(key)
    return kinds


def _kind_of(root: Path, key: str) -> str:
    parts = key.split("/")
    if parts[0] == "meta":
        if parts[1].startswith("@"):
            return parts[1] + (f" {parts[2].split('.')[1]}" if parts[1] == "@transactions" else "")
        if len(parts) > 3:
            return parts[2]
        versions = sorted((root / "meta" / parts[1]).glob("*.json"))
        if versions[-1].name == parts[2]:
            return "version newest"
        return "version first" if versions[0].name == parts[2] else "version older"
    if parts[0] == "staging":
        return "staged list"
    if parts[0] == "data":
        return f"data {Path(key).suffix}"
    return f"log {Path(key).suffix or parts[-1]}" if re.match(r"[0-9]", parts[-1]) else f"log {parts[-1]}"


def make_damage(root: Path, kinds: Mapping[str, list[str]], seed: int) -> Damage:
    """One random damage that changes something. Readers rely on the indexes under data/, so indexes are damaged more
    often than other files."""
    chance = random.Random(seed)
    while True:
        kind = chance.choice(sorted(kinds) + [kind for kind in sorted(kinds) if kind.startswith("data")] * 2)
        key = chance.choice(kinds[kind])
        what, change = chance.choice(_CHANGES)
        file = File(root, key, (root / key).read_bytes(), kinds)
        changed = change(chance, file)
        if changed is None:
            continue
        contents = changed if isinstance(changed, Mapping) else {key: changed}
        if contents[key] != file.data:
            return Damage(kind, key, what, contents)


# Bytes.


def _flip(chance: random.Random, file: File) -> bytes | None:
    return _with_byte(file.data, at := chance.randrange(len(file.data)), file.data[at] ^ 1 << chance.randrange(8)) if (
        file.data
    ) else None  # fmt: skip


def _byte(chance: random.Random, file: File) -> bytes | None:
    return _with_byte(file.data, chance.randrange(len(file.data)), chance.randrange(256)) if file.data else None


def _digit(chance: random.Random, file: File) -> bytes | None:
    places = [at for at, byte in enumerate(file.data) if 48 <= byte <= 57]
    return _with_byte(file.data, chance.choice(places), chance.randrange(48, 58)) if places else None


def _with_byte(data: bytes, at: int, byte: int) -> bytes:
    return data[:at] + bytes((byte,)) + data[at + 1 :]


def _truncate(chance: random.Random, file: File) -> bytes:
    return file.data[: chance.choice((0, chance.randrange(len(file.data) + 1)))]


def _shift(chance: random.Random, file: File) -> bytes:
    """Bytes are inserted or removed."""
    at, count = chance.randrange(len(file.data) + 1), chance.randrange(1, 13)
    if chance.random() < 0.5:
        return file.data[:at] + chance.randbytes(count) + file.data[at:]
    return file.data[:at] + file.data[at + count :]


def _double(chance: random.Random, file: File) -> bytes:
    return file.data * 2


def _zeros(chance: random.Random, file: File) -> bytes | None:
    """A stretch of zeros, as a file system may leave it: up to the end, or a part."""
    if not file.data:
        return None
    first = chance.randrange(len(file.data))
    last = chance.choice((len(file.data), chance.randrange(first, len(file.data)) + 1))
    return file.data[:first] + bytes(last - first) + file.data[last:]


def _wrong_unicode(chance: random.Random, file: File) -> bytes | None:
    """Bytes that are no UTF-8, or half of a surrogate pair, where a text could be."""
    at = chance.randrange(len(file.data) + 1)
    return (
        file.data[:at]
        + chance.choice((b"\xff\xfe", b"\xc3(", b"\xed\xa0\x80", b"\\ud800", b"\xe2\x80\xae"))
        + file.data[at:]
    )


# Fields.


def _document(file: File) -> dict[str, Any] | None:
    """The object that a JSON file is, or one of its lines."""
    try:
        document = json.loads(file.data.splitlines()[-2] if file.key.endswith(".jsonl") else file.data)
    except (ValueError, IndexError):
        return None
    return document if isinstance(document, dict) else None


def _field(chance: random.Random, file: File) -> bytes | None:
    """A field is changed, removed, or exchanged with another one."""
    document = _document(file)
    if document is None:
        return None
    name = chance.choice(sorted(document))
    how = chance.randrange(3)
    if how == 0:
        del document[name]
    elif how == 1:
        document[name] = _other(chance, document[name])
    else:
        other = chance.choice(sorted(document))
        document[name], document[other] = document[other], document[name]
    return _encoded(chance, document)


def _without_digest(chance: random.Random, file: File) -> bytes | None:
    """The digest is gone, and the format that asks for it; a number is another one, or none is."""
    document = _document(file)
    if document is None:
        return None
    document.pop("digest", None)
    document["format"] = 1
    if chance.random() < 0.2:
        del document["format"]
    if chance.random() < 0.7:
        name = chance.choice(sorted(document))
        document[name] = _other(chance, document[name]) if name != "format" else 1
    return _encoded(chance, document)


def _number(chance: random.Random, file: File) -> bytes | None:
    """A number anywhere in a text becomes huge, negative or none."""
    numbers = list(re.finditer(rb"(?<![0-9a-zA-Z_-])[0-9]+(?![0-9a-zA-Z_-])", file.data))
    if not numbers:
        return None
    found = chance.choice(numbers)
    other = chance.choice(
        (b"9" * 5000, b"18446744073709551616", b"9223372036854775807", b"-1", b"1e999", b"NaN", b"true")
    )
    return file.data[: found.start()] + other + file.data[found.end() :]


def _duplicate_key(chance: random.Random, file: File) -> bytes | None:
    """A field occurs twice, with two different values. A reader that takes the last one gets the second value."""
    document = _document(file)
    if document is None or file.key.endswith(".jsonl"):
        return None
    name = chance.choice(sorted(document))
    second = json.dumps({name: _other(chance, document[name])}, separators=(",", ":")).encode()
    place = chance.choice((b"first", b"last", b"without digest"))
    if place == b"first":
        return second[:-1] + b"," + file.data[1:]
    rest = re.sub(rb',"digest":"[0-9a-f]{64}"\}\Z', b"}", file.data) if place == b"without digest" else file.data
    more = b',"format":1' if place == b"without digest" else b""
    return rest[:-1] + b"," + second[1:-1] + more + b"}"


def _other(chance: random.Random, value: object) -> object:
    """Another value of the same sort, as far as there is one."""
    match value:
        case bool():
            return not value
        case int():
            return value + chance.choice((1, -1, 1000))
        case str():
            return value[:-1] if value else "x"
        case list() if value:
            return value[:-1]
        case dict() if value:
            name = chance.choice(sorted(value))
            return value | {name: _other(chance, value[name])}
        case _:
            return None


def _encoded(chance: random.Random, document: Mapping[str, object]) -> bytes:
    separators = (",", ":") if chance.random() < 0.8 else (", ", ": ")
    return json.dumps(document, separators=separators).encode()


# Other files.


def _alike(chance: random.Random, file: File) -> bytes:
    """The content of another file of the kind."""
    keys = next(keys for keys in file.kinds.values() if file.key in keys)
    return (file.root / chance.choice(keys)).read_bytes()


def _exchange(chance: random.Random, file: File) -> Mapping[str, Content]:
    """Two files of a kind change places: two versions of a chain, or documents of two topics."""
    keys = next(keys for keys in file.kinds.values() if file.key in keys)
    other = chance.choice(keys)
    return {other: file.data, file.key: (file.root / other).read_bytes()}


def _older(chance: random.Random, file: File) -> bytes | None:
    """A version's content is that of an older one of its topic."""
    before = sorted(path for path in (file.root / file.key).parent.glob("*.json") if path.name < Path(file.key).name)
    return chance.choice(before[-5:]).read_bytes() if file.key.startswith("meta/") and before else None


def _exchange_versions(chance: random.Random, file: File) -> Mapping[str, Content] | None:
    """Two versions of one chain change places."""
    if not _is_version(file.key):
        return None
    others = [path for path in (file.root / file.key).parent.glob("*.json") if path.name != Path(file.key).name]
    if not others:
        return None
    other = str(chance.choice(sorted(others)).relative_to(file.root))
    return {other: file.data, file.key: (file.root / other).read_bytes()}


def _of_another_topic(chance: random.Random, file: File) -> bytes | None:
    name = Path(file.key).name
    others = sorted(
        path for path in file.root.rglob(name) if str(path.relative_to(file.root)) != file.key and path.is_file()
    )
    return chance.choice(others).read_bytes() if others else None


def _delete(chance: random.Random, file: File) -> Content | None:
    """Delete the file, if another file shows that it existed. The view shows this for a version; no file shows it for a
    group, a decision or a list."""
    return Instead.NOTHING if file.key.startswith(("data/", "log/")) or _is_version(file.key) else None


def _is_version(key: str) -> bool:
    return re.match(r"meta/[^@/]+/[0-9]+\.json", key) is not None


def _folder(chance: random.Random, file: File) -> Content:
    return Instead.FOLDER


_CHANGES: list[tuple[str, _Change]] = [
    ("bit", _flip), ("byte", _byte), ("digit", _digit), ("field", _field), ("truncation", _truncate),
    ("shift", _shift), ("content of its kind", _alike), ("older", _older), ("other topic", _of_another_topic),
    ("deletion", _delete), ("folder", _folder), ("doubled", _double), ("zeros", _zeros), ("unicode", _wrong_unicode),
    ("without digest", _without_digest), ("number", _number), ("duplicate key", _duplicate_key),
    ("exchange", _exchange), ("exchange of versions", _exchange_versions),
]  # fmt: skip
