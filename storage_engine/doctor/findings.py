"""What a check found: a value, with the promise that rests on it. Docs: the table of assumptions in GUARANTEES.md."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How a check ended."""

    OK = "ok"
    PROBLEM = "problem"
    NOT_AVAILABLE = "not available"
    """The storage does not have it, or does not say. What is lost by that is told; no record is."""


class Promise(StrEnum):
    """What Lakelog promises, as docs/GUARANTEES.md numbers it."""

    ONE_COMMIT = "one commit"
    DURABLE = "durable"
    WHOLE = "whole commits"
    NAMES = "every topic's files"
    KEPT_OFF = "others kept off"
    AGES = "ages"
    RUNNING = "jobs can run"


@dataclass(frozen=True)
class Result:
    """What a check saw. cost: of what is not available; what a problem costs the check says."""

    outcome: Outcome
    found: str
    cost: str = ""


def ok(found: str) -> Result:
    """The storage does what is needed."""
    return Result(Outcome.OK, found)


def problem(found: str) -> Result:
    """It does not."""
    return Result(Outcome.PROBLEM, found)


def not_available(found: str, cost: str = "") -> Result:
    """It does not have this, or nobody can tell."""
    return Result(Outcome.NOT_AVAILABLE, found, cost)


@dataclass(frozen=True)
class Finding:
    """One line of an examination.

    between: who took part. meaning: of a problem or of what is not available, what it costs; else empty.
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
        """The same as fields."""
        return {
            "check": self.check, "between": self.between, "outcome": str(self.outcome), "found": self.found,
            "meaning": self.meaning, "promise": self.promise,
        }  # fmt: skip

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Finding:
        """What as_json gave."""
        return cls(**(fields | {"outcome": Outcome(fields["outcome"])}))
