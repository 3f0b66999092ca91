"""Makes many small exports of one topic, with the job `maintenance` after each hundred exports.

    .venv/bin/python -m tests.pipeline.delta.trials.many_exports --exports 1000 --mode upsert --each 100

The program prints the number of files of the table and of its log, and the time in which deltalake opens the table,
before and after each maintenance. At the end, the rows are compared with what was appended. All exports run in one
process, so the time of an export does not include the start of Python.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from storage_engine.storage.storage_opening import open_storage
from tests.memory_folder import use_memory
from tests.pipeline.delta.trials.orders import TABLE, Orders
from tests.pipeline.delta.trials.workers import Task, run_here
from tests.roots.delta_tables import table_at
from tests.stores import files_below

_OPENINGS = 5


class ManyExports:
    """The topic and its table. mode: upsert or append."""

    def __init__(self, folder: Path, mode: str, seed: int) -> None:
        self.orders = Orders(str(folder / "root"), mode)
        self._chance = random.Random(seed)
        self.milliseconds: list[float] = []

    def export(self) -> None:
        """Append up to twenty records, and export them."""
        self.orders.append(self._chance.randrange(1, 20), self._chance)
        started = time.monotonic()
        self._run("export", self.orders.settings())
        self.milliseconds.append((time.monotonic() - started) * 1000)

    def maintain(self) -> None:
        self._run("maintenance", self.orders.settings("maintenance.topics=orders"))

    def figures(self) -> tuple[int, int, int, float]:
        """The number of files in the newest version, of all data files, and of the files of the log; and the median of
        the seconds in which deltalake opens the table."""
        live, every = self.orders.files()
        log = len(files_below(open_storage(self.orders.root), f"{TABLE}/_delta_log/"))
        seconds = []
        for _ in range(_OPENINGS):
            started = time.monotonic()
            table_at(self.orders.table).file_uris()
            seconds.append(time.monotonic() - started)
        return live, every - log, log, statistics.median(seconds)

    @staticmethod
    def _run(job: str, arguments: list[str]) -> None:
        status, report = run_here(Task(job, arguments))
        assert status == 0, report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exports", type=int, default=1000)
    parser.add_argument("--each", type=int, default=100, help="exports between two runs of maintenance")
    parser.add_argument("--mode", choices=["upsert", "append"], default="upsert")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    use_memory()
    with tempfile.TemporaryDirectory() as folder:
        trial = ManyExports(Path(folder), options.mode, options.seed)
        print(f"{'exports':>8} {'':18} {'files':>6} {'data files':>11} {'log files':>10} {'opened in':>10}")
        for number in range(1, options.exports + 1):
            trial.export()
            if number % options.each == 0:
                for when in ("before maintenance", "after maintenance"):
                    live, data, log, seconds = trial.figures()
                    print(f"{number:8} {when:18} {live:6} {data:11} {log:10} {seconds * 1000:7.1f} ms", flush=True)
                    if when == "before maintenance":
                        trial.maintain()
        problems = trial.orders.problems()
        print(
            f"\n{options.exports} exports of {trial.orders.appended} records, mode {options.mode}, seed {options.seed}; an"
            f" export takes {statistics.median(trial.milliseconds):.0f} ms (median); {len(problems)} problems"
        )
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
