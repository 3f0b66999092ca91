"""Compares two versions of an event model: lists the changes, and marks each change that breaks older records or their
readers.

    accepted                                          refused
    a new optional field                              a new required field
    a field becomes nullable or optional              a field is no longer nullable or optional
    int to float; int to a Decimal that can hold      any other change of type
      every int; Decimal to a Decimal with more       a field is removed (a rename is a removed and a new field)
      digits on either side of the point

A field is optional if it may be missing, and nullable if it may be null. A field is named by its path:
`legs[].distance` is the field `distance` of the elements of the list `legs`, and `marks{}` are the values of the map
`marks`. A path in round brackets is no field: it describes how values are written. A new object or a removed object counts as
one change. The fields of this object are not compared. Constraints such as Field(gt=0) and the values of an Enum or a
Literal are not compared either.
"""

from __future__ import annotations

import hashlib
import json
import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

import pyarrow as pa
from pydantic import BaseModel

from schemas.model_columns import arrow_schema
from schemas.writers.written_types import described_field, is_readable

_INT_DIGITS = 19
"""The most digits of a 64-bit int."""

_MORE_BITS = {("int32", "int64"), ("sint32", "sint64"), ("uint32", "uint64")}
"""Protobuf's types, each with the type that reads the same bytes with the same sign."""


@dataclass(frozen=True)
class ModelField:
    """A field of an event model. required: the field must be present. nullable: its value may be null."""

    type: str
    required: bool
    nullable: bool


@dataclass(frozen=True)
class ModelChanges:
    """The changes of a model, one line each.

    compatible: changes that are accepted.
    breaking: changes that break older records or their readers.
    """

    compatible: tuple[str, ...] = ()
    breaking: tuple[str, ...] = ()


def model_fields(model: type[BaseModel]) -> dict[str, ModelField]:
    """The fields of a model by path, in the order of the model.

    Raises:
        UnsupportedFieldError: if a field has no column type.
    """
    found: dict[str, ModelField] = {}
    _describe_fields(model, arrow_schema(model), "", found)
    return found


def columns_fields(columns: pa.Schema, required: Collection[str]) -> dict[str, ModelField]:
    """The fields of these columns by path, in the order of the columns.

    Args:
        required: the paths of the fields that must be present.
    """
    found: dict[str, ModelField] = {}

    def describe(column: pa.Field, path: str) -> None:
        found[path] = ModelField(_type_name(column.type), path in required, column.nullable)
        if pa.types.is_list(column.type):
            describe(column.type.value_field, f"{path}[]")
        elif pa.types.is_map(column.type):
            describe(column.type.item_field, f"{path}{{}}")
        elif pa.types.is_struct(column.type):
            for each in column.type:
                describe(each, f"{path}.{each.name}")

    for each in columns:
        describe(each, each.name)
    return found


def fingerprint(fields: Mapping[str, ModelField]) -> str:
    """A hash of the fields: two models have the same fingerprint if their fields are the same."""
    text = json.dumps([[path, each.type, each.required, each.nullable] for path, each in sorted(fields.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compare(before: Mapping[str, ModelField], after: Mapping[str, ModelField]) -> ModelChanges:
    """The changes, in the order of the paths. The fields inside a new or removed field are not listed."""
    compatible: list[str] = []
    breaking: list[str] = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        outer = _outer(path)
        if old is None and new is not None:
            if outer in after and outer not in before:
                continue
            (breaking if new.required else compatible).append(f"{path} is new{' and required' if new.required else ''}")
        elif new is None:
            if (outer in before and outer not in after) or _is_listed(described_field(path), before, after):
                continue
            breaking.append(f"{path} is removed")
        elif old is not None:
            if old.type != new.type and not _is_listed(described_field(path), before, after):
                widened = is_widened(old.type, new.type) or is_readable(path, old.type, new.type)
                (compatible if widened else breaking).append(f"{path} was {old.type} and is now {new.type}")
            if old.required != new.required:
                (breaking if new.required else compatible).append(
                    f"{path} is now {'required' if new.required else 'optional'}"
                )
            if old.nullable != new.nullable:
                (compatible if new.nullable else breaking).append(
                    f"{path} {'may now be null' if new.nullable else 'may no longer be null'}"
                )
    return ModelChanges(tuple(compatible), tuple(breaking))


def _is_listed(field: str, before: Mapping[str, ModelField], after: Mapping[str, ModelField]) -> bool:
    """Whether this field or one around it is listed as breaking, because it is removed or has another type of column."""
    while field:
        old, new = before.get(field), after.get(field)
        if old is not None and (new is None or (old.type != new.type and not is_widened(old.type, new.type))):
            return True
        field = _outer(field)
    return False


def is_widened(old: str, new: str) -> bool:
    """Whether a column of type `new` can hold every number of type `old`. The types are written as in `ModelField`.

    int to float counts as widened, even though a float represents only ints up to 2^53 exactly.
    """
    if (old == "int" and new == "float") or _is_more_bits(old, new):
        return True
    if not new.startswith("Decimal("):
        return False
    digits, places = _digits(new)
    if old == "int":
        return digits - places >= _INT_DIGITS
    if not old.startswith("Decimal("):
        return False
    old_digits, old_places = _digits(old)
    return places >= old_places and digits - places >= old_digits - old_places


def _is_more_bits(old: str, new: str) -> bool:
    """Whether an entry of Protobuf has the same number and a type of more bits, which is written in the same way."""
    (old_number, _, old_kind), (new_number, _, new_kind) = old.rpartition(" "), new.rpartition(" ")
    return old_number == new_number and (old_kind, new_kind) in _MORE_BITS


def _outer(path: str) -> str:
    """The path of the object, list or map that contains this field; empty at the first level."""
    return path[: max(path.rfind("."), path.rfind("[]"), path.rfind("{}"), 0)]


def _describe_fields(
    model: type[BaseModel], columns: Iterable[pa.Field], outer: str, found: dict[str, ModelField]
) -> None:
    for column in columns:
        info = model.model_fields[column.name]
        _describe(column, info.annotation, f"{outer}{column.name}", info.is_required(), found)


def _describe(column: pa.Field, annotation: Any, path: str, required: bool, found: dict[str, ModelField]) -> None:
    found[path] = ModelField(_type_name(column.type), required, column.nullable)
    plain = plain_annotation(annotation)
    if pa.types.is_list(column.type):
        (item,) = get_args(plain)
        _describe(column.type.value_field, item, f"{path}[]", False, found)
    elif pa.types.is_struct(column.type):
        _describe_fields(plain, column.type, f"{path}.", found)


def plain_annotation(annotation: Any) -> Any:
    """The annotation without Annotated and None. The annotation must have a column type."""
    while (origin := get_origin(annotation)) in (Annotated, Union, types.UnionType):
        choices = get_args(annotation)[:1] if origin is Annotated else get_args(annotation)
        (annotation,) = (choice for choice in choices if choice is not type(None))
    return annotation


_NAMES = {
    pa.string(): "str",
    pa.int64(): "int",
    pa.float64(): "float",
    pa.bool_(): "bool",
    pa.binary(): "bytes",
    pa.timestamp("us", tz="UTC"): "datetime",
    pa.date32(): "date",
}


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"Decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return "list"
    if pa.types.is_map(kind):
        return "map"
    if pa.types.is_struct(kind):
        return "object"
    return _NAMES[kind]


def _digits(decimal: str) -> tuple[int, int]:
    digits, places = decimal.removeprefix("Decimal(").removesuffix(")").split(",")
    return int(digits), int(places)
