"""Says whether values that were written with an older type can be read with a newer one, and keep their meaning.

The fields of a schema have descriptions of the types with which values are written (`schemas.comparing`):

    (type of FIELD)       in Avro, the type, its logical type, name, aliases and symbols
    (aliases of FIELD)    in Avro, other names of the field
    (nulls of FIELD)      in Avro, only for values of a map that may be null
    (numbers of FIELD)    in Avro, several plain types of numbers in a union, each with the member that its values get to
    (values of FIELD)     in Protobuf, the numbers and names of an enum

A type of Avro is written as `long timestamp-micros`, `fixed(16) decimal shop.Price`, `record shop.Address, also shop.Place`
or `enum shop.Colour: RED, BLUE; default RED`. A list is written with commas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_PROMOTED = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",)}
"""By type of Avro, the types as which its values can also be read. string and bytes have different columns."""
NUMBERS = ("int", "long", "float", "double")
_UNITS = ("-millis", "-micros", "-nanos")


def written_type(
    kind: str,
    logical: str = "",
    name: str = "",
    aliases: Sequence[str] = (),
    symbols: Sequence[str] = (),
    default: str = "",
) -> str:
    """The text of a type of Avro.

    Args:
        kind: the type; for a fixed, with its size.
        default: of an enum.
    """
    first = " ".join(each for each in (kind, logical, name) if each)
    text = ", also ".join([first, *sorted(aliases)])
    if symbols:
        text += f": {', '.join(symbols)}"
    return f"{text}; default {default}" if default else text


def is_readable(path: str, old: str, new: str) -> bool:
    """Whether older values are still read as before.

    Args:
        path: of the description.
    """
    described, _ = _description(path)
    if described == "type":
        return _is_readable_type(_Type.of(old), _Type.of(new))
    if described == "numbers":
        return _is_readable_union(old, new)
    return described in ("aliases", "values") and set(old.split(", ")) <= set(new.split(", "))


def described_field(path: str) -> str:
    """The path of the field that one of these descriptions is about; empty if the path is none of them."""
    described, field = _description(path)
    return field if described in ("type", "aliases", "nulls", "numbers", "values") else ""


def _description(path: str) -> tuple[str, str]:
    """What is described, and the field. A description of a key begins with the prefix of the names of its columns."""
    first, _, field = path.partition(" of ")
    prefix, _, described = first.removeprefix("(").rpartition(" ")
    return described, prefix + field.removesuffix(")")


@dataclass(frozen=True)
class _Type:
    kind: str
    logical: str
    name: str
    aliases: frozenset[str]
    symbols: frozenset[str]
    default: str

    @classmethod
    def of(cls, text: str) -> _Type:
        text, _, default = text.partition("; default ")
        text, _, symbols = text.partition(": ")
        first, *aliases = text.split(", also ")
        kind, *words = first.split(" ")
        is_named = kind.partition("(")[0] in ("record", "enum", "fixed")
        name = words.pop() if is_named else ""
        return cls(
            kind, "".join(words), name, frozenset(aliases), frozenset(filter(None, symbols.split(", "))), default
        )


def _is_readable_type(old: _Type, new: _Type) -> bool:
    if new.kind != old.kind and new.kind not in _PROMOTED.get(old.kind, ()):
        return False
    plain = old.name.rpartition(".")[2]
    if plain != new.name.rpartition(".")[2] and not {old.name, plain} & new.aliases:
        return False
    if not new.default and not old.symbols <= new.symbols:
        return False
    return old.logical == new.logical or (
        "" not in (old.logical, new.logical)
        and _without_unit(old.logical) == _without_unit(new.logical)
        and not old.logical.endswith("-nanos")  # its values have more digits
    )


def _is_readable_union(old: str, new: str) -> bool:
    """Whether each number gets to the same member as before: of its own type, or of the first type that can be read."""
    members = dict(each.split(" ") for each in new.split(", "))
    for kind, member in (each.split(" ") for each in old.split(", ")):
        readable = [kind] if kind in members else [each for each in members if each in _PROMOTED.get(kind, ())]
        if not readable or members[readable[0]] != member:
            return False
    return True


def _without_unit(logical: str) -> str:
    for unit in _UNITS:
        logical = logical.removesuffix(unit)
    return logical
