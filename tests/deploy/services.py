"""Runs a service of deploy/ as a process, and sends SIGTERM after the service has printed an expected line."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.docs.commands import Machine
from tests.docs.pages import PROJECT


def run_service(machine: Machine, command: str, until: str) -> tuple[int, list[str]]:
    """The exit status, and the lines of both outputs.

    Args:
        until: SIGTERM is sent after a line that contains this text.
    """
    program, *words = shlex.split(machine.local(command))
    if Path(program).name == "spark-submit.sh":
        name, *words = words
        started = [sys.executable, "-P", str(PROJECT / f"jobs/{name}.py")]
    else:
        assert Path(program).name == "lakelog"
        started = [sys.executable, "-m", "lakelog.cli"]
    lines = []
    with subprocess.Popen(
        [*started, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=machine.folder,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                if until in line:
                    process.send_signal(signal.SIGTERM)
            return process.wait(60), lines
        finally:
            process.kill()
