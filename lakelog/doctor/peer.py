"""Connects this host with a second host that runs the same program, for checks that need two hosts. The two hosts
communicate only through the storage.

    FILE                         from the first host: the name of the host, and its folder
    <folder>/token               proves to the second host that both have the same root
    <folder>/mail/hello-<id>     from a second host; the first host accepts one of them and removes FILE
    <folder>/mail/welcome        from the first host, with the accepted id
    <folder>/mail/<n>.ask        from the first host: an action, or at the end the findings
    <folder>/mail/<n>.answer     from the second host
    <folder>/mail/gone           from the second host, if it stops before the end

The first host requests actions, and removes all these files at the end. The second host performs the actions. Each file
below mail/ is a letter from one host to the other. The hosts find letters by listing the folder, because the server
itself answers each listing. A lookup by name is different: for up to a minute, a cache can answer the lookup. Each
letter has its own name and is written with a rename, so the mail does not depend on put-if-absent.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lakelog.doctor.actions import Actor
from lakelog.doctor.check_report import CheckReport
from lakelog.doctor.examination import TOGETHER, examine_with
from lakelog.doctor.partner import performed, unpacked
from lakelog.doctor.workspace import TOKEN, PartnerGoneError, remove_folder, temporary_folder
from storage_engine.errors import AlreadyExistsError, LogError, NotFoundError, StorageError
from storage_engine.storage import GrowingFiles, Storage, needed
from storage_engine.storage.storage_opening import open_directory

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_FINDINGS = "findings"


def examine_with_peer(
    storage: Storage, file: Path, timeout_s: float, report: Callable[[CheckReport], None]
) -> list[CheckReport]:
    """Make the checks that need two sides, together with another host that calls this function at the same time.

    Args:
        storage: the storage that is tested.
        file: a name on the storage, the same on both hosts. The file exists while one host waits for the other.
        timeout_s: how long to wait for the other host, and for each of its answers.
        report: called with each finding.

    Returns:
        The findings, the same on both hosts.

    Raises:
        PartnerGoneError: the other host does not appear, has another root, or ends before the examination.
    """
    meeting = open_directory(file.absolute().parent)
    made = needed(meeting.growing, meeting, "meeting another host", "Name a file on a file system.")
    with temporary_folder(storage) as folder:
        invitation = {"folder": folder, "host": socket.gethostname(), "process": os.getpid()}
        if _put_invitation(made, file.name, invitation):
            try:
                with _welcomed(storage, folder, file, meeting, timeout_s) as peer:
                    findings = examine_with(storage, f"{folder}/peer", peer, TOGETHER, report)
                    peer.begin(_FINDINGS, findings=[finding.as_json() for finding in findings])
                    peer.answer()
                    return findings
            finally:
                with suppress(StorageError):
                    _take_back(meeting, file.name, folder)
    return _second(storage, meeting, file, timeout_s, report)


def _put_invitation(meeting: GrowingFiles, name: str, invitation: dict[str, Any]) -> bool:
    """Create the file by which the other host finds this host's folder. Returns False if another host was first."""
    try:
        file = meeting.create(name)
    except AlreadyExistsError:
        return False
    try:
        file.write_at(0, [json.dumps(invitation).encode()])
        file.sync()
    finally:
        file.close()
    return True


def _take_back(meeting: Storage, name: str, folder: str) -> None:
    """Remove the file, but only if it is still this host's invitation: other hosts may already use the same name."""
    with suppress(NotFoundError):
        if _invitation(meeting, name).get("folder") == folder:
            meeting.delete(name)


def _invitation(meeting: Storage, name: str) -> dict[str, Any]:
    """What the file says; empty if it is not written yet or is not an invitation."""
    try:
        found = json.loads(meeting.read(name))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class _Mail:
    """The letters between two hosts."""

    def __init__(self, storage: Storage, folder: str, timeout_s: float) -> None:
        self._storage = storage
        self._folder = f"{folder}/mail/"
        self._timeout_s = timeout_s

    def send(self, name: str, letter: Any) -> None:
        self._storage.replace(f"{self._folder}{name}", json.dumps(letter).encode())

    def names(self) -> list[str]:
        return [file.key.removeprefix(self._folder) for file in self._storage.list(self._folder)]

    def read(self, name: str) -> Any:
        return json.loads(self._storage.read(f"{self._folder}{name}"))

    def wait(self, wanted: Callable[[str], bool], at_each_look: Callable[[], None] = lambda: None) -> str | None:
        """The name of the first wanted letter; None if no such letter arrives in time."""
        return waited_for(
            lambda: next((name for name in self.names() if wanted(name)), None), self._timeout_s, at_each_look
        )


def waited_for(
    look: Callable[[], str | None], timeout_s: float, at_each_look: Callable[[], None] = lambda: None
) -> str | None:
    """Look until something is found, at first often, then twice a second. Returns None if nothing is found in time."""
    until, pause = time.monotonic() + timeout_s, _FIRST_PAUSE
    while (found := look()) is None and time.monotonic() < until:
        at_each_look()
        time.sleep(pause)
        pause = min(1.5 * pause, _LONGEST_PAUSE)
    return found


