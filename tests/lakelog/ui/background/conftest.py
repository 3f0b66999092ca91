"""Fixtures for the tests of what the server does in the background."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lakelog.ui.background.gates import Gate, closed_gate


@pytest.fixture
def gate() -> Iterator[Gate]:
    with closed_gate() as gate:
        yield gate
