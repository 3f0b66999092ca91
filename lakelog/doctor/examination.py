"""Lists all checks in their order, makes the checks, and reports each finding."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence

from lakelog.doctor import clocks, contents, limits, locks, names, visibility
from lakelog.doctor.check_report import CheckReport, Outcome, Promise, problem
from lakelog.doctor.partner import ProcessPartner
from lakelog.doctor.workspace import Check, Partner, PartnerGoneError, Workspace, temporary_folder
from storage_engine.errors import LogError
from storage_engine.storage import Storage

_NO_COMMITS = (
    "Two writers could commit the same version, and one of the commits would be lost. Do not use this storage."
)
_NOT_DURABLE = "Committed data can be lost in a power cut. Do not use this storage."
_TORN_READS = "Readers would find incomplete files, or none. Do not use this storage."
_LOCKS = "A broker could be unable to start, or could start on log/ although it must not. Topics need no lock."
_AGES = "Files are kept for a shorter or longer time than configured. Set the clocks."
_LATE = (
    "Until they see the change, readers and writers on the other side would use old states. They would be late, but never"
    " wrong."
)

ALONE = (
    Check("mount", Promise.DURABLE, "Mount the storage with the option hard, and with close-to-open consistency.", limits.mount),
    Check("permissions", Promise.RUNNING, "Jobs of this user cannot work. Give the user write access.", limits.permissions),
    Check("free space", Promise.RUNNING, "Jobs will wait for space and then end. Free some space.", limits.room),
    Check("free inodes", Promise.RUNNING, "Jobs will wait for inodes and then end. Delete some files.", limits.inodes),
    Check("letter case", Promise.NAMES, "Topics whose names differ only in case would be one topic.", names.letter_case),
    Check("name length", Promise.NAMES, "Topics with the longest names cannot be created.", names.length),
    Check("fsync", Promise.DURABLE, _NOT_DURABLE, contents.syncing),
    Check("positioned writes", Promise.WHOLE, _TORN_READS, contents.positions),
    Check("links", Promise.ONE_COMMIT, _NO_COMMITS, names.second_name),
    Check("listing", Promise.ONE_COMMIT, "The first read of a topic could find an old state.", names.listing),
    Check(
        "file times", Promise.AGES, "The times of files in log/ would differ from those of the original files.",
        clocks.file_times,
    ),
    Check("storage clock", Promise.AGES, _AGES, clocks.storage_clock),
    Check("speed", Promise.RUNNING, "", limits.speed),
)  # fmt: skip
TOGETHER = (
    Check("clocks", Promise.AGES, _AGES, clocks.host_clocks),
    Check("put-if-absent", Promise.ONE_COMMIT, _NO_COMMITS, names.put_if_absent),
    Check("replacing", Promise.WHOLE, _TORN_READS, names.replacing),
    Check("growing file", Promise.WHOLE, _TORN_READS, contents.growing),
    Check("new name", Promise.WHOLE, _LATE, visibility.new_name),
    Check("replaced file", Promise.WHOLE, _LATE, visibility.replaced_file),
    Check("deleted file", Promise.WHOLE, _LATE, visibility.deleted_file),
    Check("locks", Promise.KEPT_OFF, _LOCKS, locks.locking),
)  # fmt: skip


def examine(storage: Storage, report: Callable[[CheckReport], None]) -> list[CheckReport]:
    """Make all checks that one host can make alone. The checks of TOGETHER are made with another process.

    Args:
        report: called with each finding as it is made.

    Raises:
        StorageAccessError, StorageFullError: nothing can be written here at all.
    """
    with temporary_folder(storage) as folder, ProcessPartner(storage.uri) as partner:
        return examine_with(storage, f"{folder}/process", partner, (*ALONE, *TOGETHER), report)


def examine_with(
    storage: Storage, folder: str, partner: Partner, checks: Sequence[Check], report: Callable[[CheckReport], None]
) -> list[CheckReport]:
    """Make these checks with this partner. Each check has its own folder below `folder`.

    Raises:
        PartnerGoneError: the partner has ended, so the examination ends too.
    """
    host = socket.gethostname()
    findings = []
    for number, check in enumerate(checks):
        between = f"{host} and {partner.name}" if check in TOGETHER else host
        workspace = Workspace(storage, f"{folder}/{number}/", partner, host)
        findings.append(_made(check, workspace, between))
        report(findings[-1])
    return findings


def _made(check: Check, workspace: Workspace, between: str) -> CheckReport:
    try:
        result = check.run(workspace)
    except PartnerGoneError:
        raise
    except LogError as error:
        result = problem(str(error).rstrip("."))
    except OSError as error:
        result = problem(error.strerror or str(error))
    meaning = check.otherwise if result.outcome is Outcome.PROBLEM else result.cost
    return CheckReport(check.name, between, result.outcome, result.found, str(check.promise), meaning)


def has_problems(findings: Iterable[CheckReport]) -> bool:
    """Whether a finding is a problem."""
    return any(finding.outcome is Outcome.PROBLEM for finding in findings)
