"""Defines the errors of schemas: a schema that cannot be used, and a place of schemas that cannot be read."""

from __future__ import annotations

import importlib
from types import ModuleType

from storage_engine.errors import LogError


class UnknownSchemaError(LookupError):
    """The text names no schema, or a field of the schema has no column type.

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


class MissingFormatError(UnknownSchemaError):
    """The package that decodes a format is not installed."""


class RegistryError(LogError):
    """A schema registry is unavailable, refuses access, or gives an answer that cannot be used."""


def required_package(module: str, package: str, extra: str) -> ModuleType:
    """A module of a package that is not installed with Lakelog itself.

    Args:
        package: the name of the package for pip.
        extra: the name of the extra of Lakelog that installs the package.

    Raises:
        MissingFormatError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise MissingFormatError(
            f"values of this schema need the package {package}, which is not installed",
            f"Run: pip install 'lakelog[{extra}]'.",
        ) from error
