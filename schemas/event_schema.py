"""Finds the event model that a `schema:` setting names.

A schema is named in one of three ways:

    flight                        the class Flight in schemas/flight.py; `bike_trip` is BikeTrip in schemas/bike_trip.py
    shop.events:Order             the pydantic model Order of the module shop.events
    id STRING NOT NULL, n BIGINT  columns in Spark's DDL (schemas.ddl)

Python finds the module of the second form like any other module: it is installed, is on PYTHONPATH, or is in one of the
folders of the setting `schemas.path`. Python searches these folders last, so no file in these folders hides an
installed module.

If an `EventSchema` is pickled, the pickle contains only the text of the setting and the folders. So each executor
imports the module again, from the same folders.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

from pydantic import BaseModel, RootModel

import schemas
from schemas import ddl
from schemas.event_model import EventModel
from schemas.model_columns import UnsupportedFieldError, arrow_schema

_NAME = re.compile(r"\w+")
_REFERENCE = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.\w+)*):(?P<model>[A-Za-z_]\w*(?:\.\w+)*)")


class UnknownSchemaError(LookupError):
    """The text names no event model, or a field of the model has no column type.

    Args:
        problem: what was searched for, and where.
        remedy: what to do.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(problem, remedy)

    def __str__(self) -> str:
        return f"{self.problem}. {self.remedy}"


@dataclass(frozen=True)
class EventSchema:
    """An event model, named by the text of a setting.

    text: the text in the settings, in one of the three forms.
    folders: the absolute folders of the setting `schemas.path`.
    """

    text: str
    folders: tuple[str, ...] = ()

    @property
    def is_ddl(self) -> bool:
        """Whether the text is columns in DDL, and not the name of a model."""
        reference = _REFERENCE.fullmatch(self.text)
        return _NAME.fullmatch(self.text) is None and (reference is None or ddl.is_type(reference["model"]))

    @property
    def model(self) -> type[BaseModel]:
        """The model. The first call in a process imports the module of the model.

        Raises:
            UnknownSchemaError: the text names no model, or a field of the model has no column type.
        """
        return _model(self)


def names() -> list[str]:
    """The names of all event models in schemas/, sorted. The call imports the module of each model."""
    return sorted(name for name in _module_names() if _model_in_schemas(name) is not None)


@lru_cache
def _model(schema: EventSchema) -> type[BaseModel]:
    try:
        if schema.is_ddl:
            found: type[BaseModel] = ddl.event_model(schema.text)
        elif reference := _REFERENCE.fullmatch(schema.text):
            found = _model_in_module(reference["module"], reference["model"], schema.folders)
        else:
            found = _named_model(schema.text)
        arrow_schema(found)
    except UnsupportedFieldError as error:
        raise UnknownSchemaError(
            f"schema {schema.text!r} cannot become columns: {error}", "Change the type of this field in the model."
        ) from error
    except ddl.DdlError as error:
        raise UnknownSchemaError(
            f"schema {schema.text!r} is neither a model nor columns in Spark's DDL: {error}",
            f"Name a model in schemas/ ({', '.join(names())}), module:Class, or columns such as `id BIGINT, name STRING`.",
        ) from error
    return found


def _named_model(name: str) -> type[EventModel]:
    found = _model_in_schemas(name) if name in _module_names() else None
    if found is None:
        known = names()
        near = difflib.get_close_matches(name, known, n=1)
        raise UnknownSchemaError(
            f"there is no model {name!r} in schemas/, which has only {', '.join(known)}",
            f"Did you mean {near[0]}?" if near else "Name a class of your own as module:Class.",
        )
    return found


def _module_names() -> set[str]:
    return {module.name for module in pkgutil.iter_modules(schemas.__path__)}


def _model_in_schemas(name: str) -> type[EventModel] | None:
    class_name = "".join(word.capitalize() for word in name.split("_"))
    found = getattr(importlib.import_module(f"{schemas.__name__}.{name}"), class_name, None)
    is_event = isinstance(found, type) and issubclass(found, EventModel) and found is not EventModel
    return found if is_event else None


def _model_in_module(module_name: str, class_name: str, folders: tuple[str, ...]) -> type[BaseModel]:
    module = _imported(module_name, folders)
    found: object = module
    for part in class_name.split("."):
        found = getattr(found, part, None)
    place = module.__file__ or module_name
    if found is None:
        own = (name for name, each in vars(module).items() if _is_model(each) and each.__module__ == module_name)
        models = sorted(own)
        near = difflib.get_close_matches(class_name, models, n=1)
        has = f"its models are {', '.join(models)}" if models else "it has no pydantic model"
        raise UnknownSchemaError(
            f"the module {module_name} ({place}) has no class {class_name}; {has}",
            f"Did you mean {module_name}:{near[0]}?" if near else "Name one of the module's pydantic models.",
        )
    if not _is_model(found):
        raise UnknownSchemaError(
            f"{class_name} of the module {module_name} ({place}) is not a pydantic model with fields",
            "Name a class that derives from pydantic.BaseModel but not from RootModel.",
        )
    return found


def _is_model(found: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(found, type) and issubclass(found, BaseModel) and not issubclass(found, RootModel)


def _imported(name: str, folders: tuple[str, ...]) -> ModuleType:
    for folder in folders:
        if folder not in sys.path:
            sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UnknownSchemaError(
                f"there is no module {error.name}: it is not installed, and not in {_searched()}",
                "Add the folder that contains the module to PYTHONPATH or to the setting schemas.path.",
            ) from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:  # the module is the user's own code
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> UnknownSchemaError:
    problem = f"the module {name} cannot be imported: {type(error).__name__}: {error}"
    return UnknownSchemaError(problem, f"`python -c 'import {name}'` shows where the error is.")


def _searched() -> str:
    """The folders of Python's search path, without those of the installed packages and of Python itself."""
    installed = tuple(str(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix))
    folders = dict.fromkeys(str(Path(folder).resolve()) for folder in sys.path if not folder.endswith(".zip"))
    return ", ".join(folder for folder in folders if not folder.startswith(installed))
