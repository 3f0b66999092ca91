"""Imports packages that are not installed with Lakelog itself, and says how to install a missing one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from storage_engine.errors import LogError


class MissingPackageError(LogError):
    """A function requires a package that is not installed with Lakelog itself."""


@contextmanager
def optional(package: str, requirement: str, purpose: str) -> Iterator[None]:
    """Surround the import of a package.

    Args:
        package: the name that is imported.
        requirement: what `pip install` has to be given.
        purpose: what the package is for, as the start of a sentence.

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
