"""Says which logical types have a meaning for Lakelog, and which of them can stand for each other.

fastavro returns an object of Python for most logical types of the writer's schema, and a number for the others. So two
logical types that have the same kind of object must have the same meaning.
"""

from __future__ import annotations

from schemas.avro.avro_schema import Node, kind_of

_KINDS = {
    "decimal": ("bytes", "fixed"),
    "date": ("int",),
    "uuid": ("string", "fixed"),
    "time-millis": ("int",),
    "time-micros": ("long",),
    **dict.fromkeys(("timestamp-millis", "timestamp-micros", "timestamp-nanos"), ("long",)),
    **dict.fromkeys(("local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos"), ("long",)),
}
"""By logical type, the types that can have it. Avro prescribes that it is ignored at any other type."""
_OBJECTS = {
    "decimal": "Decimal", "date": "date", "uuid": "UUID", "time-millis": "time", "time-micros": "time",
    "timestamp-millis": "datetime", "timestamp-micros": "datetime",
    "local-timestamp-millis": "datetime", "local-timestamp-micros": "datetime",
    "boolean": "bool", "int": "int", "long": "int", "float": "float", "double": "float",
    "string": "str", "bytes": "bytes", "array": "list", "map": "dict",
    "record": "dict", "enum": "str", "fixed": "bytes",
}  # fmt: skip
"""By logical type or type, the Python type of the object that fastavro returns."""
_PROMOTED = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("string", "bytes"),
}


def logical_type(node: Node) -> str:
    """The logical type of a resolved part; empty if it has none, or one that is ignored."""
    found = str(node.get("logicalType", "")) if isinstance(node, dict) else ""
    kind = kind_of(node)
    if kind not in _KINDS.get(found, ()) or (found == "uuid" and kind == "fixed" and node["size"] != 16):
        return ""
    return found


def python_type(node: Node) -> str:
    """The name of the Python type of the object that fastavro returns for a resolved part, without a type's name."""
    kind = kind_of(node)
    logical = logical_type(node)
    if kind == "fixed" and logical == "uuid":
        return "bytes"
    return _OBJECTS.get(logical) or _OBJECTS.get(kind, kind)


def raw_python_type(node: Node, read_as: str = "") -> str:
    """As python_type, if the writer has no logical type.

    Args:
        read_as: the type to which fastavro promotes the value; by default, its own type.
    """
    kind = kind_of(node)
    return _OBJECTS.get(read_as or kind, kind)


def can_be_read_as(written: Node, wanted: Node) -> bool:
    """Whether Avro promotes the type of a resolved part to the type of another one, or both have the same type."""
    return kind_of(wanted) in _PROMOTED.get(kind_of(written), (kind_of(written),))


def meaning(node: Node) -> str:
    """What an object of a resolved part means: two parts with the same meaning and Python type have the same column."""
    logical = logical_type(node)
    if logical.endswith("-nanos"):  # fastavro returns a number, and a number does not say its unit
        return logical
    return logical.removesuffix("-millis").removesuffix("-micros")


def agrees(written: Node, wanted: Node) -> bool:
    """Whether the column of `wanted` gets the right value from fastavro's object for `written`.

    Both are resolved. If the writer has no logical type, the value is read with the logical type of the reader. If Avro
    cannot promote the type, fastavro refuses the value itself.
    """
    if not can_be_read_as(written, wanted):
        return True
    logical, wanted_logical = logical_type(written), logical_type(wanted)
    if kind_of(written) == "string" and wanted_logical == "decimal":
        return False  # a text is no number
    if not logical or logical == wanted_logical:
        return True
    return meaning(written) == meaning(wanted).removesuffix("-nanos")
