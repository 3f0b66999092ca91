"""Runs a share of the random damages; the seed determines which. `python -m tests.faults.damages` runs thousands."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from storage_engine.topic.chain import documents
from tests.faults.damages.trials import Damages, failures

DAMAGES = 12


def test_random_damages_change_no_outcome_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_UNDO_SECONDS", 0.3)
    seed = secrets.randbelow(10**6) * 1000
    print(f"seed {seed}")
    damages = Damages(tmp_path)
    trials = [damages.trial(seed + number) for number in range(DAMAGES)]
    assert list(failures(trials)) == []
