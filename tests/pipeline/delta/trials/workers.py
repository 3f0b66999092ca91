"""Processes that run jobs, one after another, as the operator's own processes do. The Spark session of a process stays
open between its jobs, so hundreds of exports by Spark take minutes.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

from jobs.export import export
from jobs.maintenance import add_maintenance_options, maintenance
from pipeline.delta.upkeep.small_files import SmallFileRule
from pipeline.delta.upkeep.table_upkeep import keep_table
from pipeline.export.export_request import add_export_options
from pipeline.export.proof_run import add_proof_options, prove_exports
from pipeline.job import run_job
from storage_engine.errors import LogError
from storage_engine.storage.storage_opening import open_storage
from tests.java_options import JAVA_OPTIONS
from tests.roots.delta_tables import table_at

JOBS: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
    "export": (export, add_export_options),
    "maintenance": (maintenance, add_maintenance_options),
    "prove": (prove_exports, add_proof_options),
}
LONGEST_SECONDS = 300
_HELD_SECONDS = 20
_SPARK_OPTIONS = (
    "spark.ui.enabled=false", "spark.sql.shuffle.partitions=2", "spark.sql.codegen.wholeStage=false",
    "spark.sql.codegen.factoryMode=NO_CODEGEN", "spark.databricks.delta.snapshotPartitions=1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism=2",
)  # fmt: skip
_VERBS = ("read", "list", "put_new", "replace", "delete")


@dataclass(frozen=True)
class Task:
    """What a process does.

    job: the name of a job; or "OPTIMIZE by deltalake", "OPTIMIZE by Spark", "RESTORE" or "upkeep", of the table
        `arguments[0]`. "RESTORE" goes back to the version `arguments[1]`.
    arguments: the command line of the job.
    delay_seconds: the time before the work begins.
    hold_at: the number of calls to the storage by Python, after which the process waits until it is released; None: it
        does not wait.
    """

    job: str
    arguments: Sequence[str]
    delay_seconds: float = 0
    hold_at: int | None = None


@dataclass(frozen=True)
class Done:
    """The result of a task.

    status: the exit status of the job; 1 after an error of another task.
    report: the output of the job, or {"error": text}.
    seconds: the time of the work.
    calls: the number of calls to the storage by Python.
    """

    task: Task
    status: int
    report: Mapping[str, Any]
    seconds: float
    calls: int

    @property
    def error(self) -> str:
        return str(self.report.get("error", ""))


class Worker:
    """A process. It ends at the end of the `with` block."""

    def __init__(self, environment: Mapping[str, str] = {}) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._released = context.Event()
        os.environ.update(environment)
        self.process = context.Process(target=_work, args=(there, self._released), daemon=True)
        self.process.start()
        there.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()

    def start(self, task: Task) -> None:
        self._released.clear()
        self._here.send(task)

    def release(self) -> None:
        """Let a task that waits at a call go on."""
        self._released.set()

    @property
    def is_done(self) -> bool:
        return self._here.poll()

    def result(self) -> Done:
        """Wait for the end of the task.

        Raises:
            TimeoutError: the task takes too long.
            EOFError: the process has ended.
        """
        if not self._here.poll(LONGEST_SECONDS):
            raise TimeoutError(f"the process {self.process.pid} does not answer")
        done: Done = self._here.recv()
        return done

    def run(self, task: Task) -> Done:
        self.start(task)
        return self.result()


def run_here(task: Task) -> tuple[int, dict[str, Any]]:
    """Do a task in this process. Returns the exit status and the output."""
    if task.job in JOBS:
        said, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(said), redirect_stderr(errors):
            status = run_job(task.job, "", *JOBS[task.job], list(task.arguments), {})
        lines = said.getvalue().splitlines()
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {"error": errors.getvalue()}
        return status, found
    try:
        _change(task.job, *task.arguments)
    except LogError as error:
        return 1, {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - an error of Delta, which another writer may get
        return 1, {"error": f"{type(error).__name__}: {error}"}
    return 0, {}


def _change(name: str, table: str, version: str = "") -> None:
    if name == "OPTIMIZE by deltalake":
        table_at(table).optimize.compact()
    elif name == "RESTORE":
        table_at(table).restore(int(version))
    elif name == "upkeep":
        keep_table(table, SmallFileRule(1, 32 << 20))
    else:
        from pipeline.spark.session import spark_session

        spark_session("lakelog-trials").sql(f"OPTIMIZE delta.`{table}`")


# --- In the process ----------------------------------------------------------------------------------------------


def _work(tasks: Connection, released: Event) -> None:
    os.environ.update(JAVA_OPTIONS)
    options = " ".join(f"--conf {each}" for each in _SPARK_OPTIONS)
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{options} pyspark-shell"
    calls = _Calls(released)
    while True:
        try:
            task = tasks.recv()
        except EOFError:
            return
        calls.begin(task.hold_at)
        time.sleep(task.delay_seconds)
        started = time.monotonic()
        try:
            status, report = run_here(task)
        except BaseException:  # noqa: BLE001 - the trial reports each error
            status, report = 1, {"error": traceback.format_exc()}
        tasks.send(Done(task, status, report, time.monotonic() - started, calls.count))


class _Calls:
    """Counts the calls to storages, and waits at one of them."""

    def __init__(self, released: Event) -> None:
        self.count = 0
        self._released = released
        self._hold_at: int | None = None
        self._mutex = threading.Lock()
        storage = type(open_storage("/tmp"))
        for verb in _VERBS:
            setattr(storage, verb, self._counted(getattr(storage, verb)))

    def begin(self, hold_at: int | None) -> None:
        self.count, self._hold_at = 0, hold_at

    def _counted(self, whole: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            with self._mutex:
                self.count += 1
                is_held = self.count == self._hold_at
            if is_held:
                self._released.wait(_HELD_SECONDS)
            return whole(*arguments, **named)

        return counted


def all_done(workers: Mapping[str, Worker]) -> dict[str, Done]:
    """The results of the workers' tasks, by name. As soon as a task is done, the tasks that wait are released."""
    waiting = dict(workers)
    found: dict[str, Done] = {}
    deadline = time.monotonic() + LONGEST_SECONDS
    while waiting:
        for name in [name for name, worker in waiting.items() if worker.is_done]:
            found[name] = waiting.pop(name).result()
            for other in waiting.values():
                other.release()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{', '.join(waiting)} do not answer")
        time.sleep(0.02)
    return found
