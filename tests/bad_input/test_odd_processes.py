"""Commands and jobs that are started without standard input, standard output or a current directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bad_input.conftest import Lakelog

LAKELOG = [sys.executable, "-m", "lakelog.cli"]
PROJECT = Path(__file__).resolve().parents[2]


def run_in_shell(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script of sh whose arguments are `lakelog`'s command line."""
    command = ["sh", "-c", script, "sh", *LAKELOG, *map(str, arguments)]
    return subprocess.run(
        command, cwd=PROJECT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("script", "command"), [('"$@" <&-', ("append", "--topic", "t")), ('"$@" >&-', ("topics", "list"))]
)
def test_a_stream_that_is_closed_is_named(lakelog: Lakelog, root: Path, script: str, command: tuple[str, ...]) -> None:
    lakelog("topics", "create", "t")
    ended = run_in_shell(script, *command, "--root", root)
    assert ended.returncode == 1
    assert ended.stderr == "lakelog: standard input or output: Bad file descriptor.\n"


def test_a_command_that_reads_no_input_needs_none(lakelog: Lakelog, root: Path) -> None:
    lakelog("topics", "create", "t")
    assert run_in_shell('"$@" <&-', "topics", "list", "--root", root).stdout == "t\n"


def test_a_current_directory_that_was_removed_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'export PYTHONPATH="{PROJECT}"; cd "{gone}" && rmdir "{gone}" && exec "$@"'
    ended = run_in_shell(script, "topics", "list", "--root", "relative")
    assert ended.returncode == 2
    assert "root 'relative': the current directory was removed. Write the full path." in ended.stderr
    assert "Traceback" not in ended.stderr
