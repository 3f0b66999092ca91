"""Imports packages that are not installed with Lakelog itself. If a package is missing, the error says how to install
it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from storage_engine.errors import LogError


class MissingPackageError(LogError):
    """A function requires a package that is not installed with Lakelog itself."""


@contextmanager
def optional(package: str, requirement: str, purpose: str) -> Iterator[None]:
    """Turn the ImportError of a missing package into an error that says how to install the package. The `with` block
    imports the package.

    Args:
        package: the name of the package in the import statement.
        requirement: the argument for `pip install`.
        purpose: the use of the package, as the start of a sentence.

    Raises:
        MissingPackageError: the package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        problem = f"{purpose} requires the package {package}, which is not installed"
        raise MissingPackageError(package, problem, f"Run: pip install '{requirement}'.") from error


@contextmanager
def of_checkout(purpose: str) -> Iterator[None]:
    """Turn the ImportError of a package that only a checkout has, or of deltalake, into an error that says how to get it.

    Args:
        purpose: the use of the package, as the start of a sentence.

    Raises:
        MissingPackageError: the package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in ("pipeline", "schemas", "deltalake"):
            raise
        remedy = (
            "Run: pip install 'lakelog[delta]'." if name == "deltalake" else "Add a checkout of Lakelog to PYTHONPATH."
        )
        problem = f"{purpose} requires the package {name}, which is not installed"
        raise MissingPackageError(name, problem, remedy) from error
