"""Tries a small number of random damages, which a seed determines. `python -m tests.faults.damages` tries thousands of
damages.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_engine.topic.chain import documents
from tests.faults.damages.trials import Damages, failures
from tests.faults.trials import work_folder

DAMAGES = 6


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: a trial makes and removes eleven copies of a root with 178 directories."""
    folder = work_folder()
    yield folder
    shutil.rmtree(folder)


def test_random_damages_change_no_outcome_in_silence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_UNDO_SECONDS", 0.3)
    seed = secrets.randbelow(10**6) * 1000
    print(f"seed {seed}")
    damages = Damages(folder)
    trials = [damages.trial(seed + number) for number in range(DAMAGES)]
    assert list(failures(trials)) == []
