"""`make fuzz`: reads many mutations of valid files with every reader. Each reader must return or raise a LogError.

    python -m tests.storage_engine.fuzz.fuzzing --mutations 1000000 --seed 7 [--only 4711]

Mutation number n of a seed is always the same, whatever ran before it, so a failing mutation can be run again alone.
After its first reads, the process may use only half a gigabyte of additional address space. So a reader fails if it
trusts a false size of gibibytes. A watchdog ends a run in which a thousand mutations take minutes.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from storage_engine.errors import LogError
from tests.storage_engine.fuzz.corpus import Sample, corpus
from tests.storage_engine.fuzz.mutations import mutated
from tests.storage_engine.fuzz.readers import Readers

ROOM_BYTES = 512 * 1024**2
_PATIENCE_SECONDS = 300
_STEP = 1000
_WEIGHTS = {"log": 16, "folder log": 1, "index": 1, "timeindex": 1, "state": 1}
"""How often each kind of sample is chosen; 4 for all other kinds. Kinds whose readers need files take longer, so they
are chosen less often."""


class Fuzzing:
    """The mutations of one seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.outcomes: Counter[str] = Counter()
        self._readers = Readers(folder).of_kind
        self._samples: dict[str, list[Sample]] = {}
        for sample in corpus():
            self._samples.setdefault(sample.kind, []).append(sample)
        self._kinds = list(self._samples)
        self._weights = [_WEIGHTS.get(kind, 4) for kind in self._kinds]

    def read_corpus(self) -> None:
        """Read every sample as it is. Whatever is loaded on first use is then there."""
        for kind, samples in self._samples.items():
            for sample in samples:
                self._readers[kind](sample.data)

    def mutation(self, number: int) -> tuple[Sample, bytes]:
        """One mutation, and the sample that it was."""
        chance = random.Random(f"{self.seed} {number}")
        (kind,) = chance.choices(self._kinds, self._weights)
        samples = self._samples[kind]
        sample = chance.choice(samples)
        return sample, mutated(sample, samples, chance)

    def read(self, number: int) -> None:
        """Read one mutation.

        Raises:
            Exception: a reader raised an error that is no LogError.
        """
        sample, data = self.mutation(number)
        try:
            self._readers[sample.kind](data)
        except LogError as error:
            self.outcomes[f"{sample.kind}: {type(error).__name__}"] += 1
        else:
            self.outcomes[f"{sample.kind}: read"] += 1


def fuzz(seed: int, numbers: range, report: Callable[[int, Counter[str]], None]) -> list[str]:
    """Read these mutations. Returns a text for each failure, with the command that repeats it.

    report: called now and then with the number of mutations that were read, and the count of each outcome.
    """
    failures = []
    with tempfile.TemporaryDirectory(prefix="lakelog-fuzz-") as folder:
        fuzzing = Fuzzing(seed, Path(folder))
        fuzzing.read_corpus()
        with _limited_memory(ROOM_BYTES):
            for done, number in enumerate(numbers, 1):
                if done % _STEP == 1:
                    faulthandler.dump_traceback_later(_PATIENCE_SECONDS, exit=True)
                try:
                    fuzzing.read(number)
                except Exception:  # noqa: BLE001 - a defect, of whatever kind
                    sample, _ = fuzzing.mutation(number)
                    what = f"--seed {seed} --only {number}: {sample.kind}, {sample.name}"
                    failures.append(f"{what}\n{traceback.format_exc()}")
                if done % _STEP == 0:
                    report(done, fuzzing.outcomes)
            faulthandler.cancel_dump_traceback_later()
        report(len(numbers), fuzzing.outcomes)
    return failures


class _limited_memory:  # noqa: N801 - used like a function
    """While it is entered, the process gets no more address space than it has and so many bytes."""

    def __init__(self, more: int) -> None:
        self._more = more

    def __enter__(self) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        self._before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + self._more, self._before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_AS, self._before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--only", type=int, help="the number of a single mutation")
    arguments = parser.parse_args()
    numbers = range(arguments.mutations) if arguments.only is None else range(arguments.only, arguments.only + 1)
    print(f"{len(numbers):,} mutations, --seed {arguments.seed}", flush=True)
    started = shown = time.monotonic()

    def report(done: int, outcomes: Counter[str]) -> None:
        nonlocal shown
        if time.monotonic() - shown > 10 or done == len(numbers):
            shown = time.monotonic()
            refused = sum(count for outcome, count in outcomes.items() if not outcome.endswith(": read"))
            print(f"{done:>10,} read in {shown - started:,.0f} s, {refused:,} of them refused", flush=True)

    failures = fuzz(arguments.seed, numbers, report)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024:,} MiB")
    for failure in failures[:20]:
        print(f"\n{failure}", file=sys.stderr)
    if failures:
        sys.exit(f"{len(failures):,} mutations gave something else than a result or a LogError")


if __name__ == "__main__":
    main()
