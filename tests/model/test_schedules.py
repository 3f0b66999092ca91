"""Runs the protocol with processes that die, pause and race at every storage call, and compares it with a naive model.

Each schedule is made from a number. A schedule has

- one or two streaming queries, whose drivers die, or are assumed dead and come back;
- single appends;
- maintenance with its parts in any order: retention, compaction, merging, deletion, pruning, sweep;
- readers of whole states, of one partition, and by time.

A quarter of the schedules tests only the chain of versions. The storage is a file system, or an object store that
cannot append. Calls fail, and replies are lost. Processes die in the middle of their work, or pause until versions are
pruned. While a driver pauses, a second driver of the same query can begin. Only the newest two versions are kept, so
even a short pause outlasts a pruning.

truth.py has a function for each invariant. The tested code is the project's own: topic_writer.py, state_chain.py,
state_swap.py, pruning.py, sweeping.py and reader.py run unchanged, except for a few replaced names (schedules.run).

`make soak` runs fifty times as many schedules, and can switch off each rule of the protocol in turn. The model does
not include power cuts, damaged bytes, the view, import and export, several topics, and transactions. But the model
checks that everything that a version names is durable.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest

from tests.model.rules import RULES
from tests.model.schedules import run
from tests.model.soak import run_all

SCHEDULES = 400
OFTEN_NOTICED = [
    "a put whose reply was lost is read back",
    "a version is durable before it is built upon",
    "bytes are durable before they are named",
    "no file name is used twice",
    "only the active segment is continued",
    "readers stop at the committed size",
    "a commit compares the high watermark",
    "commits of an older epoch are refused",
    "a batch is committed once",
]


@pytest.fixture(autouse=True)
def one_processor() -> Iterator[None]:
    """Keep the schedules on one processor, where the system allows that.

    Only one thread of a schedule runs at a time. On several processors, each switch wakes another processor, whose thread
    then waits for the GIL.
    """
    if not hasattr(os, "sched_setaffinity"):  # macOS
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


def test_no_schedule_breaks_a_promise() -> None:
    totals: Counter[str] = Counter()
    for some, violations in run_all(1, range(SCHEDULES)):
        assert not violations, violations[0]
        totals += some
    assert totals["schedules"] == SCHEDULES
    rare = {name for name, count in totals.items() if count < SCHEDULES // 10}
    assert not rare, f"the schedules hardly have any {rare}: {totals}"


@pytest.mark.parametrize("rule", OFTEN_NOTICED)
def test_the_model_notices_a_rule_that_is_switched_off(rule: str) -> None:
    assert any(violations for _, violations in islice(run_all(1, range(400), rule), 20))


def test_every_rule_is_known() -> None:
    assert set(OFTEN_NOTICED) <= RULES.keys()


def test_a_seed_is_a_schedule_in_any_process() -> None:
    again = "from tests.model.schedules import run; print([run(f'7 {number}').digest for number in range(10)])"
    here = [run(f"7 {number}").digest for number in range(10)]
    other_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environ = {**os.environ, "PYTHONHASHSEED": other_seed}
    there = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True, check=True, env=environ)
    assert there.stdout.strip() == str(here)
