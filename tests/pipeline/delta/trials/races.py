"""Races between exports by Spark, small exports without a JVM, maintenance and a foreign OPTIMIZE.

    .venv/bin/python -m tests.pipeline.delta.trials.races --races 1000 --seed 7

Each race appends records. Then several processes begin at the same time, or at drawn times, or one of them waits at a
drawn call to the storage until another process is done:

    an export by Spark                       in each race
    a small export without a JVM             in each race, sometimes two of them
    the job `maintenance`, only the upkeep of the table, an OPTIMIZE by deltalake or an OPTIMIZE by Spark
                                             in half of the races
    more records are appended                in a fifth of the races

After each race, the table and the dead letters are compared with what was appended, row by row. Each export must have
exported records, or have found nothing new, or have ended with the error that nothing is lost. Together, the exports
must have exported each offset once. If all exports of a race lost, or if records were appended during the race, one
more export runs before the comparison.

deltalake's OPTIMIZE damages a table if another OPTIMIZE replaces the same files at that time (decision 0052), so only one
process of a race joins files. The tables are plain, partitioned, or have deletion vectors. After a violation, the next
race has a new table; --keep copies the root of the wrong one, with the tasks and the outcomes of the race.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path

from tests.memory_folder import use_memory
from tests.pipeline.delta.trials.orders import Orders
from tests.pipeline.delta.trials.workers import Done, Task, Worker, all_done
from tests.roots.delta_tables import is_table

RACES_OF_A_TABLE = 20
PLAIN, PARTITIONED, WITH_VECTORS = (), ("export.partition.by=_partition",), ("export.readers=spark",)
TABLES = [
    ("upsert", PLAIN), ("append", PLAIN), ("upsert", WITH_VECTORS), ("append", PARTITIONED), ("upsert", PARTITIONED),
]  # fmt: skip
"""The modes and layouts of the tables, one after another. With deletion vectors, each export is by Spark."""
SPARK, SMALL, OTHER_SMALL, JOINER = "Spark", "small", "second small", "joiner"
WITH_SPARK = "export.spark.records=0"
BY_DELTALAKE, BY_SPARK = "OPTIMIZE by deltalake", "OPTIMIZE by Spark"
JOINERS = ("maintenance", "upkeep", BY_DELTALAKE, BY_SPARK)
NOTHING_IS_LOST = "Nothing is lost"
WON, NOTHING_LEFT, LOST, FAILED = "exported", "found nothing new", "told that nothing is lost", "another error"
DID, OTHER_LOST = "done", "conflict"
_CALLS = 40
"""About the number of calls to the storage in an export."""


@dataclass
class Figures:
    """What happened in the races.

    outcomes: by racer and outcome.
    violations: what must not happen.
    """

    races: int = 0
    repeated: int = 0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


class Races:
    """The processes, and the races. A race is chosen by the seed, but its outcome also depends on the machine."""

    def __init__(self, folder: Path, seed: int, *, only_small: bool = False, kept: Path | None = None) -> None:
        """
        Args:
            kept: the folder for copies of the roots of wrong races.
            only_small: the export by Spark is a small export, too, and the table exists before the first race. (If another
                export is just creating the table, a small export needs Spark.)
        """
        self.figures = Figures()
        self._folder = folder
        self._chance = random.Random(seed)
        self._only_small = only_small
        self._kept = kept
        self._seconds = {SPARK: 1.0, SMALL: 0.2}
        self._workers: dict[str, Worker] = {}

    def run(self, races: int) -> Iterator[Figures]:
        """Run races, with a new table after RACES_OF_A_TABLE or a violation. Yields the figures after each race."""
        figures, tables = self.figures, cycle(TABLES[:2] if self._only_small else TABLES)
        with ExitStack() as stack:
            for name in (SPARK, SMALL, JOINER) if self._only_small else (SPARK, SMALL, OTHER_SMALL, JOINER):
                self._workers[name] = stack.enter_context(Worker())
            while figures.races < races:
                root = self._folder / f"root-{figures.races}"
                orders = Orders(str(root), *next(tables))
                if self._only_small:
                    orders.append(1, self._chance)
                    self._workers[SMALL].run(Task("export", orders.settings()))
                last, found = min(figures.races + RACES_OF_A_TABLE, races), len(figures.violations)
                while figures.races < last and len(figures.violations) == found:
                    self.race(orders)
                    yield figures
                shutil.rmtree(root)

    def race(self, orders: Orders) -> None:
        chance = self._chance
        before = orders.appended
        orders.append(chance.randrange(1, 12), chance)
        tasks = self._tasks(orders)
        racing = {name: self._workers[name] for name in tasks}
        for name, task in tasks.items():
            racing[name].start(task)
        appends_more = chance.random() < 0.2
        if appends_more:
            time.sleep(chance.uniform(0, self._seconds[SPARK]))
            orders.append(chance.randrange(1, 5), chance)
        ended = all_done(racing)
        for name, seconds in self._seconds.items():
            self._seconds[name] = 0.8 * seconds + 0.2 * ended[name].seconds
        outcomes = {name: _outcome(done) for name, done in ended.items()}
        exported = sum(_offsets(done) for done in ended.values())
        if appends_more or WON not in outcomes.values():
            self.figures.repeated += WON not in outcomes.values()
            last = ended["last export"] = self._workers[SMALL].run(Task("export", orders.settings()))
            outcomes["last export"] = _outcome(last)
            exported += _offsets(last)
        problems = orders.problems()
        if exported != orders.appended - before:
            problems.append(f"{orders.appended - before} offsets appended, {exported} exported")
        problems += [f"{name}: {done.error}" for name, done in ended.items() if outcomes[name] == FAILED]
        self.figures.races += 1
        self.figures.outcomes.update(outcomes.items())
        table = " ".join((orders.mode, *orders.layout))
        self.figures.violations += [f"race {self.figures.races} ({table}): {each}" for each in problems]
        if problems and self._kept:
            copy = shutil.copytree(orders.root, self._kept / f"race-{self.figures.races}", symlinks=True)
            (copy / "race.txt").write_text("".join(f"{name}: {done}\n" for name, done in ended.items()))

    def _tasks(self, orders: Orders) -> dict[str, Task]:
        """The racers of the next race."""
        chance = self._chance
        small = orders.settings()
        tasks = {
            SPARK: Task("export", small if self._only_small else orders.settings(WITH_SPARK)),
            SMALL: Task("export", small),
        }
        if chance.random() < 0.25 and not self._only_small:
            tasks[OTHER_SMALL] = Task("export", small)
        if chance.random() < 0.5:
            job = chance.choice(self._joiners(orders))
            rules = ["maintenance.topics=orders", "maintenance.tables.small.files=1"]
            given = orders.settings(*rules) if job == "maintenance" else [orders.table]
            tasks[JOINER] = Task(job, given)
        kind = chance.random()
        if kind < 0.3:
            return {name: replace(task, delay_seconds=chance.uniform(0, 0.03)) for name, task in tasks.items()}
        if kind < 0.6:
            longest = self._seconds[SPARK]
            return {name: replace(task, delay_seconds=chance.uniform(0, longest)) for name, task in tasks.items()}
        held = SMALL if kind < 0.85 else SPARK
        tasks[held] = replace(tasks[held], hold_at=chance.randrange(1, _CALLS))
        other = SPARK if held == SMALL else SMALL
        tasks[other] = replace(tasks[other], delay_seconds=chance.uniform(0, 0.5))
        return tasks

    def _joiners(self, orders: Orders) -> Sequence[str]:
        """Which jobs can join files of the table. Another program's OPTIMIZE fails if the table does not exist yet."""
        if not is_table(orders.table):
            return JOINERS[:2]
        if self._only_small:
            return [each for each in JOINERS if each != BY_SPARK]
        return [each for each in JOINERS if each != BY_DELTALAKE] if orders.layout == WITH_VECTORS else JOINERS


