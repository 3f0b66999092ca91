"""The file of deploy/cron: cron accepts each line, and the command of each line does its work on a root."""

from __future__ import annotations

import json
import re

import pytest
from deltalake import DeltaTable

from tests.deploy.conftest import ORDERS
from tests.deploy.schedules import CRON, CronEntry, cron_entries, cron_variables
from tests.docs.commands import Machine


def test_cron_reads_the_file() -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]+", CRON.name), "cron ignores files in /etc/cron.d with other names"
    assert CRON.read_text().endswith("\n"), "cron ignores a last line without its end"
    assert cron_variables().keys() == {"SHELL", "PATH", "MAILTO"}
    entries = cron_entries()
    assert [(entry.is_right, entry.user) for entry in entries] == [(True, "lakelog")] * 3


@pytest.mark.parametrize("times", ["60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "*/0 * * * *", "x * * * *"])
def test_wrong_times_are_noticed(times: str) -> None:
    assert not CronEntry(tuple(times.split()), "lakelog", "true").is_right


def test_the_commands_of_cron_collect_results_and_metrics(machine: Machine) -> None:
    for entry in cron_entries():
        ended = machine.run(entry.command)
        assert (ended.status, ended.err) == (0, ""), entry
    results = [json.loads(line) for line in (machine.folder / "var/log/lakelog/jobs.jsonl").read_text().splitlines()]
    assert [(each["job"], each["exit_status"]) for each in results] == [("maintenance", 0), ("export", 0)]
    table = DeltaTable(machine.folder / "mnt/shared/lakelog/tables/orders")
    assert table.to_pyarrow_table().num_rows == ORDERS
    metrics = (machine.folder / "var/lib/node_exporter/lakelog.prom").read_text()
    assert (
        'lakelog_consumer_lag_records{consumer="export tables/orders",kind="delta export",topic="orders"} 0.0'
        in metrics
    )
