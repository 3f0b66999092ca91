"""Maintenance while an export by Spark merges rows, and exports that are paused for longer than everything else.

    .venv/bin/python -m tests.pipeline.delta.trials.paused_merges --trials 40 --seed 7

A trial waits until the export has written a file that no commit names. Then it does one of these:

    upkeep          the job `maintenance` runs several times: OPTIMIZE, checkpoint, clean-up of the log, VACUUM
    paused          the export's process and its JVM are stopped (SIGSTOP) during the same maintenance, and then continue
    overtaken       the same, but a small export of the same records and of more records also runs
    expired         as `paused`, but the files of the running export are deleted: the pause is longer than the table's
                    delta.deletedFileRetentionDuration, and no other commit is made. This takes a minute.

During `upkeep` and `paused`, the export must succeed. In the other cases, it may also end with one of Lakelog's own
errors. If this error asks for a RESTORE, the trial does it. In the end, after one more export, the table and the dead
letters must have exactly what was appended, and `prove` must call the table equal.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.memory_folder import use_memory
from tests.pipeline.delta.trials.orders import Orders
from tests.pipeline.delta.trials.races import WITH_SPARK
from tests.pipeline.delta.trials.workers import Done, Task, Worker, run_here
from tests.roots.delta_tables import table_at

KINDS = ("upkeep", "paused", "overtaken", "expired")
_LONGEST_PAUSE_SECONDS = 65
"""Exports that take more than a minute look for their files after the commit."""
_RESTORE = re.compile(r"[Rr]estore the table to version (\d+)")
_NOTHING_IS_LOST = re.compile(r"Nothing (that was committed )?is lost")
_KEPT = {"delta.deletedFileRetentionDuration": "interval 1 second", "delta.logRetentionDuration": "interval 1 second"}


class Trial:
    """A topic and its table. mode: upsert or append. ended: how the paused export ended."""

    def __init__(self, folder: Path, mode: str, chance: random.Random, worker: Worker) -> None:
        self.orders = Orders(str(folder / "root"), mode)
        self._chance = chance
        self._worker = worker
        self.ended = ""
        for _ in range(3):
            self.export()

    def export(self) -> None:
        """Append records, and make a small export."""
        self.orders.append(self._chance.randrange(5, 20), self._chance)
        status, report = run_here(Task("export", self.orders.settings()))
        assert status == 0, report

    def run(self, kind: str) -> list[str]:
        """Run a trial. Returns what is wrong."""
        self.orders.append(self._chance.randrange(5, 20), self._chance)
        if kind == "expired":
            table_at(self.orders.table).alter.set_table_properties(_KEPT)
        before = set(_data_files(self.orders.table))
        self._worker.start(Task("export", self.orders.settings(WITH_SPARK)))
        while not self._worker.is_done and set(_data_files(self.orders.table)) <= before:
            time.sleep(0.02)
        time.sleep(self._chance.uniform(0, 0.5))
        is_running = not self._worker.is_done
        if kind == "upkeep":
            self._maintain()
        else:
            self._pause(kind)
        done = self._worker.result()
        self.ended = done.error or "exported"
        problems = [] if is_running else ["the export ended before the trial began"]
        problems += self._judged(kind, done)
        self.export()
        problems += self.orders.problems()
        status, report = run_here(Task("prove", self.orders.settings()))
        if status != 0 or not str(report["answer"]).startswith("equal"):
            problems.append(f"prove: {report}")
        return [f"{kind}, {self.orders.mode}: {each}" for each in problems]

    def _maintain(self) -> None:
        rules = "maintenance.topics=orders", "maintenance.tables.small.files=1"
        for _ in range(3):
            status, report = run_here(Task("maintenance", self.orders.settings(*rules)))
            assert status == 0, report

    def _pause(self, kind: str) -> None:
        worker = self._worker.process.pid
        assert worker is not None, "the worker has not been started"
        processes = [worker, *children(worker)]
        for each in processes:
            os.kill(each, signal.SIGSTOP)
        try:
            if kind == "overtaken":
                self.export()
            if kind == "expired":
                time.sleep(_LONGEST_PAUSE_SECONDS)
                rules = "maintenance.topics=orders", "maintenance.tables.small.files=1000"
                status, report = run_here(Task("maintenance", self.orders.settings(*rules)))
                assert status == 0, report
            else:
                self._maintain()
        finally:
            for each in processes:
                os.kill(each, signal.SIGCONT)

    def _judged(self, kind: str, done: Done) -> list[str]:
        if done.status == 0:
            return []
        if kind in ("upkeep", "paused") or "Traceback" in done.error:
            return [f"the export failed: {done.error}"]
        if (found := _RESTORE.search(done.error)) is not None:
            table_at(self.orders.table).restore(int(found[1]))
        elif _NOTHING_IS_LOST.search(done.error) is None:
            return [f"the export does not say what to do: {done.error}"]
        return []


def _data_files(table: str) -> list[str]:
    return [each.name for each in os.scandir(table) if each.name.endswith((".parquet", ".bin"))]


def children(process: int | None) -> list[int]:
    """The JVM of a process."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    children = [int(each) for task in tasks for each in (task / "children").read_text().split()]
    return [each for each in children if "java" in Path(f"/proc/{each}/cmdline").read_text().partition("\0")[0]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--kind", choices=KINDS, default=None, help="only this kind")
    options = parser.parse_args()
    use_memory()
    chance = random.Random(options.seed)
    begun = time.monotonic()
    made: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    with Worker() as worker:
        for number in range(options.trials):
            kind = options.kind or KINDS[number % len(KINDS)]
            mode = ("upsert", "append")[number // len(KINDS) % 2]
            with tempfile.TemporaryDirectory() as folder:
                trial = Trial(Path(folder), mode, chance, worker)
                problems = trial.run(kind)
            made[f"{kind}, {mode}"] += 1
            wrong[f"{kind}, {mode}"] += bool(problems)
            print(f"trial {number}, {kind}, {mode}: {problems or 'right'}; the export: {trial.ended}", flush=True)
    print(f"\n{options.trials} trials, seed {options.seed}, {time.monotonic() - begun:.0f} s\n")
    print("\n".join(f"{name:20} {count:4} trials, {wrong[name]:4} wrong" for name, count in sorted(made.items())))
    return 1 if wrong.total() else 0


if __name__ == "__main__":
    sys.exit(main())
