"""Makes changes of a root in threads of their own, one change at a time.

A form begins a change and waits a moment. If the change needs longer, the browser gets the page of the change, which
shows that it runs, and then its outcome. A form that is sent twice does not begin a second change.

When the server ends, it waits for the running change for a while. Then the process ends, and the change with it. A
change consists of commits, and each commit is done completely or not at all. So an interrupted change leaves a
consistent root: some of its commits are done, the others are not.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lakelog.ui.background.defects import report_defect
from storage_engine.errors import ConflictError, LogError

MOST_ENDED = 64
"""The outcomes of so many changes are kept. Of more changes, the oldest are forgotten."""


@dataclass(frozen=True)
class Outcome:
    """What a change has done, and what it could not do, as lines."""

    done: Sequence[str] = ()
    problems: Sequence[str] = ()


@dataclass(eq=False)
class Change:
    """A change that has begun. Only the thread of the change sets the last three fields.

    id: the name of the change in addresses.
    what: for example "apply a plan".
    topic: the topic that is changed.
    form: identifies the form that began the change.
    begun_ms: when the change began, in milliseconds since 1970.
    ended_ms: when it ended; None while it runs.
    outcome: None if the change failed.
    error: why the change failed.
    """

    id: str
    what: str
    topic: str
    form: str
    begun_ms: int
    ended_ms: int | None = None
    outcome: Outcome | None = None
    error: LogError | None = None

    def __str__(self) -> str:
        return f"topic {self.topic}: {self.what}"


class RunningChanges:
    """The running change of a root, and the changes that have ended. Several threads may use it."""

    def __init__(self, now_ms: Callable[[], int], warn: Callable[[str], None]) -> None:
        """
        Args:
            now_ms: returns the current time, in milliseconds since 1970.
            warn: called with each line of an outcome, and with the error of a change that failed.
        """
        self._now_ms = now_ms
        self._warn = warn
        self._condition = threading.Condition()
        self._running: Change | None = None
        self._ended: dict[str, Change] = {}
        self._is_stopped = False

    @property
    def running(self) -> Change | None:
        """The change that is running."""
        return self._running

    def find(self, name: str) -> Change | None:
        """A change by its id; None if this server has not begun it, or has forgotten it."""
        with self._condition:
            running = self._running
            return running if running is not None and running.id == name else self._ended.get(name)

    def begun_by(self, form: str) -> Change | None:
        """The newest change that a form has begun; None if there is none."""
        with self._condition:
            known = [*self._ended.values(), *([self._running] if self._running else [])]
            return next((each for each in reversed(known) if each.form == form), None)

    def begin(self, what: str, topic: str, form: str, work: Callable[[], Outcome], *, once: bool = False) -> Change:
        """Begin a change. If the same form has begun the running change, this change is returned.

        Args:
            work: makes the change.
            once: the form may begin only one change. If that has ended, it is returned, too.

        Raises:
            ConflictError: another change is running, or the server ends.
        """
        with self._condition:
            known = self.begun_by(form)
            if known is not None and (once or known is self._running):
                return known
            if self._is_stopped:
                raise ConflictError(f"topic {topic}", "the server is ending", "Start the server again.")
            if self._running is not None:
                raise ConflictError(
                    f"topic {topic}", "another change is running", "Try again when the other change has ended."
                )
            change = Change(secrets.token_hex(8), what, topic, form, self._now_ms())
            threading.Thread(target=self._make, args=(change, work), name="change", daemon=True).start()
            self._running = change  # the thread needs the lock to end the change
            return change

    def wait(self, change: Change, seconds: float) -> bool:
        """Wait until a change has ended. Returns whether it has ended in time."""
        with self._condition:
            return self._condition.wait_for(lambda: change.ended_ms is not None, seconds)

    def stop(self, seconds: float) -> Change | None:
        """Wait for the running change. From now on, no change can begin.

        Returns:
            The change that has not ended in time; None if there is none.
        """
        with self._condition:
            self._is_stopped = True
            left = self._running
        if left is None:
            return None
        self._warn(f"waits at most {seconds:g} s for a change: {left}")
        return None if self.wait(left, seconds) else left

    def _make(self, change: Change, work: Callable[[], Outcome]) -> None:
        outcome, failed, lines = None, None, list[str]()
        try:
            outcome = work()
            lines += (*outcome.done, *outcome.problems)
        except LogError as error:
            failed = _without_frames(error)
            lines.append(f"{change}: not done: {error}")
        except Exception as error:  # noqa: BLE001 - the page of the change shows it
            failed = report_defect(str(change), error, lines.append)
        with suppress(OSError, ValueError):  # standard error may be broken or closed
            for line in lines:
                self._warn(line)
        self._end(change, outcome, failed)

    def _end(self, change: Change, outcome: Outcome | None, failed: LogError | None) -> None:
        with self._condition:
            change.outcome, change.error, change.ended_ms = outcome, failed, self._now_ms()
            self._ended[change.id] = change
            while len(self._ended) > MOST_ENDED:
                del self._ended[next(iter(self._ended))]
            self._running = None
            self._condition.notify_all()


def _without_frames(error: LogError) -> LogError:
    """The error without its traceback, which would keep all values of the work in memory."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
