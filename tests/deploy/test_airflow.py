"""The DAG of deploy/airflow: its tasks, their order, and their commands on a root.

Airflow needs too many packages for the environment of the tests. So `make test` runs the file with substitute classes,
which only record their arguments. `make test-airflow` loads the file with a real Airflow.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lakelog
from scripts.install_airflow import airflow
from tests.deploy.schedules import DEPLOY
from tests.docs.commands import Machine

FILE = DEPLOY / "airflow/lakelog_orders.py"
DESCRIBES = """
import json, runpy, sys
dag = runpy.run_path(sys.argv[1])["dag"]
tasks = {
    each.task_id: [getattr(each, "bash_command", None), str(getattr(each.trigger_rule, "value", each.trigger_rule)),
                   sorted(each.downstream_task_ids)]
    for each in dag.tasks
}
print(json.dumps({"dag": dag.dag_id, "runs": dag.max_active_runs, "tasks": tasks}))
"""


class Task:
    """Remembers a task."""

    def __init__(self, task_id: str, trigger_rule: str = "all_success", **options: Any) -> None:
        self.task_id, self.trigger_rule, self.options = task_id, trigger_rule, options
        self.bash_command = options.get("bash_command")
        self.downstream_task_ids: set[str] = set()
        Dag.current.tasks.append(self)

    def __rshift__(self, other: Task) -> Task:
        self.downstream_task_ids.add(other.task_id)
        return other


class Dag:
    """Remembers a DAG."""

    current: Dag

    def __init__(self, dag_id: str, max_active_runs: int = 16, **options: Any) -> None:
        self.dag_id, self.max_active_runs, self.options = dag_id, max_active_runs, options
        self.tasks: list[Task] = []

    def __enter__(self) -> Dag:
        Dag.current = self
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the file, after it was run."""
    standard = "airflow.providers.standard"
    for module, name, value in (
        ("airflow.sdk", "DAG", Dag),
        (f"{standard}.operators.bash", "BashOperator", Task),
        (f"{standard}.sensors.python", "PythonSensor", Task),
    ):
        made = ModuleType(module)
        setattr(made, name, value)
        monkeypatch.setitem(sys.modules, module, made)
        for parent in Path(module.replace(".", "/")).parents[:-1]:
            monkeypatch.setitem(sys.modules, str(parent).replace("/", "."), ModuleType(str(parent)))
    return runpy.run_path(str(FILE))


def expected(names: dict[str, Any]) -> dict[str, Any]:
    command: Callable[[str], str] = names["JOB"].format
    return {
        "dag": "lakelog_orders",
        "runs": 1,
        "tasks": {
            "maintenance": [command("maintenance"), "all_success", ["export"]],
            "export": [command("export"), "all_done", ["table_is_fresh"]],
            "table_is_fresh": [None, "all_success", []],
        },
    }


def test_the_tasks_follow_one_another(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    dag: Dag = names["dag"]
    tasks = {
        each.task_id: [each.bash_command, each.trigger_rule, sorted(each.downstream_task_ids)] for each in dag.tasks
    }
    assert {"dag": dag.dag_id, "runs": dag.max_active_runs, "tasks": tasks} == expected(names)
    (sensor,) = [each for each in dag.tasks if each.task_id == "table_is_fresh"]
    assert sensor.options["python_callable"] is names["table_is_fresh"]


def test_the_jobs_run_and_the_sensor_waits_for_records_that_were_not_exported(
    names: dict[str, Any], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(DEPLOY.parent))
    is_fresh, scope = names["table_is_fresh"], names["table_is_fresh"].__globals__
    monkeypatch.setitem(scope, "LAG", [machine.local(word) for word in names["LAG"]])
    with pytest.raises(RuntimeError, match=r"lakelog: group export tables/orders: "):
        is_fresh()

    dag: Dag = names["dag"]
    for task in dag.tasks:
        if task.bash_command is not None:
            ended = machine.run(task.bash_command)
            assert (ended.status, json.loads(ended.out)["job"]) == (0, task.task_id)
    assert is_fresh()

    topic = lakelog.open(machine.folder / "mnt/shared/lakelog").topic("orders")
    topic.append([{"key": b"new", "value": b"{}"}])
    assert is_fresh(), "the record is not old yet"
    topic.append([{"key": b"old", "value": b"{}", "timestamp": 1_000}], partition=0)
    assert not is_fresh()
    monkeypatch.setitem(scope, "OLDEST_SECONDS", 10**10)
    assert is_fresh()


@pytest.mark.airflow
def test_airflow_loads_the_dag(names: dict[str, Any], tmp_path: Path) -> None:
    environment = os.environ | {"AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(airflow())}
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBES, str(FILE)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == expected(names)
