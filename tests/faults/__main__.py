"""Runs the trials and prints their table. The exit status is 1 if a trial failed."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.faults.figures import HEADING, printed_figures
from tests.faults.operations import OPERATIONS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the trials, up to 1")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="by default one that is printed")
    parser.add_argument("--operation", action="append", choices=list(OPERATIONS), help="may be given several times")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="each with one operation at a time")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, share {arguments.share}")
    print(HEADING, flush=True)
    started = time.monotonic()
    trials: Counter[str] = Counter()
    violations = []
    operations = arguments.operation or list(OPERATIONS)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context, max_tasks_per_child=1) as pool:
        tried = [pool.submit(printed_figures, operation, arguments.share, arguments.seed) for operation in operations]
        for done in as_completed(tried):
            for figures in done.result():
                trials[figures.kind] += figures.tried
                violations += figures.violations
    counted = ", ".join(f"{count} {kind}" for kind, count in trials.items())
    print(f"\n{trials.total()} trials ({counted}) in {time.monotonic() - started:.0f} s, {len(violations)} violations")
    for violation in violations[:50]:
        print(f"\n{violation}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
