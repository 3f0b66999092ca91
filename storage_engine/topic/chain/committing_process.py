"""Describes the process that commits a version of a topic's state. So the history shows who changed what."""

from __future__ import annotations

import os
import pwd
import socket
from functools import cache

from storage_engine.log.partition_state import Frozen
from storage_engine.program_name import program_name

_MOST_CHARACTERS = 100


class CommittingProcess(Frozen):
    """A process that committed a version.

    program: the name of the program's file, for example `maintenance.py`, or a command, for example `lakelog topics`.
    user: the name of the process's effective user on its host, or the user's number if the user has no name. The storage
        may know the user by another name.
    host, pid: the machine and the process.
    """

    program: str
    user: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.program}, {self.user} on {self.host} ({self.pid})"


def shown_process(process: CommittingProcess | None) -> str | None:
    """The process as text; None if the version names none."""
    return None if process is None else str(process)


def this_process() -> CommittingProcess:
    """The process that calls this function."""
    return CommittingProcess(
        program=_line(program_name()),
        user=_line(_user_name(os.geteuid())),
        host=_line(socket.gethostname()),
        pid=os.getpid(),
    )


@cache
def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # in a container, a user often has no name
        return str(number)


def _line(text: str) -> str:
    """The beginning of a text. Each character that cannot be printed becomes a question mark."""
    return "".join(each if each.isprintable() else "?" for each in text[:_MOST_CHARACTERS])
