"""A process that runs commands and jobs, and that can access a file only as the file's mode allows.

Two capabilities let the superuser read and write every file. If the tests run as the superuser, this process and its
child processes run without these two capabilities. Then the process needs the rights of a file's owner, like every
other user.

    python -m tests.docs.security.restricted     reads lines [[word, ...], input], writes lines [status, out, err]

The first word of an input line is `lakelog` or the name of a job. The process starts Spark with the first job that
needs Spark. For `lakelog ui`, the process opens the pages itself, as a browser would.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from lakelog import cli
from tests.docs.commands import run_job
from tests.docs.pages import PROJECT
from tests.in_process import Ended, run_in_process
from tests.java_options import JAVA_OPTIONS

_DROP_FROM_BOUNDING_SET = 24
_OVERRIDING = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH"""

READ, WRITE, NONE = "read", "write", "none"
_MODES = {READ: (0o555, 0o444), WRITE: (0o755, 0o644), NONE: (0o000, 0o000)}


class Restricted:
    """Runs commands in the process.

    noise: the file with everything that the process and its JVM print on standard error, except the commands' own lines.
    """

    def __init__(self, process: subprocess.Popen[str], noise: Path) -> None:
        self._process = process
        self.noise = noise

    def run(self, *words: str, stdin: str = "") -> Ended:
        to, answers = self._process.stdin, self._process.stdout
        assert to is not None
        assert answers is not None
        to.write(json.dumps([words, stdin]) + "\n")
        to.flush()
        answer = answers.readline()
        assert answer, self.noise.read_text()
        return Ended(*json.loads(answer))


@contextmanager
def restricted_process(folder: Path, environ: Mapping[str, str], umask: int) -> Iterator[Restricted]:
    """Start the process, and end it after the block."""
    noise = folder / "noise"
    superuser = os.geteuid() == 0
    assert not superuser or sys.platform == "linux", "run these tests as another user"
    with noise.open("w") as file, subprocess.Popen(
        [sys.executable, "-m", "tests.docs.security.restricted"], cwd=PROJECT, env={**os.environ, **JAVA_OPTIONS, **environ},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, umask=umask,
        preexec_fn=_give_up_overriding if superuser else None,  # noqa: PLW1509 - only one system call
    ) as process:  # fmt: skip
        try:
            yield Restricted(process, noise)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def allow(root: Path, rights: Mapping[str, str]) -> None:
    """Give the owner rights on each file of a root.

    Args:
        rights: folder -> READ or WRITE. The longest folder that contains a file decides; NONE without such a folder. The
            root itself, `./`, can always be read.
    """
    paths = [path for folder, _, files in os.walk(root) for path in map(Path(folder).joinpath, ("", *files))]
    for path in sorted(paths, key=lambda each: len(each.parts), reverse=True):
        key = f"{path.relative_to(root)}/"
        inside = [folder for folder in rights if key.startswith(folder)]
        if path.is_symlink() or (key.startswith("log/") and path.is_file() and path.stat().st_nlink > 1):
            continue  # a file of data/, whose mode is that of data/
        right = rights.get("./", READ) if path == root else rights[max(inside, key=len)] if inside else NONE
        path.chmod(_MODES[right][path.is_file()])


def allow_everything(root: Path) -> None:
    """Give the owner every right, also below folders that the owner could not read."""
    root.chmod(0o755)
    for folder, folders, files in os.walk(root):
        for name in folders:
            Path(folder, name).chmod(0o755)
        for name in files:
            Path(folder, name).chmod(0o644)


def _give_up_overriding() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in _OVERRIDING:
        if libc.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def _browsed(arguments: list[str]) -> Ended:
    """The pages of `lakelog ui` as one text, and what the server reported. With --allow-changes, also a change."""
    from lakelog.opening import open_topics
    from lakelog.ui.access.options import UiOptions
    from lakelog.ui.site import Site
    from storage_engine.errors import LogError
    from storage_engine.topic.broker_settings import BrokerSettings
    from tests.lakelog.ui.browsing import PATIENCE_SECONDS, PORT, Browser

    reported: list[str] = []
    try:
        topics = open_topics(arguments[arguments.index("--root") + 1], None, reported.append, examines=True)
    except LogError as error:
        return Ended(1, "", str(error))
    changes = "--allow-changes" in arguments
    options = UiOptions(port=PORT, allow_changes=changes, show_values=True)
    browser = Browser(Site(topics, BrokerSettings(), options, reported.append, PATIENCE_SECONDS))
    pages = [browser.get(page).words for page in _PAGES]
    if changes:
        for page, fields in (("/topics/t/plan", {}), ("/topics/t/settings", {"key": "retention.ms", "value": "5"})):
            sent = browser.send(page, page, **fields)
            pages.append(f"{sent.status} {sent.words}")
    return Ended(0, "\n".join(pages), "\n".join(reported))


_PAGES = (
    "/", "/groups", "/dead-letters", "/plans", "/settings", "/topics/t", "/topics/t/records", "/topics/t/groups",
    "/topics/t/dead-letters", "/topics/t/plan", "/topics/t/history", "/topics/t/settings",
)  # fmt: skip


def _ended(words: list[str], stdin: str) -> Ended:
    program, *arguments = words
    if words[:2] == ["lakelog", "ui"]:
        return _browsed(arguments)
    if program == "lakelog":
        return run_in_process(cli.main, words, stdin.encode())
    return run_job(program, *arguments)


def _serve(requests: IO[str], answers: IO[str]) -> None:
    for line in requests:
        words, stdin = json.loads(line)
        print(json.dumps(_ended(words, stdin)), file=answers, flush=True)


if __name__ == "__main__":
    requests, answers = sys.stdin, sys.stdout
    sys.stdout = sys.stderr  # what a thread prints between two commands
    _serve(requests, answers)
