"""`--log-format json`: the lines that a log collector gets from jobs, from the progress of jobs, and from the log
manager.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import lakelog
from jobs.export import export
from lakelog.terminal.log_lines import LogFormat, LogLines
from lakelog.terminal.progress_display import PlainDisplay, display_on_stderr
from pipeline.export.export_request import add_export_options
from pipeline.job import JobContext, JobReport, run_job
from storage_engine.clock import ManualClock
from storage_engine.errors import FencedError

PROJECT = Path(__file__).resolve().parents[2]
JSON = ("--log-format", "json")
HOSTILE = "topic \x1b[2J\u202e\nt"
EXPORTS = """
root: {root}
exports:
  daily: {{topic: missing, trigger: 1 day}}
"""


def parsed(text: str) -> list[dict[str, Any]]:
    """The lines without their times, which are those of today."""
    found = [json.loads(line) for line in text.splitlines()]
    for each in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", each.pop("time"))
    return found


def run(main, *options: str, root: str = "/nowhere") -> int:
    return run_job("job", "what it does", main, argv=["--root", root, *options], environ={})


def report(context: JobContext) -> JobReport:
    context.lines.info("step 1")
    context.lines.waiting("waiting for the storage")
    return JobReport({"records": 1}, failures=[f"{HOSTILE}: broken"], warnings=["odd"])


def test_lines_of_a_job_are_objects_and_its_result_stays_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(report, *JSON, "--json") == 4
    printed = capsys.readouterr()
    assert parsed(printed.err) == [
        {"job": "job", "level": "info", "message": "step 1"},
        {"job": "job", "level": "warning", "message": "waiting for the storage"},
        {"job": "job", "level": "warning", "message": "odd"},
        {"job": "job", "level": "error", "message": f"{HOSTILE}: broken"},
    ]
    assert "\x1b" not in printed.err
    assert "\u202e" not in printed.err
    result = json.loads(printed.out)
    assert (result["exit_status"], result["warnings"], result["records"]) == (4, ["odd"], 1)


@pytest.mark.parametrize("options", [(), ("--log-format", "text")])
def test_lines_are_text_unless_json_is_asked_for(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(report, *options) == 4
    assert capsys.readouterr().err == (
        "job: step 1\njob: waiting for the storage\njob: warning: odd\njob: failed: topic \\x1b[2J\\u202e\\x0at: broken\n"
    )


def test_the_error_and_the_signal_that_end_a_job_are_objects(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: JobContext) -> JobReport:
        raise FencedError("topic t", "another took over")

    def interrupted(_: JobContext) -> JobReport:
        raise KeyboardInterrupt

    assert run(fail, *JSON) == 3
    assert run(interrupted, *JSON) == 130
    assert parsed(capsys.readouterr().err) == [
        {"job": "job", "level": "error", "message": "topic t: another took over."},
        {"job": "job", "level": "info", "message": "interrupted; nothing that was committed is lost"},
    ]


def test_a_difference_from_the_settings_of_the_root_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lakelog.open(tmp_path, create=True).create_topic("t", partitions=1)
    assert run(lambda _: JobReport({}), *JSON, "--set", "broker.log.retention.hours=1", root=str(tmp_path)) == 0
    (line,) = parsed(capsys.readouterr().err)
    assert (line["level"], line["message"][:40]) == ("warning", "--set broker.log.retention.hours: log.re")


def test_a_wrong_form_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(report, "--log-format", "xml") == 2
    assert "argument --log-format: invalid choice: 'xml' (choose from" in capsys.readouterr().err


def test_lines_of_an_export_have_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    lakelog.open(root, create=True)
    (tmp_path / "exports.yaml").write_text(EXPORTS.format(root=root))
    argv = ["--conf", str(tmp_path / "exports.yaml"), *JSON]
    assert run_job("export", "exports", export, add_export_options, argv, environ={}) == 1
    problem = (
        f"topic missing: not found under {root}. `lakelog topics list` shows the topics, and `lakelog topics create`"
        " creates a topic."
    )
    first, last = parsed(capsys.readouterr().err)
    assert first == {
        "job": "export", "name": "daily", "level": "error", "message": f"{problem}; next attempt in 1 d",
    }  # fmt: skip
    assert last == {"job": "export", "level": "error", "message": problem}


def test_progress_is_objects_even_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    stream, clock = Terminal(), ManualClock(1_000_000)
    lines = LogLines("maintenance", LogFormat.JSON)
    with PlainDisplay(stream, clock, lines.progress).work("compact orders") as meter:
        clock.advance(10_000)
        meter.advance(1000, 10_000)
    assert parsed(stream.getvalue()) == [
        {
            "job": "maintenance",
            "level": "info",
            "message": "compact orders: 1,000 records, 10.0 kB, 100 records/s, 1.0 kB/s",
        }
    ]
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(display_on_stderr(lines), PlainDisplay)
    assert not isinstance(display_on_stderr(LogLines("maintenance")), PlainDisplay)


_PRINTS = """
import sys
from lakelog.cli.output import write_error
from pipeline.job import JobReport, run_job
def main(context):
    sys.stdin.read()
    for number in range(3):
        context.lines.info(f"line {number}")
        write_error("a line of a command")
    return JobReport({"lines": 3})
sys.exit(run_job("retention", "", main))
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_job_continues_if_nobody_reads_its_standard_error(tmp_path: Path, form: str) -> None:
    command = [sys.executable, "-c", _PRINTS, "--root", str(tmp_path), "--log-format", form]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=PROJECT, text=True, **pipes) as job:  # type: ignore[call-overload]
        job.stderr.close()
        out, _ = job.communicate()
    assert (job.returncode, out.partition(" (")[0]) == (0, "retention: lines 3")
