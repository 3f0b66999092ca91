"""The version of the table that an export reports: the newest one, also if the export has written comments after the
rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

import lakelog
from jobs.export import export
from pipeline.export.export_request import add_export_options
from pipeline.job import run_job


@pytest.mark.posix("names a local table")
def test_an_export_reports_the_version_with_the_comments(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    topic = lakelog.open(tmp_path / "root", create=True).create_topic("t")
    schemas = [
        "id BIGINT COMMENT 'the number'", "id BIGINT COMMENT 'the number'", "id BIGINT COMMENT 'another'", "id BIGINT",
    ]  # fmt: skip
    versions = []
    for number, schema in enumerate(schemas):
        if number != 2:  # the third export has nothing to read
            topic.append([{"value": b'{"id": %d}' % number}])
        argv = [
            "--root",
            str(tmp_path / "root"),
            "--json",
            "--set",
            "export.topic=t",
            "--set",
            f"topics.t.schema={schema}",
        ]
        assert run_job("export", "", export, add_export_options, argv, {}) == 0
        versions.append(json.loads(capfd.readouterr().out)["table version"])
        assert versions[-1] == DeltaTable(tmp_path / "root/tables/t").version()
    assert versions == sorted(set(versions))
