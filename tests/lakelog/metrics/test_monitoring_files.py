"""Tests that the alerts and the dashboard name only metrics and labels of the endpoint. Also tests that the alerts have
the same limits as `lakelog check`.
"""

from __future__ import annotations

import re

import pytest

from lakelog.metrics.rules import Limit, Rules
from tests.lakelog.metrics.monitoring_files import alerts, dashboard, dashboard_expressions, metrics_in
from tests.lakelog.metrics.test_metric_names import given_metrics

OF_PROMETHEUS = {"job", "instance"}
_SELECTED = re.compile(r"\b((?:lakelog|kafka)_\w+)\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=|!=|=~|!~)\s*\"")
_GROUPED = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")

ALERTS_OF_RULES = {
    "lag.seconds": ("LakelogConsumerLag", "LakelogConsumerLagLarge"),
    "export.age.seconds": ("LakelogExportOld", "LakelogExportVeryOld"),
    "consumer.status": ("LakelogConsumerSlow", "LakelogConsumerStopped"),
    "maintenance.age.seconds": ("LakelogMaintenanceOverdue", "LakelogMaintenanceMissing"),
    "partition.segments": ("LakelogManySegments", None),
    "waiting.segments": ("LakelogManyWaitingSegments", None),
    "versions": ("LakelogManyVersions", None),
    "writer.silent.seconds": ("LakelogWriterSilent", None),
    "writer.takeovers": ("LakelogWriterTakeOvers", "LakelogWriterFight"),
    "ingest.report.age.seconds": ("LakelogIngestReportOld", None),
    "view.age.seconds": ("LakelogViewBehind", None),
    "clock.skew.seconds": ("LakelogClockSkew", None),
    "disk.free.percent": ("LakelogDiskLow", "LakelogDiskFull"),
}
WITHOUT_RULE = {
    "LakelogDown", "LakelogRootUnreadable", "LakelogTopicUnreadable", "LakelogConsumerDamaged", "LakelogDeadLetters",
    "LakelogStaleRows", "LakelogJobFailed", "LakelogJobKilled", "LakelogIngestBehind", "LakelogIngestReportDamaged",
}  # fmt: skip
"""Alerts that have no limit, or that the check does not make."""
EXPRESSIONS = [*dashboard_expressions(), *(alert["expr"] for alert in alerts().values())]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_only_metrics_and_labels_that_the_endpoint_gives(expression: str) -> None:
    given = given_metrics()
    named = metrics_in(expression)
    assert named <= given.keys()
    assert named or expression.startswith('up{job="lakelog"}')
    for name, labels in _SELECTED.findall(expression):
        wanted = set(_LABEL.findall(labels)) - OF_PROMETHEUS
        assert wanted <= given[name], name
    for labels in _GROUPED.findall(expression):
        wanted = {label.strip() for label in labels.split(",")} - OF_PROMETHEUS
        assert any(wanted <= given[name] for name in named), labels


def test_variables_of_the_dashboard_are_labels_that_the_endpoint_gives() -> None:
    queries = [each["definition"] for each in dashboard()["templating"]["list"] if each["type"] == "query"]
    assert queries == [
        "label_values(lakelog_root_readable, instance)",
        'label_values(lakelog_topic_readable{instance=~"$instance"}, topic)',
    ]


def test_panels_have_their_own_titles_and_places() -> None:
    panels = dashboard()["panels"]
    assert len({panel["title"] for panel in panels}) == len(panels) > 15
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (column, row)
        for panel in panels
        for column in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for row in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(column for column, _ in cells) < 24


def test_alerts_have_the_limits_of_the_check() -> None:
    """Every limit with a default has an alert, and every alert has the default as its number."""
    found = alerts()
    numbers = {}
    for key, (warning, critical) in ALERTS_OF_RULES.items():
        assert found[warning]["labels"] == {"severity": "warning"}, key
        assert critical is None or found[critical]["labels"] == {"severity": "critical"}, key
        numbers[key] = tuple(
            None if name is None else max(map(float, re.findall(r"[<>] (\d+(?:\.\d+)?)", found[name]["expr"])))
            for name in (warning, critical)
            if key != "consumer.status"
        )
    scale = {"disk.free.percent": 100}
    defaults = {
        key: tuple(None if each is None else each / scale.get(key, 1) for each in (limit.warning, limit.critical))
        for key, field in Rules.fields_by_key().items()
        if isinstance(limit := field.default, Limit) and limit != Limit()
    }
    assert {key: each for key, each in numbers.items() if each} == defaults
    listed = {name for pair in ALERTS_OF_RULES.values() for name in pair if name is not None}
    assert found.keys() == listed | WITHOUT_RULE
