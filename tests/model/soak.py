"""`make soak`: runs many random schedules. Each schedule must end without a violation. --rules shows that violations
are noticed.

    python -m tests.model.soak --schedules 20000 --seed 7 [--only 4711] [--rules 1500]

Schedule number n of a seed is always the same, whatever ran before it, so a failing schedule can be run again alone.
With --rules, each rule of the protocol is switched off in turn for the given number of schedules. A good model finds a
violation in many of these schedules.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial

from tests.model.rules import RULES
from tests.model.scheduler import Violation
from tests.model.schedules import run

_AT_ONCE = 20
_MOST_SHOWN = 10


def run_some(rule: str | None, seeds: Iterable[str]) -> tuple[Counter[str], list[str]]:
    """Run schedules, perhaps without a rule; what they consisted of in all, and each violation's text."""
    totals: Counter[str] = Counter()
    violations = []
    for seed in seeds:
        totals["schedules"] += 1
        try:
            with RULES[rule]() if rule else nullcontext():
                outcome = asdict(run(seed))
        except Violation as violation:
            violations.append(str(violation))
            continue
        del outcome["digest"]
        totals.update(outcome)
    return totals, violations


def run_all(
    seed: int, numbers: range, rule: str | None = None, processes: int = 1
) -> Iterator[tuple[Counter[str], list[str]]]:
    """Run the schedules of a seed, some at a time; yields their totals and violations."""
    seeds = [f"{seed} {number}" for number in numbers]
    parts = [seeds[start : start + _AT_ONCE] for start in range(0, len(seeds), _AT_ONCE)]
    if processes == 1:
        yield from map(partial(run_some, rule), parts)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(partial(run_some, rule), parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--only", type=int, help="the number of a single schedule")
    parser.add_argument("--rules", type=int, default=0, help="schedules for each rule that is switched off")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    numbers = range(arguments.schedules) if arguments.only is None else range(arguments.only, arguments.only + 1)
    print(f"{len(numbers):,} schedules, --seed {arguments.seed}", flush=True)
    started = shown = time.monotonic()
    totals: Counter[str] = Counter()
    violations: list[str] = []
    processes = min(arguments.processes, len(numbers))
    for some, found in run_all(arguments.seed, numbers, processes=processes):
        totals += some
        violations += found
        if time.monotonic() - shown > 10 or totals["schedules"] == len(numbers):
            shown = time.monotonic()
            told = ", ".join(f"{count:,} {name}" for name, count in totals.items())
            print(f"{told}, {len(violations):,} violations in {shown - started:,.0f} s", flush=True)
    for violation in violations[:_MOST_SHOWN]:
        print(f"\n{violation}", file=sys.stderr)
    for rule in RULES if arguments.rules else ():
        noticed = sum(len(found) for _, found in run_all(arguments.seed, range(arguments.rules), rule, processes))
        print(f"{noticed:>6,} of {arguments.rules:,} noticed without: {rule}", flush=True)
    if violations:
        sys.exit(f"{len(violations):,} schedules ended in a violation")


if __name__ == "__main__":
    main()
