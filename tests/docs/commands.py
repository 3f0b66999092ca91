"""Runs the commands of a page as a reader would. Each absolute path in the page is replaced by a path in a folder of
the test.

`lakelog` and the jobs run in this process, which has already loaded Spark and the kernels. The entry points are the
same as those of separate processes. `jq` is replaced by the library of the same name. `systemctl` and `kubectl` are
replaced by scripts that only record their arguments. All other commands are the machine's programs.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jq

from lakelog import cli
from tests.docs.pages import PROJECT
from tests.in_process import Ended, run_in_process

ELSEWHERE = re.compile(
    r"(?<![\w.])/(?=(?:backup|data|etc/(?:cron|kafka|lakelog|systemd)|mnt|opt/lakelog|var/lib|var/log)\b)"
)
"""Where a path of the pages begins that is absolute."""
SPARK_OPTIONS = {"--master", "--conf"}


class Machine:
    """A folder with a reader's files: what a page calls /mnt is its mnt, and so on. Commands start in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs = folder / "bin"
        self._programs.mkdir()
        for name in ("systemctl", "kubectl"):  # tells what a page names; there is no systemd and no cluster to ask
            program = self._programs / name
            program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/{name}.log\n')
            program.chmod(0o755)

    def local(self, text: str) -> str:
        """A page's text with the paths of this machine."""
        return ELSEWHERE.sub(f"{self.folder}/", text)

    def run(self, command: str) -> Ended:
        """One command, or several joined by pipes; its output may be redirected."""
        command = re.sub(r"^cd /opt/lakelog && ", "", command)
        words = shlex.shlex(self.local(command), posix=True, punctuation_chars="|>;&")
        words.whitespace_split = True
        tokens = list(words)
        if any(token in {"&&", ";"} for token in tokens) or not _is_ours(tokens[0]):
            return self.run_script(command)
        target: str | None = None
        if ">>" in tokens:
            tokens, (target,) = tokens[: tokens.index(">>")], tokens[tokens.index(">>") + 1 :]
        ended, errors, given = Ended(0, "", ""), "", b""
        while tokens:
            end = tokens.index("|") if "|" in tokens else len(tokens)
            ended = self._program(tokens[:end], given)
            errors += ended.err
            if ended.status:
                break
            given, tokens = ended.out.encode(), tokens[end + 1 :]
        if target is not None:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            with Path(target).open("a") as file:
                file.write(ended.out)
        return Ended(ended.status, ended.out, errors)

    def run_script(self, text: str) -> Ended:
        """Lines for a shell, all in one."""
        path = os.pathsep.join([str(self._programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-e", "-u", "-o", "pipefail", "-c", self.local(text)], env=os.environ | {"PATH": path},
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)

    def _program(self, words: Sequence[str], given: bytes) -> Ended:
        name, *arguments = words
        if Path(name).name == "lakelog":
            arguments = [path for word in arguments for path in _expanded(word)]
            return run_in_process(cli.main, ["lakelog", *arguments], given)
        if name.endswith("spark-submit.sh"):
            return run_job(*arguments)
        if name == "jq":
            return _jq(arguments, given)
        done = subprocess.run([name, *arguments], input=given, capture_output=True, check=False, timeout=60)
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


def run_job(name: str, *arguments: str) -> Ended:
    """What ./spark-submit.sh runs. A stream that would go on until it is stopped takes what is there and ends."""
    words = list(arguments)
    if "--" in words:
        at = words.index("--")
        words, options = words[:at], words[at + 1 :]
        assert set(options[::2]) <= SPARK_OPTIONS, options
        assert len(options) % 2 == 0, options
    if name == "ingest":
        words += ["--set", "ingest.trigger=available-now"]
    program = PROJECT / "jobs" / f"{name}.py"
    return run_in_process(partial(runpy.run_path, str(program), run_name="__main__"), [str(program), *words])


def _expanded(word: str) -> list[str]:
    """A word as the shell hands it over."""
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


def _is_ours(program: str) -> bool:
    return Path(program).name in {"lakelog", "echo", "jq"} or program.endswith("spark-submit.sh")


def _jq(arguments: Sequence[str], given: bytes) -> Ended:
    options = {word for word in arguments if word.startswith("-")}
    assert options <= {"-c", "-r"}, arguments
    program, *files = [word for word in arguments if not word.startswith("-")]
    text = "".join(Path(file).read_text() for file in files) if files else given.decode()
    found = jq.compile(program).input_text(text)
    if "-r" not in options:
        return Ended(0, found.text() + "\n", "")
    return Ended(0, "".join(f"{each}\n" for each in found), "")
