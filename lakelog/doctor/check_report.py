"""Defines the result of a check as a value. The value contains the promise that depends on the checked assumption (see
the table of assumptions in docs/GUARANTEES.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How a check ended."""

    OK = "ok"
    PROBLEM = "problem"
    NOT_AVAILABLE = "not available"
    """The storage does not have the feature, or does not report it. The finding names the consequence. No record is at
    risk."""


class Promise(StrEnum):
    """What Lakelog promises, as listed in docs/GUARANTEES.md."""

    ONE_COMMIT = "one commit"
    DURABLE = "durable"
    WHOLE = "whole commits"
    NAMES = "every topic's files"
    KEPT_OFF = "others kept off"
    AGES = "ages"
    RUNNING = "jobs can run"


@dataclass(frozen=True)
class Result:
    """The result of a check.

    outcome: how the check ended.
    found: what the check saw.
    cost: the consequence if a feature is not available. The consequence of a problem is in Check.otherwise.
    """

    outcome: Outcome
    found: str
    cost: str = ""


def ok(found: str) -> Result:
    """The result if the storage does what is needed."""
    return Result(Outcome.OK, found)


def problem(found: str) -> Result:
    """The result if the storage does not do what is needed."""
    return Result(Outcome.PROBLEM, found)


def not_available(found: str, cost: str = "") -> Result:
    """The result if the storage does not have something, or if this cannot be determined."""
    return Result(Outcome.NOT_AVAILABLE, found, cost)


@dataclass(frozen=True)
class CheckReport:
    """One line of an examination.

    check: the name of the check.
    between: the host, or the two sides, that made the check.
    outcome: how the check ended.
    found: what the check saw.
    promise: the promise that depends on the checked assumption.
    meaning: the consequence of a problem, or of something not available; else empty.
    """

    check: str
    between: str
    outcome: Outcome
    found: str
    promise: str
    meaning: str = ""

    def __str__(self) -> str:
        meaning = f". {self.meaning}" if self.meaning else ""
        return f"{self.outcome:<14} {self.check} ({self.between}): {self.found}{meaning} [{self.promise}]"

    def as_json(self) -> dict[str, Any]:
        """The finding as fields for JSON."""
        return {
            "check": self.check, "between": self.between, "outcome": str(self.outcome), "found": self.found,
            "meaning": self.meaning, "promise": self.promise,
        }  # fmt: skip

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> CheckReport:
        """A finding from the fields that as_json returned."""
        return cls(**(fields | {"outcome": Outcome(fields["outcome"])}))
