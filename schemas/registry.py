"""Finds the event model of a name: `flight` is the class `Flight` in schemas/flight.py.

There is no list to keep: a new file with a class of the matching name is a new schema. The name is what a topic's
`schema:` setting holds; words are joined by underscores, so `bike_trip` is `BikeTrip` in schemas/bike_trip.py.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil

import schemas
from schemas.event_model import EventModel


class UnknownSchemaError(LookupError):
    """No event model has this name.

    Args:
        name: the name that was asked for.
        known: the names that there are.
    """

    def __init__(self, name: str, known: list[str]) -> None:
        self.name = name
        self.known = known
        super().__init__(name, known)

    def __str__(self) -> str:
        near = difflib.get_close_matches(self.name, self.known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"there is no schema {self.name!r} (known: {', '.join(self.known)}){hint}"


def model(name: str) -> type[EventModel]:
    """The event model called `name`.

    Raises:
        UnknownSchemaError: if there is none.
    """
    found = _model_in_module(name) if name in _module_names() else None
    if found is None:
        raise UnknownSchemaError(name, names())
    return found


def names() -> list[str]:
    """The names of all event models, sorted. Imports each of them."""
    return sorted(name for name in _module_names() if _model_in_module(name) is not None)


def _module_names() -> set[str]:
    return {module.name for module in pkgutil.iter_modules(schemas.__path__)}


def _model_in_module(name: str) -> type[EventModel] | None:
    class_name = "".join(word.capitalize() for word in name.split("_"))
    found = getattr(importlib.import_module(f"{schemas.__name__}.{name}"), class_name, None)
    is_event = isinstance(found, type) and issubclass(found, EventModel) and found is not EventModel
    return found if is_event else None
