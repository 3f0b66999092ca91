"""The progress of jobs as lines of JSON, which a monitoring program can read while a job runs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import lakelog
from jobs.export import export
from lakelog.terminal.progress_display import NoDisplay
from lakelog.terminal.progress_file import ProgressFile
from pipeline.export.export_request import add_export_options
from pipeline.job import run_job


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_work_has_a_line_at_its_start_while_it_changes_and_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    display = ProgressFile(NoDisplay(), path, "maintenance")
    with display.work("compact orders") as meter:
        meter.expect(records=10, size=1000)
        meter.advance(records=4, size=400)
        deadline = time.monotonic() + 60
        while lines(path)[-1:] == [] or lines(path)[-1]["records"] < 4:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        meter.note("partition 3")
        meter.advance(records=6, size=600)
    with pytest.raises(ValueError, match="broken"), display.work("compact others"):
        raise ValueError("broken")
    found = lines(path)
    assert [each.pop("job") for each in found] == ["maintenance"] * len(found)
    assert all(each.pop("time")[10] == "T" for each in found)
    for each in found:
        del each["records_per_second"], each["bytes_per_second"], each["seconds_left"]
    done = {"records": 10, "expected_records": 10, "bytes": 1000, "expected_bytes": 1000, "note": "partition 3"}
    nothing = {"records": 0, "expected_records": None, "bytes": 0, "expected_bytes": None, "note": ""}
    assert {"state": "running", "work": "compact orders", **done, "records": 4, "bytes": 400, "note": ""} in found
    assert found[-3:] == [
        {"state": "done", "work": "compact orders", **done},
        {"state": "running", "work": "compact others", **nothing},
        {"state": "failed", "work": "compact others", **nothing},
    ]


def run(root: Path, file: Path | str, *arguments: str) -> int:
    schema = "topics.orders.schema=id STRING NOT NULL"
    argv = [
        "--root",
        str(root),
        "--set",
        "export.topic=orders",
        "--set",
        schema,
        "--progress-json",
        str(file),
        *arguments,
    ]
    return run_job("export", "", export, add_export_options, argv, {})


def test_a_job_appends_its_progress_and_works_although_the_file_is_full(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root, file = tmp_path / "root", tmp_path / "progress.jsonl"
    topic = lakelog.open(root, create=True).create_topic("orders", partitions=1)
    topic.append([{"key": None, "value": b'{"id": "secret"}'}] * 3)
    file.write_text('{"of": "an earlier run"}\n')
    assert run(root, file) == 0
    first, *_, last = lines(file)
    assert first == {"of": "an earlier run"}
    assert (last["job"], last["work"], last["state"], last["records"]) == ("export", "export orders", "done", 3)
    assert "secret" not in file.read_text()
    topic.append([{"key": None, "value": b'{"id": "more"}'}])
    assert run(root, "/dev/full") == 0
    assert capfd.readouterr().err == ""
    topic.append([{"key": None, "value": b"no JSON"}])
    assert run(root, file) == 1
    assert lines(file)[-1]["state"] == "failed"


def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    lakelog.open(root, create=True).create_topic("orders", partitions=1)
    assert run(root, tmp_path / "missing" / "file") == 2
    expected = f"export: --progress-json {tmp_path}/missing/file: cannot be written: No such file or directory."
    assert capfd.readouterr().err == f"{expected} Choose another file.\n"
