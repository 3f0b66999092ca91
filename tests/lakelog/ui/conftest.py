"""Fixtures for the tests of the pages of `lakelog ui`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lakelog.ui.browsing import PagesRoot


@pytest.fixture
def root(tmp_path: Path) -> PagesRoot:
    return PagesRoot(tmp_path / "lakelog")
