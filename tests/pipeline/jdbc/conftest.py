"""Provides a table of each database, and a topic in memory that is exported into it."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from pipeline.settings.jdbc_settings import DatabaseKind
from tests.pipeline.jdbc.shop import Shop
from tests.servers.sql.databases import Databases


@pytest.fixture(params=DatabaseKind, ids=str)
def shop(request: pytest.FixtureRequest, databases: Databases) -> Shop:
    """An export of orders into a table of its own."""
    target = replace(databases.administrator(request.param), table=f"orders_{uuid4().hex[:12]}")
    return Shop(target)
