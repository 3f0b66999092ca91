"""Changes exported tables at random. `prove` must find each change, and must not call an unchanged table different.

    .venv/bin/python -m tests.pipeline.delta.proof.tampering --trials 1000 --seed 7

    models.py        columns of each kind
    histories.py     honest tables: exports, compaction, retention, upkeep, wider columns, rebuilds, RESTORE
    tamperings.py    the changes, made from outside
    writing.py       writes the changes: into the files, into the log of the table, and with forged stamps
    trials.py        the comparison

Each trial makes a table by random steps, and proves it. Then it makes one change, and proves the table again. A change
is made only if the log, or the chain of digests, still shows that it is wrong. A change is found if the answer is
"different", or if the proof ends with one of Lakelog's own errors. There are four exceptions. `prove` must only give a
warning for a plain RESTORE, for a narrower type that loses no value, and for a lost column `_stale_since`, which the
digests do not cover. After the loss of a dead letter, the answer must only be another one than "equal".

A trial is a pure function of its seed. The program prints a table with a row for each kind of change, and each wrong
result.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.pipeline.delta.proof.tampering.trials import HONEST, table, trial


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7, help="of the first trial; the others follow it")
    parser.add_argument("--only", type=int, default=None, metavar="NUMBER", help="make only this trial")
    parser.add_argument("--folder", type=Path, default=None, help="for the tables, such as a disk in memory")
    options = parser.parse_args()
    numbers = range(options.trials) if options.only is None else [options.only]
    begun = time.monotonic()
    trials = []
    for number in numbers:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            trials.append(trial(Path(folder), options.seed * 1_000_000 + number))
        if trials[-1].failed:
            print(trials[-1], flush=True)
    honest = sum(each.honest == HONEST for each in trials)
    print(
        f"\n{len(trials)} trials, seed {options.seed}, {time.monotonic() - begun:.0f} s; honest tables: {honest} equal\n"
    )
    print("\n".join(table(trials)))
    return 1 if any(each.failed for each in trials) else 0


if __name__ == "__main__":
    sys.exit(main())
