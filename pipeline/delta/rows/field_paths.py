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
from collections.abc import Collection, Iterator
from typing import Any

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


def outermost(fields: Collection[Field]) -> list[Field]:
    """The columns and fields, without the fields inside those that are listed themselves."""
    paths = set(map(path_of, fields))
    return [field_of(path) for path in paths if not any(path[:length] in paths for length in range(1, len(path)))]
