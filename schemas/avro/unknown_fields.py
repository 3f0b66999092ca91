"""Finds the fields of Avro values that the writer's schema has, but the reader's schema does not have.

fastavro skips these fields when it resolves the writer's schema to the reader's schema. So a value with such fields is
decoded once more, with the writer's schema alone. The writer's schema is changed for this, in ways that keep the bytes of
the values: each branch of a union becomes a record with one field, so that a decoded value says its branch; and logical
types are left out, so that no time and no decimal is too large for Python.

A scalar has the form of its column (`avro_columns`). A time that Python cannot represent stays the number that it is in
the value, and a decimal stays bytes if no column can have its type, or if it has very many digits. Unions add no level of
their own.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from schemas.avro.avro_columns import Convert, logical_column
from schemas.avro.avro_schema import NAMED, PARSED, AvroSchema, Node, kind_of
from schemas.avro.resolution import in_full, is_same_name
from schemas.decoder import UndecodableError
from schemas.model_columns import UnsupportedFieldError
from schemas.schema_errors import required_package
from schemas.unknown_fields.extra_column import Unknown, finite, of_fields, of_items

_BRANCH = "LakelogBranch"
_VALUE = "value"
_MOST_BYTES = 400
"""The most bytes of a decimal of which `avro_columns` keeps all digits."""


class UnknownFields:
    """The fields of one writer's schema that the reader's schema does not have."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema) -> None:
        """Compare two schemas that can be resolved (`resolution.check_branches`)."""
        self._find = _Comparison(writer, reader).unknown(writer.root, reader.root)
        self._schema = _with_branches(writer) if self._find is not None else None
        self._read: Callable[..., Any] = required_package("fastavro", "fastavro", "avro").schemaless_reader

    def of(self, value: bytes) -> Unknown:
        """The unknown fields of a value that can be decoded."""
        if self._find is None:
            return None
        # The decoder does not check the texts of unknown fields either.
        record = self._read(io.BytesIO(value), self._schema, handle_unicode_errors="replace", return_named_type=True)
        return self._find(record[_VALUE])


class _Comparison:
    """Compares the parts of two schemas."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema) -> None:
        self._writer = writer
        self._reader = reader

    def unknown(self, written: Node, wanted: Node) -> Convert | None:
        """Finds the unknown fields in a decoded part; None if the writer has no such field."""
        written, wanted = self._writer.resolved(written), self._reader.resolved(wanted)
        kind = kind_of(written)
        if kind == "union":
            branches = [self.unknown(each, wanted) for each in written]
            return _of_branch([each or _nothing for each in branches]) if any(branches) else None
        if kind_of(wanted) == "union":
            found = self._branch_of(written, wanted)
            return None if found is None else self.unknown(written, found)
        if kind != kind_of(wanted):
            return None
        if kind == "record":
            return self._in_record(written, wanted)
        if kind == "array" and (items := self.unknown(written["items"], wanted["items"])) is not None:
            return lambda value: of_items(map(items, value))
        if kind == "map" and (values := self.unknown(written["values"], wanted["values"])) is not None:
            return lambda value: of_fields((name, values(each)) for name, each in value.items())
        return None

    def _branch_of(self, written: Node, union: Node) -> Node | None:
        """The branch of the reader's union that gets the values of the writer's record, array or map."""
        kind = kind_of(written)
        alike = [each for each in map(self._reader.resolved, union) if kind_of(each) == kind]
        if kind == "record":
            alike = [each for each in alike if is_same_name(written, each)]
        return next(iter(alike), None)

    def _in_record(self, written: Node, wanted: Node) -> Convert | None:
        known = {alias: field["type"] for field in wanted["fields"] for alias in field.get("aliases", ())}
        known |= {field["name"]: field["type"] for field in wanted["fields"]}
        kept: dict[str, Convert] = {}
        inner: dict[str, Convert] = {}
        for field in written["fields"]:
            name = field["name"]
            if name not in known:
                kept[name] = self._kept(field["type"])
            elif (found := self.unknown(field["type"], known[name])) is not None:
                inner[name] = found
        if not kept and not inner:
            return None

        def find(record: Mapping[str, Any]) -> Unknown:
            new = {name: convert(record[name]) for name, convert in kept.items()}
            return new | (of_fields((name, convert(record[name])) for name, convert in inner.items()) or {}) or None

        return find

    def _kept(self, node: Node) -> Convert:
        """Makes a whole part for `extra_column.extra_text`."""
        node = self._writer.resolved(node)
        kind = kind_of(node)
        if kind == "union":
            return _of_branch([self._kept(each) for each in node])
        if kind == "record":
            fields = {field["name"]: self._kept(field["type"]) for field in node["fields"]}
            return lambda record: {name: convert(record[name]) for name, convert in fields.items()}
        if kind == "array":
            items = self._kept(node["items"])
            return lambda value: list(map(items, value))
        if kind == "map":
            values = self._kept(node["values"])
            return lambda value: {name: values(each) for name, each in value.items()}
        return _scalar(node)


def _of_branch(branches: list[Convert]) -> Convert:
    """Takes the value of a union, and makes of it what its branch makes."""

    def convert(value: Any) -> Any:
        if value is None:
            return None
        name, record = value
        return branches[int(name.removeprefix(_BRANCH).partition("_")[0])](record[_VALUE])

    return convert


def _nothing(_: Any) -> None:
    return None


def _as_it_is(value: Any) -> Any:
    return value


def _scalar(node: Node) -> Convert:
    if kind_of(node) in ("float", "double"):
        return finite
    try:
        column = logical_column(node, "")
    except UnsupportedFieldError:
        column = None
    if column is None or column.convert is None:
        return _as_it_is
    as_column = column.convert

    def convert(value: Any) -> Any:
        if isinstance(value, bytes) and len(value) > _MOST_BYTES:
            return value
        try:
            return as_column(value)
        except (ArithmeticError, UndecodableError):
            return value

    return convert


def _with_branches(writer: AvroSchema) -> Node:
    """The writer's schema in a record, without logical types; each branch of a union is a record that says the branch."""
    numbers = count()

    def changed(node: Node) -> Node:
        if isinstance(node, list):
            return [
                each if kind_of(writer.resolved(each)) == "null" else _record(f"{_BRANCH}{place}_{next(numbers)}", each)
                for place, each in enumerate(node)
            ]
        if isinstance(node, dict):
            return {key: value for key, value in node.items() if key != "logicalType"}
        return node

    # fastavro would parse the schema again, and refuse the second definition of a named type.
    return _record("LakelogValue", in_full(writer, changed)) | {PARSED: True, NAMED: {}}


def _record(name: str, node: Node) -> dict[str, Node]:
    """A record of one field. Avro writes both with the same bytes."""
    return {"type": "record", "name": name, "fields": [{"name": _VALUE, "type": node}]}
