"""Finds an event model by its name: `flight` is the class `Flight` in schemas/flight.py.

The name is the value of a topic's setting `schema:`. Words are joined by underscores: `bike_trip` is the class `BikeTrip`
in schemas/bike_trip.py. A new file with a class of the matching name is a new model; there is no list of models.
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
        name: the name that was requested.
        known: the names of all models.
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
    """The event model with this name.

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
