"""Run the trials and print their table; exit status 1 where something did not hold."""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import time
from collections import Counter

from tests.faults.figures import HEADING, all_figures
from tests.faults.operations import OPERATIONS

_STUCK_SECONDS = 3600


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the trials, up to 1")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="by default one that is printed")
    parser.add_argument("--operation", action="append", choices=list(OPERATIONS), help="may be given several times")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, share {arguments.share}")
    print(HEADING)
    started = time.monotonic()
    trials: Counter[str] = Counter()
    violations = []
    for operation in arguments.operation or OPERATIONS:
        faulthandler.dump_traceback_later(_STUCK_SECONDS, exit=True)
        for figures in all_figures(operation, arguments.share, arguments.seed):
            print(figures, flush=True)
            trials[figures.kind] += figures.tried
            violations += figures.violations
    faulthandler.cancel_dump_traceback_later()
    counted = ", ".join(f"{count} {kind}" for kind, count in trials.items())
    print(f"\n{trials.total()} trials ({counted}) in {time.monotonic() - started:.0f} s, {len(violations)} violations")
    for violation in violations[:50]:
        print(f"\n{violation}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