def _outcome(done: Done) -> str:
    if done.task.job != "export":
        # Another writer may get an error of Delta, and the upkeep gives up after some conflicts.
        return DID if done.status == 0 else OTHER_LOST if _is_conflict(done.error) else FAILED
    if done.status == 0:
        return WON if done.report["records"] else NOTHING_LEFT
    return LOST if NOTHING_IS_LOST in done.error else FAILED


def _is_conflict(error: str) -> bool:
    return any(each in error for each in ("CommitFailedError", "Concurrent", NOTHING_IS_LOST))


def _offsets(done: Done) -> int:
    """The number of offsets that an export has exported. Compaction may have removed records at some of them."""
    if done.task.job != "export" or done.status != 0:
        return 0
    return sum(row["to offset"] - row["from offset"] for row in done.report["rows"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--keep", type=Path, help="a folder for the roots of wrong races")
    options = parser.parse_args()
    use_memory()
    begun, shown = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        for figures in Races(Path(folder), options.seed, kept=options.keep).run(options.races):
            for each in figures.violations[shown:]:
                print(each, flush=True)
            shown = len(figures.violations)
            if figures.races % 10 == 0:
                print(f"{figures.races} races, {time.monotonic() - begun:.0f} s", flush=True)
    print(
        f"\n{figures.races} races, seed {options.seed}, {time.monotonic() - begun:.0f} s; in {figures.repeated} races, all"
        f" exports lost; {len(figures.violations)} violations\n"
    )
    for (name, outcome), count in sorted(figures.outcomes.items()):
        print(f"{name:14} {outcome:36} {count:6}")
    return 1 if figures.violations else 0


if __name__ == "__main__":
    sys.exit(main())
