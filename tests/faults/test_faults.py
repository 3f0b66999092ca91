"""Runs every operation with some faults at its calls and some power cuts after its calls. `make soak` tries all faults
and power cuts.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.faults.figures import fault_figures, power_cut_figures, prepared
from tests.faults.operations import OPERATIONS
from tests.faults.power_cuts import PowerCuts, try_cut
from tests.faults.trials import LEVELS
from tests.faults.world import ViolatedError

SHARE = 0.005
SEED = int(os.environ.get("SEED", "1"))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_nothing_is_lost_doubled_or_torn_whatever_fails(operation: str) -> None:
    with prepared(operation) as stage:
        for level in LEVELS:
            figures = fault_figures(stage, level, SHARE, SEED)
            print(figures)
            assert not figures.violations, f"seed {SEED}"
        figures = power_cut_figures(stage, SHARE / 2, SEED)
        print(figures)
        assert not figures.violations, f"seed {SEED}"


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        # What is synced in a folder goes with it, where nobody has synced the folder's own name.
        ("topic: create, alter, delete", "mkdir meta/t$"),
        # A marker on one topic follows from the decision, which is to be there still when the other's turn comes.
        ("transaction", "link .*ended.json$"),
        # Versions go because the history tells of them.
        ("prune", "link meta/t/history/"),
    ],
)
def test_who_goes_on_after_a_kill_builds_on_nothing_that_a_power_cut_takes(operation: str, call: str) -> None:
    with prepared(operation) as stage:
        cuts = list(PowerCuts(stage, share=1, seed=SEED).killed_behind(call))
        for cut in cuts:
            try_cut(stage, cut)
        assert len(cuts) > 10


@pytest.mark.parametrize(
    ("operation", "forgotten"),
    [
        ("publish", r"^meta/t/\.tmp-"),
        ("publish", r"^meta/t$"),
        ("publish", r"\.log$"),
        ("publish", r"^data/[^/]+/[0-9]$"),
        ("append", r"^data/[^/]+$"),
        ("take-over", r"^meta/t$"),
        ("several topics", r"\.batches$"),
        ("several topics", r"^staging/batches/q$"),
        ("transaction", r"^meta/@transactions$"),
        ("compaction", r"\.log$"),
        ("merge", r"^data/[^/]+/[0-9]$"),
        ("prune", r"^meta/t/history$"),
        ("topic: create, alter, delete", r"^meta$"),
    ],
)
def test_a_sync_that_is_left_out_is_noticed(operation: str, forgotten: str) -> None:
    with prepared(operation) as stage:
        cuts = list(PowerCuts(stage, share=1, seed=SEED, forgotten=forgotten).straight())
        random.Random(SEED).shuffle(cuts)
        for cut in cuts:
            try:
                try_cut(stage, cut)
            except ViolatedError:
                return
    pytest.fail("no power cut told that this is not synced")
