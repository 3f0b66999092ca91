"""Counts calls, and causes a fault at one of them.

A call is identified by its operation, by its place, and by the number of earlier calls at this place. Random parts of
names are ignored. So a call has the same identity in each run of an operation, even if threads run in another order.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, TypeVar

_RANDOM = re.compile(
    r"(?<=^data/)[\w-]{22}|(?<=^staging/)[\w-]{22}|(?<=segments/)[\w-]{22}|(?<=@transactions/)[0-9]{20}"
    r"|(?<![0-9a-z])(?:[0-9a-f]{32}|[0-9a-f]{16}|[0-9a-f]{8})(?![0-9a-z])"
)


class Fault(StrEnum):
    """A fault at a call, and whether the call takes effect."""

    FAILS = "fails"
    FULL = "the disk is full from here on"
    GONE = "the mount is gone from here on"
    LOST = "takes place, and fails"
    REPEATED = "takes place, its reply is lost, it is asked for again"
    KILLED_BEFORE = "killed before"
    KILLED_INSIDE = "killed half-way"
    KILLED_AFTER = "killed after"

    @property
    def kills(self) -> bool:
        return self in (Fault.KILLED_BEFORE, Fault.KILLED_INSIDE, Fault.KILLED_AFTER)


class Call(NamedTuple):
    """An operation, the place where it was called, and the number of earlier calls of this operation at this place."""

    name: str
    place: str
    before: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.place or '.'} #{self.before}"


class Errors(NamedTuple):
    """The error that a call raises for each fault; None if the call cannot have that fault.

    repeated: the error with which NFS answers a request that it has already executed: the file to create exists, or the
        file to remove does not exist.
    """

    fails: Callable[[], BaseException] | None = None
    full: Callable[[], BaseException] | None = None
    lost: Callable[[], BaseException] | None = None
    repeated: Callable[[], BaseException] | None = None

    def faults(self, *, halves: bool) -> list[Fault]:
        """The faults that are possible at this call."""
        found = [Fault.KILLED_BEFORE, Fault.KILLED_AFTER]
        found += [Fault.FAILS, Fault.GONE] if self.fails else []
        found += [Fault.FULL] if self.full else []
        found += [Fault.LOST] if self.lost else []
        found += [Fault.REPEATED] if self.repeated else []
        found += [Fault.KILLED_INSIDE] if halves else []
        return found


class Aim(NamedTuple):
    """A fault at a call."""

    call: Call
    fault: Fault

    def __str__(self) -> str:
        return f"{self.call}: {self.fault}"


_Result = TypeVar("_Result")


class Tap:
    """Sees every call of a process, one at a time, and causes a fault at one of them."""

    def __init__(self, aim: Aim | None = None, announce: Callable[[], object] = lambda: None) -> None:
        """
        Args:
            announce: called when the process reaches the call that `aim` chooses.
        """
        self.calls: dict[Call, list[Fault]] = {}
        self._aim = aim
        self._announce = announce
        self._seen: Counter[tuple[str, str]] = Counter()
        self._lasting: Fault | None = None
        self._lock = threading.RLock()

    def through(
        self,
        name: str,
        place: str,
        do: Callable[[], _Result],
        errors: Errors,
        half: Callable[[], object] | None = None,
        failed: Callable[[], object] = lambda: None,
    ) -> _Result:
        """Make a call, or the part of it that the fault allows.

        Args:
            half: makes half of the call.
            failed: called if the call fails and has no effect.
        """
        with self._lock:
            place = _RANDOM.sub("*", place)
            call = Call(name, place, self._seen[name, place])
            self._seen[name, place] += 1
            self.calls[call] = errors.faults(halves=half is not None)
            fault = self._aim.fault if self._aim is not None and self._aim.call == call else None
            if fault is not None:
                assert fault in self.calls[call], f"{call} cannot have this fault: {fault}"
                self._announce()
                self._lasting = fault if fault in (Fault.FULL, Fault.GONE) else None
            error = None
            if fault is Fault.KILLED_BEFORE:
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault is Fault.KILLED_INSIDE and half is not None:
                half()
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault is Fault.FAILS or self._lasting is Fault.GONE:
                error = errors.fails
            elif self._lasting is Fault.FULL:
                error = errors.full
                if error is not None and half is not None:
                    half()
            if error is not None:
                failed()
                raise error()
            try:
                result = do()
            finally:  # also where it says that something is not there
                if fault is Fault.KILLED_AFTER:
                    os.kill(os.getpid(), signal.SIGKILL)
            if fault is Fault.LOST and errors.lost is not None:
                raise errors.lost()
            if fault is Fault.REPEATED and errors.repeated is not None:
                raise errors.repeated()
            return result
