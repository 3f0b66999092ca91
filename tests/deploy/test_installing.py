"""The commands of deploy/README.md: all files exist that these commands copy, enable and apply."""

from __future__ import annotations

import shlex

from tests.deploy.schedules import CRON, DEPLOY, unit_files
from tests.docs.commands import Machine
from tests.docs.pages import blocks


def test_the_commands_install_files_that_are_there(machine: Machine) -> None:
    for block in blocks("deploy/README.md", "sh"):
        ended = machine.run_script(block.text)
        assert (ended.status, ended.err) == (0, ""), block
    installed = {path.name: path.read_text() for path in (machine.folder / "etc/systemd/system").iterdir()}
    assert installed == {file.name: file.read_text() for file in unit_files()}
    assert (machine.folder / "etc/cron.d/lakelog").read_text() == CRON.read_text()

    _, enable = (machine.folder / "systemctl.log").read_text().splitlines()
    assert enable.startswith("enable --now ")
    enabled = [name.replace("@orders", "@") for name in enable.split()[2:]]
    assert {name if "." in name else f"{name}.service" for name in enabled} == installed.keys() - {
        "lakelog-maintenance@.service",  # its timer starts it
        "lakelog-log-manager.service",  # not for a root
    }

    applied = [word for line in (machine.folder / "kubectl.log").read_text().splitlines() for word in shlex.split(line)]
    files = {f"deploy/kubernetes/{file.name}" for file in (DEPLOY / "kubernetes").iterdir()}
    assert {word for word in applied if word.startswith("deploy/")} == files - {
        "deploy/kubernetes/ingest-with-executors.yaml"
    }
