"""Ingest and export with models in a team's own folder, and with models given as columns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs.export import export
from pipeline.export.export_request import add_export_options
from pipeline.job import run_job
from tests.pipeline.ingest.ingest_runs import run_ingest
from tests.roots.delta_tables import rows_of_table
from tests.stores import is_untouched, root_at, storage_at

EVENTS = """
from datetime import datetime
from pydantic import BaseModel

class Repository(BaseModel):
    name: str

class GithubEvent(BaseModel):
    id: str
    at: datetime
    repository: Repository
    stars: int | None = None
"""
COLUMNS = "id STRING NOT NULL, at TIMESTAMP NOT NULL, repository STRUCT<name: STRING NOT NULL> NOT NULL, stars BIGINT"
CONF = """
topics: {events: {partitions: 1, schema: SCHEMA}}
schemas: {path: FOLDER}
ingest:
  topic: events
  source: {format: json, path: SOURCE}
  validate: true
  key: id
  value: to_json(struct(*))
export: {topic: events, mode: append}
"""
ROWS: list[dict[str, Any]] = [
    {"id": "a", "at": "2026-01-02T03:04:05Z", "repository": {"name": "kafka"}, "stars": 3},
    {"id": "b", "at": "2026-01-02T03:04:06Z", "repository": {"name": "spark"}},
    {"id": "c", "at": "2026-01-02T03:04:07Z", "repository": {"name": None}},
]


@pytest.mark.spark
@pytest.mark.parametrize("schema", ["github_of_one.events:GithubEvent", COLUMNS], ids=["class", "columns"])
def test_ingest_and_export_use_a_schema_of_ones_own(
    spark: SparkSession, tmp_path: Path, schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models" / "github_of_one").mkdir(parents=True)
    (tmp_path / "models" / "github_of_one" / "events.py").write_text(EVENTS)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.json").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    conf, root = tmp_path / "conf.yaml", tmp_path / "root"
    conf.write_text(
        CONF.replace("SCHEMA", f'"{schema}"')
        .replace("FOLDER", str(tmp_path / "models"))
        .replace("SOURCE", str(tmp_path / "source"))
    )

    result = run_ingest(spark, conf, root)
    assert (result.records, dict(result.dead_letters)) == (2, {"invalid": 1}), "the repository of c has no name"
    assert run_job("export", "", export, add_export_options, ["--conf", str(conf), "--root", root_at(root)], {}) == 0
    assert all(line.startswith("export events: ") for line in capsys.readouterr().err.splitlines()), "progress only"
    rows = rows_of_table(storage_at(root), "tables/events")
    assert sorted(({name: row[name] for name in ("id", "at", "repository", "stars")} for row in rows), key=str) == [
        {"id": "a", "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "repository": {"name": "kafka"}, "stars": 3},
        {"id": "b", "at": datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC), "repository": {"name": "spark"}, "stars": None},
    ]


@pytest.mark.parametrize("setting", ["topics.events.schema", "ingest.source.schema"])
def test_a_wrong_name_ends_the_job_before_spark_starts(tmp_path: Path, setting: str) -> None:
    conf = tmp_path / "conf.yaml"
    conf.write_text(CONF.replace("SCHEMA", "flight").replace("FOLDER", "models").replace("SOURCE", str(tmp_path)))
    root = tmp_path / "root"
    wanted = ["--conf", str(conf), "--root", root_at(root), "--set", f"{setting}=shop_of_none.events:Order"]
    environment = os.environ | {"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}  # no Java: Spark could not start
    found = subprocess.run(
        [sys.executable, "-m", "jobs.ingest", *wanted], env=environment, capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (1, "")
    line, *others = found.stderr.splitlines()
    assert others == []
    assert line.startswith(f"ingest: --set {setting}")
    assert "there is no module shop_of_none: it is not installed, and not in " in line
    assert str(Path("models").resolve()) in line
    assert is_untouched(storage_at(root))
