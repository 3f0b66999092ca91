"""Checks of clocks: this host's clock, the storage's clock (which sets the times of files), and the clock of the
other process or host.

No safety rule depends on a clock. Only rules about ages depend on clocks: retention, file.delete.delay.ms, and the
deletion of files left by crashed processes (the sweep).
"""

from __future__ import annotations

from lakelog.doctor.actions import skew_ms
from lakelog.doctor.check_report import Result, not_available, ok, problem
from lakelog.doctor.workspace import Workspace

_MOST_SKEW_MS = 30_000
"""Half of Kafka's default of file.delete.delay.ms."""
_MOMENT_NS = 1_700_000_000_123_000_000


def storage_clock(workspace: Workspace) -> Result:
    """Compare the time of a new file with this host's clock."""
    return _judged(skew_ms(workspace.storage, workspace.folder), "times of new files", "this host's clock")


def host_clocks(workspace: Workspace) -> Result:
    """Compare the other side's clock with this host's clock, by means of the storage's clock."""
    here = skew_ms(workspace.storage, workspace.key("here/"))
    there = workspace.ask("skew", folder=workspace.key("there/"))
    return _judged(here - there, f"the clock of {workspace.partner.name}", "this host's")


def _judged(skew: float, one: str, other: str) -> Result:
    far = f"{abs(skew):,.0f} ms {'ahead of' if skew > 0 else 'behind'}" if abs(skew) >= 0.5 else "0 ms from"
    said = f"{one}: {far} {other}"
    return ok(said) if abs(skew) <= _MOST_SKEW_MS else problem(said)


def file_times(workspace: Workspace) -> Result:
    """A file's time can be set, and is stored to the millisecond."""
    storage = workspace.storage
    if storage.directory is None:
        return not_available("times of files cannot be set here")
    storage.put_new(workspace.key("dated"), b"x")
    storage.directory.set_modified(workspace.key("dated"), _MOMENT_NS)
    (file,) = storage.list(workspace.folder)
    if file.modified_ms != _MOMENT_NS // 1_000_000:
        return problem(
            f"a file's modification time was set to {_MOMENT_NS // 1_000_000} ms, but the storage reports"
            f" {file.modified_ms}"
        )
    return ok("a file's modification time can be set, with millisecond precision")
