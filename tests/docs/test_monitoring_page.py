"""Runs the commands of docs/MONITORING.md, and checks that its scrape settings contain the name of the systemd
service.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.deploy.schedules import exec_start
from tests.docs.commands import Machine
from tests.docs.pages import blocks, commands

MONITORING = "docs/MONITORING.md"
SERVICES = ("--listen", "--every")
"""Options with which a command runs until it is stopped."""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A root with a topic, and the folders that the page names."""
    made = Machine(tmp_path)
    for folder in ("mnt/shared/lakelog", "var/lib/node_exporter", "etc/lakelog"):
        (tmp_path / folder).mkdir(parents=True)
    (block,) = [block for block in blocks(MONITORING, "yaml") if "disk.free.percent" in block.text]
    for topic in {"orders", *yaml.safe_load(block.text)["topics"]}:
        assert made.run(f"lakelog topics create {topic} --root /mnt/shared/lakelog").status == 0
    (tmp_path / "etc/lakelog/rules.yaml").write_text(block.text)
    return made


def test_the_commands_of_the_page_work(machine: Machine) -> None:
    found = [command for block in blocks(MONITORING, "sh") for command in commands(block)]
    assert len(found) >= 3
    for command in found:
        if any(option in command for option in SERVICES):
            run_service(machine, command)
        else:
            ended = machine.run(command)
            only_disk = [" disk: " in line for line in ended.out.splitlines()[1:]]  # the disk of a test may be full
            assert (ended.status == 0 or ("check" in command and all(only_disk)), ended.err) == (True, ""), command
    assert 'topic="orders"' in (machine.folder / "var/lib/node_exporter/lakelog.prom").read_text()


def run_service(machine: Machine, command: str) -> None:
    """Start the command with another port, wait for its effect, and end it with SIGTERM."""
    words = shlex.split(re.sub(r":9308\b", ":0", machine.local(command)))
    assert Path(words[0]).name == "lakelog"
    with subprocess.Popen(
        [sys.executable, "-m", "lakelog.cli", *words[1:]], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            if "--listen" in words:
                assert process.stderr.readline().startswith("lakelog: metrics at http://127.0.0.1:")
            else:
                while not Path(words[words.index("--textfile") + 1]).exists():
                    assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_the_unit_of_systemd_starts_what_the_scrape_settings_name(machine: Machine) -> None:
    command = exec_start("lakelog-metrics.service")
    run_service(machine, command)
    (scrape_block,) = [block for block in blocks(MONITORING, "yaml") if "scrape_configs" in block.text]
    (job,) = yaml.safe_load(scrape_block.text)["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [shlex.split(command)[shlex.split(command).index("--listen") + 1]]
