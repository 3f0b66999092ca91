"""Parses an Avro schema, and checks that a damaged value cannot make fastavro run without end.

fastavro parses the schema, and resolves the writer's schema to the reader's schema as Avro prescribes: by the names and
aliases of fields, with defaults and promotions. fastavro has two gaps, which this module closes:

- fastavro returns the default of a field as the JSON of the schema. This module replaces the defaults by the
  objects that a decoded value would have: bytes instead of text, and records with the defaults of their own fields.
- A value of an array can claim 2^60 items that need no bytes, and a value of a recursive record can be nested more
  deeply than a thread's stack allows. Schemas for which this is possible are refused.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.schema_errors import required_package

Node = Any
"""A part of a parsed schema: a name, a dict with the key `type`, or the list of the branches of a union."""

_PRIMITIVE_BYTES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


_TIMES_OF_DAY = {"time-millis": range(86_400_000), "time-micros": range(86_400_000_000)}
NAMED = "__named_schemas"
"""The key under which a schema that fastavro has parsed has its named types."""
PARSED = "__fastavro_parsed"
"""The key that says that fastavro has parsed a schema."""
_SIZES = range(2**31)
_MOST_PARTS = 10_000
"""The most parts of a schema, if each named type counts wherever it is used."""


class AvroSchemaError(ValueError):
    """The text is no Avro schema, or the schema cannot be used."""


@dataclass(frozen=True)
class AvroSchema:
    """A parsed schema.

    root: the schema in the form that fastavro expects.
    named: by full name, the records, enums and fixed types.
    """

    root: Node
    named: Mapping[str, Node]

    def resolved(self, node: Node) -> Node:
        """The definition of a type that is given by its name, or in an object of its own."""
        while True:
            if isinstance(node, str) and node in self.named:
                node = self.named[node]
            elif isinstance(node, dict) and isinstance(node["type"], (dict, list)):
                node = node["type"]
            else:
                return node

    def kinds(self) -> set[str]:
        """The kinds of all parts."""
        found = set[str]()
        waiting, seen = [self.root], set[int]()
        while waiting:
            node = self.resolved(waiting.pop())
            found.add(kind_of(node))
            if id(node) not in seen:
                seen.add(id(node))
                waiting += children(node)
        return found


def parse(
    text: str, references: Sequence[str] = (), told_apart: Collection[str] = (), *, is_reader: bool = False
) -> AvroSchema:
    """The schema of a text in Avro's JSON.

    Args:
        references: schemas with named types that the text uses, each after those that it uses itself.
        told_apart: the full names of types whose names are replaced by `whole_name`.
        is_reader: whether values may get the defaults of this schema. So each must be a value of its field's type.

    Raises:
        AvroSchemaError: the text is no Avro schema.
        MissingFormatError: fastavro is not installed.
    """
    fastavro = required_package("fastavro", "fastavro", "avro")
    named: dict[str, Node] = {}
    try:
        for each in references:
            fastavro.parse_schema(_document(each), named_schemas=named)
        schema = AvroSchema(fastavro.parse_schema(_document(text), named_schemas=named), named)
        if told_apart:
            schema = _with_whole_names(schema, told_apart)
        _check_size(schema)
        _set_defaults(schema, checks=is_reader)
    except AvroSchemaError:
        raise
    except json.JSONDecodeError as error:
        raise AvroSchemaError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise AvroSchemaError("it is nested too deeply") from None
    except Exception as error:  # noqa: BLE001 - fastavro also raises TypeError, KeyError and AttributeError for wrong schemas
        raise AvroSchemaError(f"it is not an Avro schema: {type(error).__name__}: {error}") from None
    return schema


def is_record(schema: AvroSchema) -> bool:
    return kind_of(schema.resolved(schema.root)) == "record"


def in_record(text: str) -> str:
    """The text of a record whose only field, `value`, has this schema. Avro writes both with the same bytes."""
    return f'{{"type": "record", "name": "LakelogKey", "fields": [{{"name": "value", "type": {text}}}]}}'


def _document(text: str) -> Any:
    found = json.loads(text)
    json.dumps(found, ensure_ascii=False).encode()  # a text that is not Unicode could not be written to a table
    return found


def _check_size(schema: AvroSchema) -> None:
    sizes: dict[str, int] = {}

    def size(node: Node) -> int:
        node = schema.resolved(node)
        if kind_of(node) != "record":
            return 1 + sum(map(size, children(node)))
        if node["name"] not in sizes:
            sizes[node["name"]] = 0  # while it is counted: inside itself, a record has no parts
            sizes[node["name"]] = 1 + sum(map(size, children(node)))
        return sizes[node["name"]]

    if (found := size(schema.root)) > _MOST_PARTS:
        raise AvroSchemaError(f"it has {found} parts, but at most {_MOST_PARTS} are allowed")


def canonical_form(schema: AvroSchema) -> str:
    """A fingerprint: values of two schemas with the same fingerprint have the same bytes and the same meaning.

    Avro's own canonical form leaves out the logical types, and so the scale of a decimal and the unit of a time.
    """
    seen = set[str]()

    def form(node: Node) -> Any:
        node = schema.resolved(node)
        kind = kind_of(node)
        more = [node.get(key) for key in ("logicalType", "precision", "scale")] if isinstance(node, dict) else []
        if kind in ("record", "enum", "fixed"):
            if node["name"] in seen:
                return node["name"]
            seen.add(node["name"])
            more += [node["name"], node.get("symbols"), node.get("size")]
            more += [field["name"] for field in node.get("fields", ())]
        return [kind, [each for each in more if each is not None], *map(form, children(node))]

    return hashlib.sha256(json.dumps(form(schema.root)).encode()).hexdigest()[:16]


def kind_of(node: Node) -> str:
    """The type of a resolved part: a primitive type, record, enum, fixed, array, map or union. Avro's type `error` is a
    record."""
    if isinstance(node, list):
        return "union"
    kind = str(node["type"]) if isinstance(node, dict) else str(node)
    return "record" if kind == "error" else kind


def children(node: Node) -> Iterator[Node]:
    """The parts of a resolved part."""
    kind = kind_of(node)
    if kind == "union":
        yield from node
    elif kind == "record":
        yield from (field["type"] for field in node["fields"])
    elif kind == "array":
        yield node["items"]
    elif kind == "map":
        yield node["values"]


def with_parts(node: Node, change: Callable[[Node], Node]) -> Node:
    """A part, after its own parts were changed. Names of types stay as they are."""
    if isinstance(node, list):
        return [change(each) for each in node]
    if not isinstance(node, dict):
        return node
    found = {key: change(value) if key in ("type", "items", "values") else value for key, value in node.items()}
    if kind_of(node) == "record":
        found["fields"] = [{**field, "type": change(field["type"])} for field in node["fields"]]
    return found


def check_finite(schema: AvroSchema) -> None:
    """Check that the bytes of a value limit how long fastavro decodes it.

    Raises:
        AvroSchemaError: a type contains itself, an array has items without bytes, or a fixed has a wrong size.
    """
    _least_bytes(schema, schema.root, (), {})


def _least_bytes(schema: AvroSchema, node: Node, outer: tuple[str, ...], known: dict[str, int]) -> int:
    """The least number of bytes of a value, up to 1 for unions, arrays and maps. known: by name of a record."""
    node = schema.resolved(node)
    kind = kind_of(node)
    if kind == "record":
        if node["name"] in outer:
            raise AvroSchemaError(f"the record {node['name']} contains itself")
        if node["name"] not in known:
            within = (*outer, node["name"])
            known[node["name"]] = sum(_least_bytes(schema, each, within, known) for each in children(node))
        return known[node["name"]]
    if kind == "fixed":
        size = node.get("size")
        if type(size) is not int or size not in _SIZES:
            raise AvroSchemaError(
                f"the size of the fixed {node['name']} is {size!r}, not a whole number from 0 to 2^31 - 1"
            )
        return size
    inner = [_least_bytes(schema, each, outer, known) for each in children(node)]
    if kind == "array" and not inner[0]:
        raise AvroSchemaError("an array has items that need no bytes")
    return _PRIMITIVE_BYTES.get(kind, 1)


# --- Types with the same name in two namespaces -----------------------------------------------------------------


def whole_name(name: str) -> str:
    """A full name as one word. fastavro compares only the words after the last dot."""
    return name.replace(".", "/")


def shared_names(schema: AvroSchema) -> set[str]:
    """The full names of the types in unions that have another type with the same name in another namespace."""
    found = set[str]()
    for node in _definitions(schema):
        branches = [schema.resolved(each) for each in node] if isinstance(node, list) else []
        names = [str(each["name"]) for each in branches if isinstance(each, dict) and "name" in each]
        count = Counter(map(_last_word, names))
        found.update(name for name in names if count[_last_word(name)] > 1)
    return found


def _last_word(name: str) -> str:
    return name.rpartition(".")[2]


def _with_whole_names(schema: AvroSchema, names: Collection[str]) -> AvroSchema:
    """The schema; these types have their whole names. Their last words become aliases, so they also match types of other
    namespaces, as before."""

    def renamed(node: Any) -> Any:
        if isinstance(node, str):
            return whole_name(node) if node in names else node
        found = with_parts(node, renamed)
        if not isinstance(node, dict):
            return found
        if (name := str(node.get("name", ""))) in names:
            found |= {"name": whole_name(name), "aliases": [*node.get("aliases", ()), _last_word(name)]}
        if NAMED in node:
            found[NAMED] = named
        return found

    named = dict[str, Node]()
    named |= {renamed(name): renamed(node) for name, node in schema.named.items()}
    return AvroSchema(renamed(schema.root), named)


# --- Defaults ---------------------------------------------------------------------------------------------------


def _set_defaults(schema: AvroSchema, *, checks: bool) -> None:
    """Replace the default of each field by the object that fastavro makes of the same value."""
    given = {
        id(field): (field, field["default"])
        for record in _records(schema)
        for field in record["fields"]
        if "default" in field
    }
    originals = {number: default for number, (_, default) in given.items()}
    for field, default in given.values():
        if checks and not _is_default(schema, field["type"], default, originals):
            raise AvroSchemaError(f"the default of the field {field['name']} is no value of the field's type")
    for field, default in given.values():
        field["default"] = _decoded_default(schema, field["type"], default, originals)


def _records(schema: AvroSchema) -> Iterator[Node]:
    return (node for node in _definitions(schema) if kind_of(node) == "record")


def _definitions(schema: AvroSchema) -> Iterator[Node]:
    """Each part that is not only a name, also if fastavro has copied it."""
    waiting = [schema.root, *schema.named.values()]
    seen = set[int]()
    while waiting:
        node = waiting.pop()
        if not isinstance(node, (dict, list)) or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        waiting += [node["type"]] if isinstance(node, dict) and not isinstance(node["type"], str) else children(node)


def _decoded_default(schema: AvroSchema, node: Node, default: Any, originals: Mapping[int, Any]) -> Any:
    node = schema.resolved(node)
    kind = kind_of(node)
    if kind == "union":
        branch = next((each for each in node if _is_default(schema, each, default, originals)), node[0])
        decoded = _decoded_default(schema, branch, default, originals)
        resolved = schema.resolved(branch)
        return (resolved["name"], decoded) if kind_of(resolved) in ("record", "enum", "fixed") else decoded
    if kind in ("bytes", "fixed") and isinstance(default, str):
        return _with_logical_type(node, default.encode("latin-1"))
    if kind in ("int", "long", "string"):
        return _with_logical_type(node, default)
    if kind in ("float", "double"):
        return float(default)
    if kind == "array":
        return [_decoded_default(schema, node["items"], each, originals) for each in default]
    if kind == "map":
        return {key: _decoded_default(schema, node["values"], each, originals) for key, each in default.items()}
    if kind == "record":
        return {
            field["name"]: _decoded_default(
                schema, field["type"], default.get(field["name"], originals.get(id(field))), originals
            )
            for field in node["fields"]
        }
    return default


def _with_logical_type(node: Node, default: Any) -> Any:
    """What fastavro makes of a value of this logical type. A wrong default stays as it is: it matters only if a value needs
    it, and a writer's default never does."""
    if not isinstance(node, dict) or "logicalType" not in node:
        return default
    logical = node["logicalType"]
    read = required_package("fastavro.read", "fastavro", "avro").LOGICAL_READERS.get(f"{kind_of(node)}-{logical}")
    if read is None or default not in _TIMES_OF_DAY.get(logical, (default,)) or default == b"":
        return default
    try:
        return read(default, node)
    except Exception:  # noqa: BLE001 - fastavro raises many types
        return default


