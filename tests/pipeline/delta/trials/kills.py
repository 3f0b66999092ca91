"""Kills an export at each of its calls to the storage.

    .venv/bin/python -m tests.pipeline.delta.trials.kills --way small --mode upsert
    .venv/bin/python -m tests.pipeline.delta.trials.kills --way spark --mode append --every 5

The root and the tables are in an S3 server. A proxy between the export and the server sees each request of the process:
of Lakelog's storage, of deltalake, and of Spark's JVM with its tasks. Trial number N ends the export at request N,
before the server gets this request:

    small   the process of the export is killed (SIGKILL)
    spark   request N and all later requests are refused, as if the process had been killed: the server sees the same.
            The session continues, so a trial takes seconds. With --processes, the process and its JVM are killed.

Then the topic is left alone for ten times delete.retention.ms, and `maintenance` compacts it. In every second trial, an
earlier version of the table is restored. Then an export by Spark and a small export run at the same time, and after them
one more export. In the end, the table and the dead letters must have exactly what was appended, and `prove` must call
the table equal.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from storage_engine.storage.storage_opening import open_storage
from tests.memory_folder import use_memory
from tests.pipeline.delta.trials.orders import Orders
from tests.pipeline.delta.trials.paused_merges import children
from tests.pipeline.delta.trials.races import NOTHING_IS_LOST, WITH_SPARK
from tests.pipeline.delta.trials.workers import Done, Task, Worker, all_done
from tests.roots.delta_tables import table_at
from tests.servers.faults import Fault, Upstream
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.http_messages import Reply, Request
from tests.servers.versitygw import s3_server
from tests.stores import environment, files_below, new_bucket

DELETE_RETENTION_MS = 100
_CONFIGS = {
    "delete_retention_ms": str(DELETE_RETENTION_MS), "segment_ms": "1", "min_cleanable_dirty_ratio": "0",
    "file_delete_delay_ms": "0",
}  # fmt: skip


@dataclass
class EndAt:
    """Ends an export at a request.

    number: so many requests pass first.
    processes: the processes that are killed; if there are none, this and all later requests are refused.
    seen: the number of requests.
    """

    number: int
    processes: list[int] = field(default_factory=list)
    seen: int = 0

    def __call__(self, request: Request) -> Fault | None:
        self.seen += 1
        if self.seen <= self.number:
            return None
        return self._kill if self.processes else _refuse

    def _kill(self, request: Request, upstream: Upstream) -> Reply | None:
        for each in self.processes:
            try:
                os.kill(each, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return None


def _refuse(request: Request, upstream: Upstream) -> Reply | None:
    body = b"<Error><Code>AccessDenied</Code><Message>as if the process were dead</Message></Error>"
    return Reply(403, [("Content-Type", "application/xml")], body)


class Kills:
    """A server, the processes, and a template of the root."""

    def __init__(self, way: str, mode: str, seed: int, *, processes: bool = False) -> None:
        """
        Args:
            processes: kill processes in any case.
        """
        self._way, self._mode = way, mode
        self._chance = random.Random(seed)
        self._kills_processes = processes or way == "small"
        self._number = 0

    @contextmanager
    def running(self) -> Iterator[Kills]:
        with ExitStack() as stack:
            server = stack.enter_context(s3_server())
            self._proxy = stack.enter_context(FaultyProxy(server))
            self._bucket = new_bucket(server)
            os.environ.update(environment(self._proxy.server, self._bucket))
            self._spark, self._small = (stack.enter_context(Worker()) for _ in range(2))
            self._template = Orders(f"s3://{self._bucket}/template", self._mode, **_CONFIGS)
            for _ in range(3):
                self._template.append(12, self._chance)
                problems: list[str] = []
                self._run(problems, "export", self._template.settings())
                assert problems == []
            self._template.append(25, self._chance)
            yield self

    def trial(self, number: int) -> tuple[list[str], bool]:
        """End an export at a request. Returns what is wrong, and whether the export made so many requests."""
        orders = self._copied()
        plan, done = self._ended(orders, number)
        was_ended = plan.seen > number
        restored = False
        problems = [] if was_ended or (done is not None and done.status == 0) else [f"export: {done}"]
        if was_ended:
            time.sleep(10 * DELETE_RETENTION_MS / 1000)
            for _ in range(2):
                self._run(problems, "maintenance", orders.settings("maintenance.topics=orders"))
            restored = self._chance.random() < 0.5
            if restored:
                version = self._chance.randrange(1, table_at(orders.table).version())
                self._run(problems, "RESTORE", [orders.table, str(version)])
            self._twice(orders, problems)
        self._run(problems, "export", orders.settings())
        problems += orders.problems(restored=restored)
        report = self._run(problems, "prove", orders.settings())
        if not str(report.get("answer")).startswith("equal"):
            problems.append(f"prove: {report}")
        return problems, was_ended

    def _copied(self) -> Orders:
        """A copy of the template."""
        self._number += 1
        orders = copy.copy(self._template)
        orders.root = f"s3://{self._bucket}/root-{self._number}"
        storage = open_storage(f"s3://{self._bucket}")
        for key in files_below(storage, "template/"):
            storage.replace(f"root-{self._number}/{key.removeprefix('template/')}", storage.read(key))
        return orders

    def _ended(self, orders: Orders, number: int) -> tuple[EndAt, Done | None]:
        """Run an export that ends at a request. None: the process was killed."""
        settings = orders.settings(WITH_SPARK) if self._way == "spark" else orders.settings()
        plan = EndAt(number)
        if not self._kills_processes:
            self._proxy.add(plan)
            done: Done | None = self._spark.run(Task("export", settings))
            self._proxy.clear()
            return plan, done
        with Worker() as worker:
            worker.start(Task("export", settings, delay_seconds=0.5))
            plan.processes = [worker.process.pid or 0]
            self._proxy.add(plan)
            while self._way == "spark" and not children(worker.process.pid) and not worker.is_done:
                time.sleep(0.01)
            plan.processes += children(worker.process.pid)
            try:
                done = worker.result()
            except EOFError:
                done = None
                worker.process.join()
            self._proxy.clear()
        return plan, done

    def _twice(self, orders: Orders, problems: list[str]) -> None:
        """Run an export by Spark and a small export at the same time."""
        workers = {"Spark": self._spark, "small": self._small}
        self._spark.start(Task("export", orders.settings(WITH_SPARK)))
        self._small.start(Task("export", orders.settings(), delay_seconds=self._chance.uniform(0, 0.5)))
        for name, done in all_done(workers).items():
            if done.status != 0 and NOTHING_IS_LOST not in done.error:
                problems.append(f"{name}: {done.error}")

    def _run(self, problems: list[str], job: str, settings: list[str]) -> Mapping[str, object]:
        """Do a task in another process. Some functions of deltalake keep Python's lock while they wait for the proxy, which
        runs in this process."""
        done = self._small.run(Task(job, settings))
        if done.status != 0:
            problems.append(f"{job}: {done.report}")
        return done.report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=["small", "spark"], default="small")
    parser.add_argument("--mode", choices=["upsert", "append"], default="upsert")
    parser.add_argument("--processes", action="store_true", help="kill the processes of Spark")
    parser.add_argument("--first", type=int, default=0, help="the first request")
    parser.add_argument("--every", type=int, default=1, help="try only every so many requests")
    parser.add_argument("--most", type=int, default=10_000, help="the largest number of trials")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    use_memory()
    begun = time.monotonic()
    trials = wrong = 0
    with Kills(options.way, options.mode, options.seed, processes=options.processes).running() as kills:
        for number in range(options.first, sys.maxsize, options.every):
            problems, was_ended = kills.trial(number)
            trials += was_ended
            wrong += bool(problems)
            if problems or number % 10 == 0:
                print(f"request {number}: {problems or 'right'}", flush=True)
            if not was_ended or trials == options.most:
                break
    print(
        f"\n{trials} exports ended, way {options.way}, mode {options.mode}, the last of them at request {number}, seed"
        f" {options.seed}, {time.monotonic() - begun:.0f} s; {wrong} wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
