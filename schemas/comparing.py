"""Compares two versions of an event model: lists the changes, and says which of them break readers of older records.

    accepted                                          refused
    a new field that may be missing                   a new field that must be there
    a field that may be null, or missing, now         a field that may no longer be null, or missing
    int to float; int to a Decimal that holds it;     any other change of type
    Decimal to one with more digits on either side    a field that is gone (a rename is one gone and one new)

A field is named by its path: `legs[].distance` is the field `distance` of the elements of the list `legs`. An object
that is new, or gone, is one change: records without the object lack none of the fields that it must have. Constraints
such as Field(gt=0) are no part of the comparison.
"""

from __future__ import annotations

import hashlib
import json
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

import pyarrow as pa

from schemas.columns import arrow_schema
from schemas.event_model import EventModel

_INT_DIGITS = 19
"""What an int of 64 bits may have."""


@dataclass(frozen=True)
class ModelField:
    """A field of an event model. required: it may not be missing. nullable: it may be null."""

    type: str
    required: bool
    nullable: bool


@dataclass(frozen=True)
class ModelChanges:
    """One line for each change. breaking: with which older records, or their readers, cannot go on."""

    compatible: tuple[str, ...] = ()
    breaking: tuple[str, ...] = ()


def model_fields(model: type[EventModel]) -> dict[str, ModelField]:
    """The fields of a model by path, in order.

    Raises:
        UnsupportedFieldError: if a field has no column type.
    """
    found: dict[str, ModelField] = {}
    _describe_fields(model, arrow_schema(model), "", found)
    return found


def fingerprint(fields: Mapping[str, ModelField]) -> str:
    """The same for the same fields, and another for others."""
    text = json.dumps([[path, each.type, each.required, each.nullable] for path, each in sorted(fields.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compare(before: Mapping[str, ModelField], after: Mapping[str, ModelField]) -> ModelChanges:
    """What changed, in the order of the paths. What is inside a field that is new, or gone, goes with that field."""
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
            if outer in before and outer not in after:
                continue
            breaking.append(f"{path} is gone")
        elif old is not None:
            if old.type != new.type:
                widened = is_widened(old.type, new.type)
                (compatible if widened else breaking).append(f"{path} was {old.type} and is {new.type}")
            if old.required != new.required:
                (breaking if new.required else compatible).append(
                    f"{path} {'must be there now' if new.required else 'may be missing now'}"
                )
            if old.nullable != new.nullable:
                (compatible if new.nullable else breaking).append(
                    f"{path} {'may be null now' if new.nullable else 'may no longer be null'}"
                )
    return ModelChanges(tuple(compatible), tuple(breaking))


def is_widened(old: str, new: str) -> bool:
    """Whether a column of type `new` holds every number of type `old`; of ints as a float only those up to 2^53, exactly.

    The types are as in `ModelField`.
    """
    if old == "int" and new == "float":
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


def _outer(path: str) -> str:
    """The path of the object or list that a path leads into; empty at the first level."""
    return path[: max(path.rfind("."), path.rfind("[]"), 0)]


def _describe_fields(
    model: type[EventModel], columns: Iterable[pa.Field], outer: str, found: dict[str, ModelField]
) -> None:
    for column in columns:
        info = model.model_fields[column.name]
        _describe(column, info.annotation, f"{outer}{column.name}", info.is_required(), found)


def _describe(column: pa.Field, annotation: Any, path: str, required: bool, found: dict[str, ModelField]) -> None:
    found[path] = ModelField(_type_name(column.type), required, column.nullable)
    plain = _plain(annotation)
    if pa.types.is_list(column.type):
        (item,) = get_args(plain)
        _describe(column.type.value_field, item, f"{path}[]", False, found)
    elif pa.types.is_struct(column.type):
        _describe_fields(plain, column.type, f"{path}.", found)


def _plain(annotation: Any) -> Any:
    """An annotation that has a column type, without constraints and None."""
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
    if pa.types.is_struct(kind):
        return "object"
    return _NAMES[kind]


def _digits(decimal: str) -> tuple[int, int]:
    digits, places = decimal.removeprefix("Decimal(").removesuffix(")").split(",")
    return int(digits), int(places)
