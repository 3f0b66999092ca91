"""How a job begins and ends, whatever it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.job import JobContext, JobReport, run_job
from storage_engine.errors import FencedError

REPORT = JobReport(
    {"records": 12345, "table": "tables/t"},
    rows=[{"topic": "a", "bytes": 123456}, {"topic": "b", "bytes": None}],
    closing=["bye"],
)


def run(main, *options: str, root: str = "/nowhere") -> int:
    return run_job("job", "what it does", main, argv=["--root", root, *options], environ={})


def test_a_job_prints_a_table_and_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda _: REPORT) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["topic", "bytes"]
    assert [line.split() for line in lines[1:3]] == [["a", "123,456"], ["b", "-"]]
    assert lines[3].startswith("job: records 12,345, table tables/t (")
    assert lines[4] == "bye"


def test_json_is_one_line_with_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda _: REPORT, "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    assert (report["job"], report["exit_status"], report["records"]) == ("job", 0, 12345)
    assert report["rows"] == [{"topic": "a", "bytes": 123456}, {"topic": "b", "bytes": None}]


def test_failures_of_parts_make_status_4(capsys: pytest.CaptureFixture[str]) -> None:
    report = JobReport({}, failures=["topic t, partition 1: broken"], warnings=["odd"])
    assert run(lambda _: report) == 4
    assert capsys.readouterr().err.splitlines() == ["job: warning: odd", "job: failed: topic t, partition 1: broken"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_error_is_one_line_and_its_own_status(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: JobContext) -> JobReport:
        raise FencedError("topic t", "another took over")

    assert run(fail, *options) == 3
    printed = capsys.readouterr()
    assert printed.err == "job: topic t: another took over.\n"
    if options:
        assert json.loads(printed.out) == {"job": "job", "exit_status": 3, "error": "topic t: another took over."}


def test_wrong_words_on_the_command_line_are_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda _: REPORT, "--jsn") == 2
    assert run(lambda _: REPORT, "--set", "retention.topic=t") == 2
    assert run(lambda _: REPORT, "--help") == 0
    assert "what it does" in capsys.readouterr().out


def test_ctrl_c_is_status_130(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: JobContext) -> JobReport:
        raise KeyboardInterrupt

    assert run(interrupted) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_changed_topic_is_shown_in_the_view(tmp_path: Path) -> None:
    def create(context: JobContext) -> JobReport:
        context.topics.create("t", 2, {})
        return JobReport({}, changed_topics=["t"])

    assert run(create, root=str(tmp_path)) == 0
    assert sorted(folder.name for folder in (tmp_path / "log").glob("t-*")) == ["t-0", "t-1"]


def test_a_view_that_cannot_be_made_is_a_failure_of_done_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def create(context: JobContext) -> JobReport:
        context.topics.create("t", 1, {})
        (tmp_path / "log").write_text("in the way")
        return JobReport({}, changed_topics=["t"])

    assert run(create, root=str(tmp_path)) == 4
    assert "log/ does not show everything" in capsys.readouterr().err
