"""Damages the small files of a root at random. Every later operation must return the same result as on the undamaged
root, or report an error.

    .venv/bin/python -m tests.faults.damages --damages 2000 --seed 7

    whole_root.py    the undamaged root, with all kinds of small files
    changes.py       the damages
    uses.py          the operations through the engine: reads, plans, appends, cleaning, exports
    commands.py      the operations through `lakelog`
    trials.py        the comparison

Each damage changes one small file in a copy of the root (the files of the copy are hard links). Then each operation
runs on its own copy of this damaged root. The result is compared, record by record, with the result on the undamaged
root. `verify` must find every damage to meta/ and staging/. After `verify --repair`, the operations must return the
same records. They may return fewer records only if `verify` has reported the missing records. They must never return a
record that was not committed.

A damage is a pure function of its seed. The program prints a table with a row for each kind of file and damage, and
prints each wrong result.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from storage_engine.topic.chain import documents
from tests.faults.damages.trials import Damages, failures, table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--damages", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=7, help="of the first damage; the others follow it")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="make no more after so long")
    parser.add_argument("--folder", type=Path, default=None, help="where the roots lie, such as a disk in memory")
    parser.add_argument("--commands", type=float, default=0.3, metavar="SHARE", help="of the damages lakelog is run on")
    options = parser.parse_args()
    documents._UNDO_SECONDS = 0.3  # what cannot be undone is tried for so long
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        damages = Damages(Path(folder), options.commands)
        counts = {kind: len(keys) for kind, keys in damages.kinds.items()}
        print(f"small files: {counts}")
        trials = []
        begun = time.monotonic()
        for number in range(options.damages):
            if time.monotonic() - begun > options.seconds:
                break
            trials.append(damages.trial(options.seed * 1_000_000 + number))
            for line in failures(trials[-1:]):
                print(line, flush=True)
    print(f"\n{len(trials)} damages, seed {options.seed}, {time.monotonic() - begun:.0f} s\n")
    print("\n".join(table(trials)))
    return 1 if any(True for _ in failures(trials)) else 0


if __name__ == "__main__":
    sys.exit(main())
