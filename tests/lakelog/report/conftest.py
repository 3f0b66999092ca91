"""Makes an empty root for each test of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lakelog.report.roots import Root


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")
