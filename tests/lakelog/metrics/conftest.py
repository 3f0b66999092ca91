"""Fixtures of the tests of monitoring."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lakelog.metrics.roots import WatchedRoot


@pytest.fixture
def root(tmp_path: Path) -> WatchedRoot:
    return WatchedRoot(tmp_path / "lakelog")
