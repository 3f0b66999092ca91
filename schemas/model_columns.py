"""Maps an event model to Arrow columns. Spark's and Delta's types are derived from the same mapping.

    annotation           Arrow type              Spark SQL
    str                  string                  STRING
    int                  int64                   BIGINT
    float                double                  DOUBLE
    bool                 bool                    BOOLEAN
    bytes                binary                  BINARY
    datetime             timestamp[us, UTC]      TIMESTAMP
    date                 date32                  DATE
    Decimal              decimal128(max_digits, decimal_places); Field must give both
    an Enum, Literal     string; all values are texts
    X | None             X, nullable
    list[X]              list<X>
    a pydantic model     struct of its fields

Any other annotation of a field is refused when the model is first used, before a record is read.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pyarrow as pa
from pydantic import BaseModel, PydanticUndefinedAnnotation
from pydantic.fields import FieldInfo

_SCALARS: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime: pa.timestamp("us", tz="UTC"),
    date: pa.date32(),
}

MAX_DECIMAL_DIGITS = 38
"""The most digits of a decimal in Arrow's decimal128, in Parquet and in Spark."""


class UnsupportedFieldError(TypeError):
    """A field of an event model has no column type.

    Args:
        field: model and path of the field, such as Flight.legs[].distance.
        problem: the type that was found, and the types that are allowed.
    """

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(field, problem)

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}"


def arrow_schema(model: type[BaseModel]) -> pa.Schema:
    """The columns of `model`, in the order of its fields; a field is nullable if its annotation allows None.

    Raises:
        UnsupportedFieldError: if a field has no column type.
    """
    return pa.schema(_fields(model, model.__name__, ()))


def check_names(place: str, names: Sequence[str], *, outermost: bool = False) -> None:
    """Check that fields can be columns of one table, or fields of one struct.

    Args:
        outermost: whether the names become columns of the table, which has columns of its own.

    Raises:
        UnsupportedFieldError: two names are equal in Spark, or a column begins with an underscore.
    """
    seen: dict[str, str] = {}
    for number, name in enumerate(names):
        # Spark and Delta ignore the case of column names.
        twin = seen.setdefault(name.lower(), name)
        if twin != name:
            raise UnsupportedFieldError(f"{place}.{name}", f"differs from {twin} only in upper and lower case")
        if name in names[:number]:
            raise UnsupportedFieldError(f"{place}.{name}", "is there twice")
        if outermost and name.startswith("_"):
            raise UnsupportedFieldError(
                f"{place}.{name}", "begins with an underscore, but the names of Lakelog's own columns begin so"
            )


def _fields(model: type[BaseModel], place: str, outer: tuple[type[BaseModel], ...]) -> list[pa.Field]:
    if model in outer:
        raise UnsupportedFieldError(place, f"{model.__name__} contains itself, but a column cannot contain itself")
    try:
        model.model_rebuild()  # its fields may have types that are defined later in its module
    except PydanticUndefinedAnnotation as error:
        raise UnsupportedFieldError(place, f"uses {error.name}, which its module does not define") from None
    if not model.model_fields:
        raise UnsupportedFieldError(place, f"{model.__name__} has no fields")
    fields: list[pa.Field] = []
    check_names(place, list(model.model_fields))
    for name, info in model.model_fields.items():
        fields.append(_field(name, info.annotation, info.metadata, f"{place}.{name}", (*outer, model)))
    return fields


def _field(
    name: str, annotation: Any, metadata: Iterable[Any], place: str, outer: tuple[type[BaseModel], ...]
) -> pa.Field:
    constraints = list(metadata)
    nullable = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            for item in more:
                constraints.extend(item.metadata if isinstance(item, FieldInfo) else [item])
        elif get_origin(annotation) in (Union, types.UnionType):
            alternatives = [choice for choice in get_args(annotation) if choice is not type(None)]
            if len(alternatives) != 1 or len(alternatives) == len(get_args(annotation)):
                raise UnsupportedFieldError(place, f"{annotation} allows several types, but a column has only one type")
            (annotation,) = alternatives
            nullable = True
        else:
            break
    return pa.field(name, _type(annotation, constraints, place, outer), nullable=nullable)


def _type(annotation: Any, constraints: list[Any], place: str, outer: tuple[type[BaseModel], ...]) -> pa.DataType:
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if annotation is Decimal:
        return _decimal(constraints, place)
    if get_origin(annotation) is list:
        (item,) = get_args(annotation)
        return pa.list_(_field("element", item, (), f"{place}[]", outer))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return pa.struct(_fields(annotation, place, outer))
    if (values := listed_values(annotation)) is not None:
        if other := {type(each).__name__ for each in values if type(each) is not str}:
            raise UnsupportedFieldError(place, f"allows values of the type {', '.join(sorted(other))}; use only str")
        return pa.string()
    known = ", ".join(scalar.__name__ for scalar in _SCALARS)
    raise UnsupportedFieldError(
        place, f"{annotation} has no column type; use {known}, Decimal, Enum, Literal, list[...] or a nested model"
    )


def listed_values(annotation: Any) -> list[Any] | None:
    """The values that an Enum or a Literal allows; None if the annotation is neither."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [each.value for each in annotation]
    return None


def _decimal(constraints: list[Any], place: str) -> pa.DataType:
    digits = _constraint(constraints, "max_digits")
    places = _constraint(constraints, "decimal_places")
    if digits is None or places is None or not 0 < digits <= MAX_DECIMAL_DIGITS or not 0 <= places <= digits:
        raise UnsupportedFieldError(
            place,
            f"Decimal needs Field(max_digits=..., decimal_places=...) with at most {MAX_DECIMAL_DIGITS} digits; "
            f"found max_digits={digits}, decimal_places={places}",
        )
    return pa.decimal128(digits, places)


def _constraint(constraints: list[Any], name: str) -> int | None:
    return next((value for item in constraints if (value := getattr(item, name, None)) is not None), None)
