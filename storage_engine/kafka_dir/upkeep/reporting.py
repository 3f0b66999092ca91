"""Defines the reports about the work on log directories: one line for each action, without contents of records."""

from __future__ import annotations

from typing import Protocol

from storage_engine.errors import LogError


class Reporter(Protocol):
    """Receives what was done and what failed. Several threads may call it."""

    def did(self, place: str, what: str) -> None:
        """Report one action.

        Args:
            place: a log directory, or the folder of a partition in it.
        """

    def failed(self, error: LogError) -> None:
        """Report something that could not be done."""


class _Silent:
    def did(self, place: str, what: str) -> None:
        """Ignore the report."""

    def failed(self, error: LogError) -> None:
        """Ignore the report."""


SILENT: Reporter = _Silent()
