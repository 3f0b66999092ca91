"""Names the columns of a table, and the fields inside structs, lists and maps.

A column is named by its name. A field inside a column is named by its path. The path begins with the name of the column.
Inside a list, the next part is `element`; inside a map, it is `key` or `value`; inside a struct, it is the name of a
field:

    "delivery"
    ("delivery", "address", "city")
    ("items", "element", "price")
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

FieldPath = tuple[str, ...]
Field = str | FieldPath
ELEMENT, KEY, VALUE = "element", "key", "value"


def field_of(path: FieldPath) -> Field:
    """A column or a field, by its path."""
    return path[0] if len(path) == 1 else path


def path_of(field: Field) -> FieldPath:
    """The path of a column or a field."""
    return (field,) if isinstance(field, str) else field


def shown_field(field: Field) -> str:
    """The name of a column, or the path of a field with dots."""
    return field if isinstance(field, str) else ".".join(field)


def fields_in_json(schema: str) -> frozenset[Field]:
    """The columns of a schema in JSON, as in Delta's log and in Spark, and the fields inside them."""
    return frozenset(map(field_of, _in_json(json.loads(schema), ())))


def _in_json(node: Any, outer: FieldPath) -> Iterator[FieldPath]:
    kind = node.get("type") if isinstance(node, dict) else None
    if kind == "struct":
        for each in node["fields"]:
            yield (*outer, each["name"])
            yield from _in_json(each["type"], (*outer, each["name"]))
    elif kind == "array":
        yield from _in_json(node["elementType"], (*outer, ELEMENT))
    elif kind == "map":
        yield from _in_json(node["keyType"], (*outer, KEY))
        yield from _in_json(node["valueType"], (*outer, VALUE))


def fields_in_arrow(schema: pa.Schema) -> frozenset[Field]:
    """The columns of a schema of Arrow, and the fields inside them."""
    return frozenset(field_of(path) for each in schema for path in _in_arrow(each, ()))


def _in_arrow(field: pa.Field, outer: FieldPath) -> Iterator[FieldPath]:
    path = (*outer, field.name)
    yield path
    yield from _inside(field.type, path)


def _inside(kind: pa.DataType, path: FieldPath) -> Iterator[FieldPath]:
    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _in_arrow(kind.field(number), path)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _inside(kind.value_type, (*path, ELEMENT))
    elif pa.types.is_map(kind):
        yield from _inside(kind.key_type, (*path, KEY))
        yield from _inside(kind.item_type, (*path, VALUE))