_INTEGERS = {"int": range(-(2**31), 2**31), "long": range(-(2**63), 2**63)}


def _is_default(schema: AvroSchema, node: Node, default: Any, originals: Container[int]) -> bool:
    """Whether a default in JSON is a value of a type, as Avro prescribes.

    Args:
        originals: the fields that have defaults of their own.
    """
    node = schema.resolved(node)
    kind = kind_of(node)
    if kind == "union":
        return any(_is_default(schema, each, default, originals) for each in node)
    if isinstance(default, bool) or kind == "boolean":
        return isinstance(default, bool) and kind == "boolean"
    if kind in _INTEGERS:
        return isinstance(default, int) and default in _INTEGERS[kind]
    if kind in ("float", "double"):
        return isinstance(default, (int, float))
    if kind == "array":
        return isinstance(default, list) and all(
            _is_default(schema, node["items"], each, originals) for each in default
        )
    if kind == "map":
        return isinstance(default, dict) and all(
            _is_default(schema, node["values"], each, originals) for each in default.values()
        )
    if kind == "record":
        return isinstance(default, dict) and all(
            _is_default(schema, field["type"], default[field["name"]], originals)
            if field["name"] in default
            else id(field) in originals
            for field in node["fields"]
        )
    if kind == "null":
        return default is None
    if kind == "enum":
        return default in node["symbols"]
    is_text = isinstance(default, str)
    return is_text and (
        kind == "string" or (max(default, default="") <= "\xff" and (kind == "bytes" or len(default) == node["size"]))
    )
