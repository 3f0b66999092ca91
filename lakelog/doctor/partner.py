"""Runs the other side of a check in a process of this host. The process reads requests from standard input, and answers
on standard output.

    {"number": 3, "action": "skew", "arguments": {"folder": "..."}}     a request, one line
    {"number": 3, "answer": 0.4}    or    {"number": 3, "error": "..."}  an answer, one line

A check that fails can stop before the process has answered its request. The next check then finds this late answer.
Requests and answers are numbered. The number distinguishes a late answer from the expected answer. The process ends
when its standard input ends. So the process never outlives the examination, even if the examination is killed.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from contextlib import suppress
from typing import IO, Any, Self

from lakelog.doctor.actions import Actor
from lakelog.doctor.workspace import PartnerError, PartnerGoneError
from storage_engine.errors import LogError
from storage_engine.storage.storage_opening import open_storage


class ProcessPartner:
    """A Partner. Entering the context starts the process; leaving the context ends it."""

    name = "another process"

    def __init__(self, root: str, timeout_s: float = 60) -> None:
        self.timeout_s = timeout_s
        self._root = root
        self._asked = 0

    def __enter__(self) -> Self:
        # The process has its own session, so Ctrl-C ends only the examination. The process ends when its input is
        # closed.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lakelog.doctor.partner", self._root],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin, "a pipe was requested"
        assert self._process.stdout, "a pipe was requested"
        self._questions: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a request may still be in the buffer
            self._questions.close()
        self._process.kill()
        self._process.wait()
        self._answers.close()

    def begin(self, action: str, **arguments: Any) -> None:
        self._asked += 1
        request = {"number": self._asked, "action": action, "arguments": arguments}
        try:
            self._questions.write(json.dumps(request).encode() + b"\n")
            self._questions.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def has_answered(self) -> bool:
        return self._is_readable(0)

    def answer(self) -> Any:
        while True:
            if not self._is_readable(self.timeout_s):
                raise PartnerGoneError(self.name, f"has not answered within {self.timeout_s:g} s")
            line = self._answers.readline()
            if not line:
                raise self._gone()
            answer = json.loads(line)
            if answer["number"] == self._asked:
                return unpacked(answer, self.name)

    def _is_readable(self, seconds: float) -> bool:
        return bool(select.select([self._answers], [], [], seconds)[0])

    def _gone(self) -> PartnerGoneError:
        return PartnerGoneError(self.name, f"has ended with status {self._process.wait(self.timeout_s)}")


def performed(actor: Actor, request: Any) -> dict[str, Any]:
    """Perform a request and return the answer. A LogError becomes an answer, too."""
    try:
        return {"number": request["number"], "answer": actor.act(request["action"], request["arguments"])}
    except LogError as error:
        return {"number": request["number"], "error": str(error)}


def unpacked(answer: Any, name: str) -> Any:
    """The result in an answer.

    Raises:
        PartnerError: the action failed.
    """
    if "error" in answer:
        raise PartnerError(name, str(answer["error"]).rstrip("."))
    return answer["answer"]


def main() -> None:
    """Answer requests until standard input ends."""
    actor = Actor(open_storage(sys.argv[1]))
    for line in sys.stdin.buffer:
        answer = performed(actor, json.loads(line))
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()
    actor.close()


if __name__ == "__main__":
    main()