class HostPartner:
    """A Partner on another host."""

    def __init__(self, name: str, mail: _Mail, timeout_s: float) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self._mail = mail
        self._asked = 0

    def begin(self, action: str, **arguments: Any) -> None:
        self._asked += 1
        self._mail.send(f"{self._asked:06d}.ask", {"number": self._asked, "action": action, "arguments": arguments})

    def has_answered(self) -> bool:
        return not {f"{self._asked:06d}.answer", "gone"}.isdisjoint(self._mail.names())

    def answer(self) -> Any:
        expected = f"{self._asked:06d}.answer"
        found = self._mail.wait(lambda name: name in (expected, "gone"))
        if found is None:
            raise PartnerGoneError(self.name, f"has not answered within {self.timeout_s:g} s")
        if found == "gone" and expected not in self._mail.names():
            raise PartnerGoneError(
                self.name, "ended before the examination was complete", "Run the command on both hosts again."
            )
        return unpacked(self._mail.read(expected), self.name)


@contextmanager
def _welcomed(storage: Storage, folder: str, file: Path, meeting: Storage, timeout_s: float) -> Iterator[HostPartner]:
    """Wait for the host that comes to the folder, and welcome it."""
    mail = _Mail(storage, folder, timeout_s)
    hello = mail.wait(lambda name: name.startswith("hello-"))
    if hello is None:
        raise PartnerGoneError(
            str(file), f"no other host has answered within {timeout_s:g} s",
            "Start the same command on the other host, with the same root and file, while this command waits.",
        )  # fmt: skip
    _take_back(meeting, file.name, folder)
    guest = mail.read(hello)
    mail.send("welcome", {"id": guest["id"]})
    yield HostPartner(f"host {guest['host']} (process {guest['process']})", mail, timeout_s)


def _second(
    storage: Storage, meeting: Storage, file: Path, timeout_s: float, report: Callable[[CheckReport], None]
) -> list[CheckReport]:
    """Meet the host that made the file, perform its actions, and return the findings that it sends at the end."""
    invitation: dict[str, Any] = {}

    def found() -> str | None:
        with suppress(NotFoundError):
            invitation.update(_invitation(meeting, file.name))
        folder = invitation.get("folder")
        return folder if isinstance(folder, str) and _is_token(storage, folder) else None

    folder = waited_for(found, timeout_s)
    if folder is None and not invitation:
        raise PartnerGoneError(
            str(file), "was not written by this command on another host", "Name a file that does not exist yet."
        )
    if folder is None:
        raise PartnerGoneError(
            str(file), f"was written by process {invitation.get('process')} on host {invitation.get('host')}, but the folder"
            f" of that process is not in {storage.uri}",
            "If that process still runs, it uses another root. If it was killed, remove the file.",
        )  # fmt: skip
    host = f"host {invitation['host']} (process {invitation['process']})"

    def still_there() -> None:
        if not _is_token(storage, folder):
            raise PartnerGoneError(
                host, "ended before the examination was complete", "Run the command on both hosts again."
            )

    mail = _Mail(storage, folder, timeout_s)
    try:
        _introduce(mail, host, timeout_s, still_there)
        findings = _served(storage, mail, host, timeout_s, still_there)
    except StorageError:
        still_there()  # if the other host has ended, report this: it is the reason for the error
        raise
    finally:
        with suppress(StorageError):
            if not _is_token(storage, folder):
                remove_folder(storage, folder)  # this host's last letters may have created the folder again
    for finding in findings:
        report(finding)
    return findings


def _introduce(mail: _Mail, host: str, timeout_s: float, still_there: Callable[[], None]) -> None:
    own_id = secrets.token_hex(8)
    mail.send(f"hello-{own_id}", {"id": own_id, "host": socket.gethostname(), "process": os.getpid()})
    if not mail.wait(lambda name: name == "welcome", still_there):
        raise PartnerGoneError(host, f"has not answered within {timeout_s:g} s", "Run the command on both hosts again.")
    if mail.read("welcome")["id"] != own_id:
        raise PartnerGoneError(
            host, "is working with a third host", "Start this command again when the two hosts are done."
        )


def _served(
    storage: Storage, mail: _Mail, host: str, timeout_s: float, still_there: Callable[[], None]
) -> list[CheckReport]:
    actor, number = Actor(storage), 0
    try:
        while True:
            number += 1
            ask = f"{number:06d}.ask"
            if not mail.wait(ask.__eq__, still_there):
                raise PartnerGoneError(
                    host, f"has sent no request for {timeout_s:g} s", "Run the command on both hosts again."
                )
            request = mail.read(ask)
            if request["action"] == _FINDINGS:
                mail.send(f"{number:06d}.answer", {"number": number, "answer": None})
                return [CheckReport.from_json(fields) for fields in request["arguments"]["findings"]]
            mail.send(f"{number:06d}.answer", performed(actor, request))
    except BaseException:
        with suppress(LogError):
            still_there()
            mail.send("gone", {})
        raise
    finally:
        actor.close()


def _is_token(storage: Storage, folder: str) -> bool:
    try:
        return storage.read(f"{folder}/{TOKEN}") == folder.encode()
    except NotFoundError:
        return False
