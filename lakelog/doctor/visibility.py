"""Checks how soon the other side sees a change that this side has made. It is not a problem if the other side sees the
change late. It is a problem if the other side never sees the change.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lakelog.doctor.actions import skew_ms
from lakelog.doctor.check_report import Result, ok, problem
from lakelog.doctor.workspace import Workspace

_MOST_SECONDS = 90.0
"""An NFS client may answer from its cache for a minute."""


def new_name(workspace: Workspace) -> Result:
    """A file is created after the other side has looked for its name without success."""
    key = workspace.key("name")
    skew = skew_ms(workspace.storage, workspace.key("skew/"))
    there = workspace.ask("skew", folder=workspace.key("skew/"))
    if workspace.ask("exists", key=key):
        return problem("a file that was never created is seen")
    workspace.storage.put_new(key, b"content")
    return _seen(workspace, "a new name", key, "content", skew, there)


def replaced_file(workspace: Workspace) -> Result:
    """A file that the other side has read is replaced."""
    key = workspace.key("replaced")
    return _changed(workspace, "a replaced file", key, lambda: workspace.storage.replace(key, b"now"), "now")


def deleted_file(workspace: Workspace) -> Result:
    """A file that the other side has read is deleted."""
    key = workspace.key("deleted")
    return _changed(workspace, "a deletion", key, lambda: workspace.storage.delete(key), None)


def _changed(workspace: Workspace, what: str, key: str, change: Callable[[], None], content: str | None) -> Result:
    """A file is created, read by the other side, and changed. content: its new content; None if it is deleted."""
    skew = skew_ms(workspace.storage, workspace.key("skew/"))
    there = workspace.ask("skew", folder=workspace.key("skew/"))
    workspace.storage.put_new(key, b"before")
    if workspace.ask("wait", key=key, content="before", seconds=_MOST_SECONDS, skew_ms=there) is None:
        return problem(f"a new file is still not visible to the other side after {_MOST_SECONDS:g} s")
    change()
    return _seen(workspace, what, key, content, skew, there)


def _seen(workspace: Workspace, what: str, key: str, content: str | None, skew: float, there: float) -> Result:
    done_ms = time.time() * 1000 + skew
    seconds = min(_MOST_SECONDS, workspace.partner.timeout_s / 2)
    seen_ms = workspace.ask("wait", key=key, content=content, seconds=seconds, skew_ms=there)
    if seen_ms is None:
        return problem(f"{what} is not seen by {workspace.partner.name} within {seconds:g} s")
    return ok(f"{what} is seen by {workspace.partner.name} at most {max(0.0, seen_ms - done_ms):,.0f} ms later")
