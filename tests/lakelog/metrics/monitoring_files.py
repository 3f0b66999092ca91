"""Reads the alerts and the dashboard that docs/monitoring has for operators."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

MONITORING = Path(__file__).resolve().parents[3] / "docs/monitoring"
ALERTS = MONITORING / "alerts.yaml"
DASHBOARD = MONITORING / "dashboard.json"
_METRIC = re.compile(r"\b(?:lakelog|kafka)_\w+")


def alerts() -> dict[str, dict[str, Any]]:
    """The alerts, by name."""
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def dashboard() -> dict[str, Any]:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return board


def dashboard_expressions() -> Iterator[str]:
    """What the panels and the variables of the dashboard ask Prometheus for."""
    board = dashboard()
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def metrics_in(expression: str) -> set[str]:
    """The names of the metrics in an expression."""
    return set(_METRIC.findall(expression))
