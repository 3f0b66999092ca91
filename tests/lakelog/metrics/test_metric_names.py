"""Tests that docs/MONITORING.md lists every metric of the endpoint and of jobs, with its labels, and lists no other
metric.
"""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

HOME = Path(__file__).resolve().parents[3]
EXPOSITION = Path(__file__).with_name("exposition.prom")
OF_A_JOB = HOME / "tests/pipeline/job_exposition.prom"
_ROW = re.compile(r"^\| `((?:lakelog|kafka)_\w+)` \|([^|]*)\|", re.MULTILINE)
ONLY_WITH_TABLES = {
    "lakelog_dead_letters": {"topic", "origin", "reason", "outcome"},
    "lakelog_stale_rows": {"topic", "table"},
}


def given_metrics() -> dict[str, set[str]]:
    """The labels of every metric that the endpoint or a job gives, by the metric's name."""
    texts = [file.read_text(encoding="utf-8") for file in (EXPOSITION, OF_A_JOB)]
    families = [family for text in texts for family in text_string_to_metric_families(text)]
    return {sample.name: set(sample.labels) for family in families for sample in family.samples} | ONLY_WITH_TABLES


def test_the_page_lists_every_metric_with_its_labels() -> None:
    page = (HOME / "docs/MONITORING.md").read_text(encoding="utf-8")
    listed = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in _ROW.findall(page)}
    assert listed == given_metrics()
