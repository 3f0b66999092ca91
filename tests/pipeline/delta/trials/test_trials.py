"""A share of the trials of tables (`python -m tests.pipeline.delta.trials.races` and the modules beside it), without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.delta.trials.many_exports import ManyExports
from tests.pipeline.delta.trials.races import Races


@pytest.mark.posix("starts processes with roots of their own")
def test_races_of_exports_and_upkeep_export_each_record_once(tmp_path: Path) -> None:
    races = Races(tmp_path, 5, only_small=True)
    (*_, figures) = races.run(8)
    assert (figures.races, figures.violations) == (8, [])


@pytest.mark.posix("counts the files of the table")
def test_maintenance_keeps_the_number_of_files_of_a_table_small(tmp_path: Path) -> None:
    trial = ManyExports(tmp_path, "append", seed=3)
    for number in range(1, 37):
        trial.export()
        if number % 18 == 0:
            trial.maintain()
            assert trial.figures()[0] <= 16
    assert trial.orders.problems() == []
