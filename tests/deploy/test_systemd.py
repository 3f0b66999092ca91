"""The units of deploy/systemd: systemd knows all their keys, and the command of each unit does its work on a root."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.deploy.conftest import ORDERS
from tests.deploy.schedules import exec_start, unit, unit_files
from tests.deploy.services import run_service
from tests.docs.commands import Machine
from tests.docs.pages import blocks
from tests.storage_engine.kafka_dir.upkeep.brokers_directory import make_directory, rows

KEYS = {
    "Unit": {"Description", "Documentation", "After", "Before", "Wants", "Requires", "StartLimitIntervalSec",
             "StartLimitBurst", "RequiresMountsFor"},
    "Service": {"Type", "User", "Group", "WorkingDirectory", "Environment", "EnvironmentFile", "ExecStartPre",
                "ExecStart", "Restart",
                "RestartSec", "RestartPreventExitStatus", "SuccessExitStatus", "KillMode", "KillSignal",
                "TimeoutStartSec", "TimeoutStopSec", "LimitNOFILE"},
    "Timer": {"OnCalendar", "OnBootSec", "OnUnitActiveSec", "RandomizedDelaySec", "Persistent", "Unit"},
    "Install": {"WantedBy", "Also", "Alias", "DefaultInstance"},
}  # fmt: skip
"""Keys of systemd.unit(5), systemd.service(5), systemd.exec(5), systemd.kill(5) and systemd.timer(5)."""


@pytest.mark.parametrize("file", unit_files(), ids=lambda file: file.name)
def test_systemd_knows_the_keys_of_a_unit(machine: Machine, file: Path) -> None:
    found = unit(file.name)
    assert {*found} - {"DEFAULT"} == {"Unit", *({"Timer"} if file.suffix == ".timer" else {"Service"})} | (
        set() if file.name == "lakelog-maintenance@.service" else {"Install"}
    )
    assert {f"{name}.{key}" for name in found.sections() for key in found[name] if key not in KEYS[name]} == set()
    if file.suffix == ".timer":
        assert file.with_suffix(".service").exists()
    program = shutil.which("systemd-analyze")
    if program is not None:
        assert verified(program, machine, file.name) == []


def verified(program: str, machine: Machine, name: str) -> list[str]:
    """What systemd finds wrong with the unit. The units name programs that exist, so their paths are those of the test."""
    folder = machine.folder / "units"
    folder.mkdir()
    for file in unit_files():
        (folder / file.name).write_text(machine.local(file.read_text()))
    done = subprocess.run(
        [program, "verify", "--man=no", str(folder / name)], capture_output=True, text=True, check=False
    )
    return [line for line in (done.stdout + done.stderr).splitlines() if "lakelog" in line]


def test_maintenance_of_the_service_ends_with_its_json(machine: Machine) -> None:
    ended = machine.run(exec_start("lakelog-maintenance@.service", "orders"))
    assert ended.status == 0
    result = json.loads(ended.out)
    assert (result["job"], result["failures"], result["warnings"]) == ("maintenance", [], [])


def test_continuous_exports_run_until_sigterm(machine: Machine) -> None:
    """With the settings that the page shows for exports with a trigger."""
    (_, settings) = blocks("docs/OPERATIONS.md", "yaml")
    (machine.folder / "etc/lakelog/exports.yaml").write_text(machine.local(settings.text))
    command = exec_start("lakelog-export@.service", "exports")
    status, lines = run_service(machine, command, until="export order-history: 100 records")
    assert (status, lines[-1].split(" (")[0]) == (0, "export: exports 2, records 200, rows written 200, dead letters 0")
    tables = machine.folder / "mnt/shared/lakelog/tables"
    for name in ("orders", "order_history"):
        assert DeltaTable(tables / name).to_pyarrow_table().num_rows == ORDERS


def test_the_log_manager_works_until_sigterm(machine: Machine) -> None:
    data = machine.folder / "kafka-data"
    make_directory(data, {"a": rows(60)})
    (data / ".kafka_cleanshutdown").unlink()
    (machine.folder / "etc/kafka/server.properties").write_text(f"log.dirs={data}\n")
    status, lines = run_service(machine, exec_start("lakelog-log-manager.service"), until="loaded, offsets 0 to 60")
    assert status == 0, lines
    assert lines[-1].endswith(f"{data}: closed, wrote .kafka_cleanshutdown")
    assert (data / ".kafka_cleanshutdown").exists()


def seconds(span: str) -> int:
    """A time span of systemd.time(7) with one unit."""
    number, unit_of = re.fullmatch(r"(\d+) *(s|min|h|)", span).groups()  # type: ignore[union-attr]
    return int(number) * {"": 1, "s": 1, "min": 60, "h": 3600}[unit_of]


@pytest.mark.parametrize("name", ["lakelog-ingest@.service", "lakelog-export@.service", "lakelog-metrics.service"])
def test_no_outage_of_the_storage_is_so_long_that_systemd_gives_up(name: str) -> None:
    """systemd.unit(5): a unit that starts more than `burst` times within the interval does not start any more. An interval
    of 0 is no limit. The shortest run takes no time."""
    found = unit(name)
    interval = seconds(found["Unit"].get("StartLimitIntervalSec", "10s"))
    burst = int(found["Unit"].get("StartLimitBurst", "5"))
    assert found["Service"]["Restart"] == "on-failure"
    assert interval == 0 or burst * seconds(found["Service"]["RestartSec"]) >= interval


@pytest.mark.parametrize("name", ["lakelog-ingest@.service", "lakelog-export@.service"])
def test_no_job_starts_in_the_empty_directory_of_a_mount_that_failed_and_systemd_tries_again(
    name: str, machine: Machine
) -> None:
    service = unit(name)["Service"]
    program, point = service["ExecStartPre"].split()
    (machine.folder / "mnt/shared").mkdir(parents=True, exist_ok=True)
    done = subprocess.run([program, machine.local(point)], capture_output=True, text=True, check=False)
    assert "not a mountpoint" in done.stdout + done.stderr
    assert str(done.returncode) not in {"0", *service["RestartPreventExitStatus"].split()}
    assert subprocess.run([program, "/proc"], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_no_service_starts_again_where_that_would_do_harm() -> None:
    prevented = {
        file.name: unit(file.name)["Service"].get("RestartPreventExitStatus", "").split()
        for file in unit_files()
        if file.suffix == ".service" and "Restart" in unit(file.name)["Service"]
    }
    assert prevented == {
        "lakelog-ingest@.service": ["2", "3"],
        "lakelog-export@.service": ["2"],
        "lakelog-log-manager.service": ["2", "4"],
        "lakelog-metrics.service": [],
    }
