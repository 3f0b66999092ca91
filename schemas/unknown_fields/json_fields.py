"""Finds the fields of a text in JSON that an event model does not have.

A field is known if pydantic reads a field of the model from it: by its name or by its aliases. The fields inside known
objects are compared with the nested models, also if the objects are in lists. Code of the model that changes a value before
pydantic checks it has no influence: the text itself is compared. If pydantic looks for a field with an AliasPath, and finds
a value of another form there, this value counts as known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Optional, get_args

from pydantic import AliasChoices, AliasPath, BaseModel, RootModel
from pydantic.fields import FieldInfo
from pydantic_core import from_json

from schemas.unknown_fields.extra_column import Unknown, as_written, of_fields, of_items

Known = Mapping[str | int, Optional["Known"]]
"""By the name of a field, the known fields of the objects in it; None if everything in it is known. In a list, the names are
those of each item. If a field of the model is an item of a list, its number is here instead."""
_Path = tuple[str | int, ...]


def unknown_in_json(text: bytes, model: type[BaseModel]) -> Unknown:
    """The fields of a text that the model does not have. Numbers keep their digits. If a name is there twice, the last field
    counts.

    Args:
        text: a text in JSON that the model accepts.
    """
    known = _known(model)
    if _unknown(from_json(text), known) is None:  # from_json is faster, and most values have no unknown field
        return None
    value = json.loads(text.decode(), parse_float=as_written, parse_int=as_written, parse_constant=str)
    return _unknown(value, known) if isinstance(value, dict) else None


def _unknown(value: Any, known: Known | None) -> Unknown:
    if known is None:
        return None
    if isinstance(value, list):
        return _in_list(value, known)
    if not isinstance(value, dict):
        return None
    new = {name: each for name, each in value.items() if name not in known}
    inner = of_fields((name, _unknown(each, known[name])) for name, each in value.items() if name in known)
    return new | (inner or {}) or None


def _in_list(items: list[Any], known: Known) -> Unknown:
    """The unknown fields of a list. If the model only takes single items of it, the other items are unknown."""
    fields: Known = {name: each for name, each in known.items() if isinstance(name, str)}
    count = len(items)
    taken = {
        number % count: each for number, each in known.items() if isinstance(number, int) and -count <= number < count
    }
    return of_items(
        _unknown(each, taken[number]) if number in taken else _unknown(each, fields) if fields else each
        for number, each in enumerate(items)
    )


@lru_cache
def _known(model: type[BaseModel]) -> Known:
    found: Known = {}
    for name, field in model.model_fields.items():
        inner = _inner(field.annotation)
        for path in _paths(model, name, field):
            found = _both(found, _at(path, inner))
    return found


def _inner(annotation: Any) -> Known | None:
    """The known fields of the objects in a field."""
    if isinstance(annotation, type) and issubclass(annotation, RootModel):
        return _inner(annotation.model_fields["root"].annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _known(annotation)
    return next((found for each in get_args(annotation) if (found := _inner(each)) is not None), None)


def _at(path: _Path, inner: Known | None) -> Known:
    """A field at a path."""
    first, *others = path
    return {first: _at(tuple(others), inner) if others else inner}


def _both(one: Known, other: Known) -> Known:
    """The fields that are known to one or the other."""
    found = {**one, **other}
    for name in one.keys() & other.keys():
        first, second = one[name], other[name]
        found[name] = None if first is None or second is None else _both(first, second)
    return found


def _paths(model: type[BaseModel], name: str, field: FieldInfo) -> Iterator[_Path]:
    """Where pydantic looks for the value of a field."""
    config, alias = model.model_config, field.validation_alias
    by_alias = alias is not None and config.get("validate_by_alias", True)
    if not by_alias or config.get("validate_by_name") or config.get("populate_by_name"):
        yield (name,)
    if by_alias:
        for each in alias.choices if isinstance(alias, AliasChoices) else [alias]:
            yield tuple(each.path) if isinstance(each, AliasPath) else (str(each),)
