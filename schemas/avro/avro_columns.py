"""Maps an Avro schema to Arrow columns, and the objects that fastavro returns to objects for these columns.

    Avro                                   Arrow                     Spark SQL
    boolean                                bool                      BOOLEAN
    int, long                              int64                     BIGINT
    float, double                          double                    DOUBLE
    bytes, fixed                           binary                    BINARY
    string, enum, uuid                     string                    STRING
    decimal                                decimal128                DECIMAL of the same digits, at most 38
    date                                   date32                    DATE
    timestamp-millis, -micros, -nanos      timestamp[us, UTC]        TIMESTAMP; nanoseconds are rounded down
    local-timestamp-millis, -micros,       string                    STRING, for example 2026-01-31T12:00:00.000000
      -nanos
    time-millis, time-micros               int64                     BIGINT, microseconds since midnight
    record                                 struct of its fields      STRUCT
    array, map                             list, map                 ARRAY, MAP
    a union with null                      the rest, nullable
    a union of several types               struct of its branches    STRUCT<member0: ..., member1: ...>

A logical type that is not in this table is ignored, as Avro prescribes: its column has the type of the underlying type.
In a union of several types, the members are numbered in the order of the branches; null has no number. For each value,
one member has the value of its branch, and the others are null. int and long are one member with the number of the
first of the two, and so are float and double, because a value does not say which of the two it is.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from schemas.avro.avro_schema import AvroSchema, Node, kind_of, whole_name
from schemas.avro.logical_types import logical_type, meaning, python_type, raw_python_type
from schemas.comparing import ModelField, columns_fields
from schemas.decoder import UndecodableError
from schemas.model_columns import MAX_DECIMAL_DIGITS, UnsupportedFieldError, check_names
from schemas.writers.written_types import NUMBERS, written_type

Convert = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a time without a zone
_FIRST_DAY = date(1970, 1, 1)
_DAY = 86_400_000_000
_EXACT = Context(prec=1000)
_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MICROS_BY_UNIT = {"millis": 1000.0, "micros": 1.0, "nanos": 0.001}


@dataclass(frozen=True)
class AvroColumn:
    """The column of a part of a schema. convert: makes an object for Arrow of fastavro's object, which is not None; None
    if Arrow takes the object as it is."""

    type: pa.DataType
    nullable: bool = False
    convert: Convert | None = None


def columns_of(schema: AvroSchema) -> tuple[pa.Schema, Mapping[str, Convert | None]]:
    """The columns of a record's fields, and how the value of each field is converted.

    Raises:
        UnsupportedFieldError: the schema is no record, or a field has no column type.
    """
    root = schema.resolved(schema.root)
    if kind_of(root) != "record":
        raise UnsupportedFieldError("the schema", f"it is {_shown(root)}, but only a record has columns")
    found = _fields(schema, root, root["name"], ())
    check_names(root["name"], list(found), outermost=True)
    columns = pa.schema([pa.field(name, each.type, each.nullable) for name, each in found.items()])
    return columns, {name: each.convert for name, each in found.items()}


def fields_of(schema: AvroSchema, columns: pa.Schema) -> dict[str, ModelField]:
    """The fields by path. A field without a default is required: a value whose writer does not have it is refused."""
    required = set[str]()
    branches: dict[str, ModelField] = {}
    _describe(schema, schema.root, "", required, branches)
    return columns_fields(columns, required) | branches


def _describe(schema: AvroSchema, node: Node, path: str, required: set[str], branches: dict[str, ModelField]) -> None:
    """Add the paths of the required fields, and for each member of a union the type that it belongs to. Also add the type
    with which each part is written, the aliases of fields, and what `schemas.writers.written_types` describes else."""
    node = schema.resolved(node)
    kind = kind_of(node)
    if kind not in ("union", "array", "map"):
        branches[f"(type of {path or 'the record'})"] = ModelField(_written(node), required=False, nullable=False)
    if kind == "record":
        for field in node["fields"]:
            inner = f"{path}.{field['name']}".removeprefix(".")
            if "default" not in field:
                required.add(inner)
            if aliases := ", ".join(sorted(field.get("aliases", ()))):
                branches[f"(aliases of {inner})"] = ModelField(aliases, required=False, nullable=False)
            _describe(schema, field["type"], inner, required, branches)
    elif kind == "array":
        _describe(schema, node["items"], f"{path}[]", required, branches)
    elif kind == "map":
        values = schema.resolved(node["values"])
        if kind_of(values) == "union" and "null" in values:
            branches[f"(nulls of {path}{{}})"] = ModelField("null", required=False, nullable=False)
        _describe(schema, values, f"{path}{{}}", required, branches)
    elif kind == "union":
        several = [each for each in node if kind_of(schema.resolved(each)) != "null"]
        if len(several) == 1:
            _describe(schema, several[0], path, required, branches)
            return
        numbers: dict[str, int] = {}
        for number, each in enumerate(several):
            tag = _tag(schema, each)
            if numbers.setdefault(tag, number) == number:
                branches[f"(branch of {path}.member{number})"] = ModelField(tag, required=False, nullable=False)
                _describe(schema, each, f"{path}.member{number}", required, branches)
        found = [f"{each} member{numbers[_tag(schema, each)]}" for each in several if each in NUMBERS]
        if len(found) > 1:
            branches[f"(numbers of {path})"] = ModelField(", ".join(found), required=False, nullable=False)


def _written(node: Node) -> str:
    kind = kind_of(node)
    found = node if isinstance(node, dict) else {}
    return written_type(
        f"fixed({found['size']})" if kind == "fixed" else kind, logical_type(node), found.get("name", ""),
        found.get("aliases", ()), found.get("symbols", ()), found.get("default", "") if kind == "enum" else "",
    )  # fmt: skip


# --- Types --------------------------------------------------------------------------------------------------------


def _fields(schema: AvroSchema, record: Node, place: str, outer: tuple[str, ...]) -> dict[str, AvroColumn]:
    if record["name"] in outer:
        raise UnsupportedFieldError(place, f"{record['name']} contains itself, but a column cannot contain itself")
    if not record["fields"]:
        raise UnsupportedFieldError(place, f"{record['name']} has no fields")
    names = [field["name"] for field in record["fields"]]
    check_names(place, names)
    within = (*outer, record["name"])
    return {each["name"]: _column(schema, each["type"], f"{place}.{each['name']}", within) for each in record["fields"]}


def _column(schema: AvroSchema, node: Node, place: str, outer: tuple[str, ...]) -> AvroColumn:
    node = schema.resolved(node)
    kind = kind_of(node)
    if kind == "union":
        return _union(schema, node, place, outer)
    if kind == "record":
        return _record(_fields(schema, node, place, outer))
    if kind == "array":
        item = _column(schema, node["items"], f"{place}[]", outer)
        return AvroColumn(pa.list_(pa.field("element", item.type, item.nullable)), convert=_of_items(item.convert))
    if kind == "map":
        value = _column(schema, node["values"], f"{place}{{}}", outer)
        return AvroColumn(pa.map_(pa.string(), value.type), convert=_of_entries(value.convert))
    found = logical_column(node, place) or _PLAIN.get(kind)
    if found is None:
        raise UnsupportedFieldError(place, f"{_shown(node)} has no column type")
    return found


def _unnamed(value: Any) -> Any:
    """The value without the name of its type. fastavro adds the name to values of named types in unions."""
    return value[1] if isinstance(value, tuple) else value


_PLAIN: Mapping[str, AvroColumn] = {
    "boolean": AvroColumn(pa.bool_()),
    "int": AvroColumn(pa.int64()),
    "long": AvroColumn(pa.int64()),
    "float": AvroColumn(pa.float64()),
    "double": AvroColumn(pa.float64()),
    "bytes": AvroColumn(pa.binary()),
    "fixed": AvroColumn(pa.binary(), convert=_unnamed),
    "string": AvroColumn(pa.string()),
    "enum": AvroColumn(pa.string(), convert=_unnamed),
}


def logical_column(node: Node, place: str) -> AvroColumn | None:
    """The column of a logical type; None if the type has none, or one that is ignored."""
    logical = logical_type(node)
    name, _, unit = logical.rpartition("-")
    if logical == "decimal":
        return _decimal(node, place)
    if logical == "date":
        return AvroColumn(pa.date32(), convert=_day)
    if logical == "uuid":
        return AvroColumn(pa.string(), convert=_uuid)
    if name == "time":
        return AvroColumn(pa.int64(), convert=_time_of(_MICROS_BY_UNIT[unit]))
    if name == "timestamp":
        return AvroColumn(pa.timestamp("us", tz="UTC"), convert=_moment_of(_MICROS_BY_UNIT[unit]))
    if name == "local-timestamp":
        return AvroColumn(pa.string(), convert=_local_of(_MICROS_BY_UNIT[unit]))
    return None


def _decimal(node: Node, place: str) -> AvroColumn:
    digits, places = node.get("precision"), node.get("scale", 0)
    if not isinstance(digits, int) or not isinstance(places, int) or not 0 < digits <= MAX_DECIMAL_DIGITS:
        raise UnsupportedFieldError(
            place, f"a decimal needs a precision from 1 to {MAX_DECIMAL_DIGITS}; found {digits!r}"
        )

    def convert(value: Any) -> Any:
        value = _unnamed(value)
        if isinstance(value, bytes):  # the writer has no logical type
            if not value:
                raise UndecodableError("malformed: a decimal has no bytes")
            return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-places, _EXACT)
        return value

    return AvroColumn(pa.decimal128(digits, places), convert=convert)


def _union(schema: AvroSchema, node: Sequence[Node], place: str, outer: tuple[str, ...]) -> AvroColumn:
    branches = [each for each in node if kind_of(schema.resolved(each)) != "null"]
    nullable = len(branches) < len(node)
    if not branches:
        raise UnsupportedFieldError(place, "the union has no type but null")
    if len(branches) == 1:
        found = _column(schema, branches[0], place, outer)
        return AvroColumn(found.type, nullable, found.convert)
    members: dict[str, tuple[str, AvroColumn]] = {}
    meanings: dict[str, str] = {}
    for number, each in enumerate(branches):
        tag, meant = _tag(schema, each), meaning(schema.resolved(each))
        if meanings.setdefault(tag, meant) != meant:
            raise UnsupportedFieldError(
                place, f"the union has {meanings[tag] or tag} and {meant or tag}, which a value does not tell apart"
            )
        if tag not in members:
            members[tag] = (f"member{number}", _column(schema, each, f"{place}.member{number}", outer))
    if len(members) == 1:  # int and long, or float and double
        ((_, only),) = members.values()
        return AvroColumn(only.type, nullable, only.convert)
    kind = pa.struct([pa.field(name, each.type) for name, each in members.values()])
    # If the writer's schema has no union, fastavro returns a value of a named type without the name of the type.
    unnamed = {_tag(schema, each, named=False): members[_tag(schema, each)] for each in branches}
    whole = {whole_name(tag): each for tag, each in members.items()}
    # If only the reader has a logical type, fastavro returns the object of the type without it.
    raw = {
        raw_python_type(node): members[_tag(schema, node)]
        for node in reversed([schema.resolved(each) for each in branches])
        if kind_of(node) != "fixed" and logical_type(node)
    }
    return AvroColumn(kind, nullable, _of_branches(raw | unnamed | members | whole))


def _tag(schema: AvroSchema, node: Node, *, named: bool = True) -> str:
    """What tells the values of a branch from those of another branch: the name of a named type, or the Python type.

    named: whether values of named types have names.
    """
    node = schema.resolved(node)
    kind = kind_of(node)
    if named and kind in ("record", "enum", "fixed"):
        return str(node["name"])
    return python_type(node)


# --- Conversions --------------------------------------------------------------------------------------------------


def _record(fields: Mapping[str, AvroColumn]) -> AvroColumn:
    kind = pa.struct([pa.field(name, each.type, each.nullable) for name, each in fields.items()])
    conversions = {name: each.convert for name, each in fields.items() if each.convert is not None}

    def convert(value: Any) -> Any:
        record = _unnamed(value)
        return converted(record, conversions) if conversions else record

    return AvroColumn(kind, convert=convert)


def converted(record: Mapping[str, Any], conversions: Mapping[str, Convert]) -> dict[str, Any]:
    """A record, after these fields were converted."""
    found = dict(record)
    for name, convert in conversions.items():
        if (value := found[name]) is not None:
            found[name] = convert(value)
    return found


def _of_items(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: [None if each is None else convert(each) for each in value]


def _of_entries(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda value: list(value.items())
    return lambda value: [(key, None if each is None else convert(each)) for key, each in value.items()]


def _of_branches(members: Mapping[str, tuple[str, AvroColumn]]) -> Convert:
    def convert(value: Any) -> Any:
        tag = value[0] if isinstance(value, tuple) else type(value).__name__
        found = members.get(tag)
        if found is None:
            raise UndecodableError("no_branch: a union has no branch for the type of the value")
        name, column = found
        return {name: value if column.convert is None else column.convert(value)}

    return convert


def _day(value: Any) -> date:
    return value if isinstance(value, date) else _FIRST_DAY + timedelta(days=value)


def _uuid(value: Any) -> str:
    value = _unnamed(value)
    if isinstance(value, str):  # the writer has no logical type
        if not _UUID.fullmatch(value):
            raise UndecodableError("malformed: a uuid has another form than 8-4-4-4-12 hexadecimal digits")
        return value.lower()
    return str(uuid.UUID(bytes=value)) if isinstance(value, bytes) else str(value)


def _time_of(micros: float) -> Convert:
    def convert(value: Any) -> int:
        if isinstance(value, time):
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        if not 0 <= (found := _micros(value, micros)) < _DAY:  # the writer has no logical type
            raise UndecodableError("out_of_range: a time of day is outside of a day")
        return found

    return convert


def _moment_of(micros: float) -> Convert:
    return lambda value: (
        value if isinstance(value, datetime) else _EPOCH + timedelta(microseconds=_micros(value, micros))
    )


def _local_of(micros: float) -> Convert:
    def convert(value: Any) -> str:
        moment = value if isinstance(value, datetime) else _LOCAL_EPOCH + timedelta(microseconds=_micros(value, micros))
        return moment.isoformat(timespec="microseconds")

    return convert


def _micros(value: int, factor: float) -> int:
    """A number of milliseconds, microseconds or nanoseconds in microseconds, rounded down."""
    return value // 1000 if factor < 1 else value * int(factor)


def _shown(node: Node) -> str:
    kind = kind_of(node)
    return f"the {kind} {node['name']}" if isinstance(node, dict) and "name" in node else f"the type {kind}"
