"""The start and the end of any job: settings, report, errors, signals and exit status."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.ingest.ingest_topic import make_topic, plan_topic
from pipeline.job import JobContext, JobReport, run_job
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig, TopicConfig
from storage_engine.errors import FencedError
from storage_engine.topic.broker_settings import SETTINGS_KEY, put_broker_settings, read_broker_settings
from storage_engine.topic.topics import Topics
from tests.stores import root_at, storage_at

PROJECT = Path(__file__).resolve().parents[2]
REPORT = JobReport(
    {"records": 12345, "dead letters": 1201, "reasons": {"no_key": 1200, "too_large": 1}, "faults": {}, "table": "t"},
    rows=[{"topic": "a", "bytes": 123456, "why": {"full": 1000}}, {"topic": "b", "bytes": None, "why": {}}],
    closing=["bye"],
)


def run(main, *options: str, root: str = "/nowhere", makes_topics: bool = False) -> int:
    argv = ["--root", root, *options]
    return run_job("job", "what it does", main, argv=argv, environ={}, makes_topics=makes_topics)


def test_a_job_prints_a_table_and_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda _: REPORT) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["topic", "bytes", "why"]
    assert [line.split() for line in lines[1:3]] == [["a", "123,456", "1,000", "full"], ["b", "-", "-"]]
    assert lines[3].startswith("job: records 12,345, dead letters 1,201 (1,200 no_key, 1 too_large), table t (")
    assert lines[4] == "bye"


def test_json_is_one_line_with_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda _: REPORT, "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    assert (report["job"], report["exit_status"], report["records"]) == ("job", 0, 12345)
    assert (report["dead letters"], report["reasons"]) == (1201, {"no_key": 1200, "too_large": 1})
    assert report["rows"] == [
        {"topic": "a", "bytes": 123456, "why": {"full": 1000}},
        {"topic": "b", "bytes": None, "why": {}},
    ]


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


WAITS = """
import signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from pipeline.job import JobReport, run_job
from pipeline.spark.termination import TERMINATION

stopped = threading.Event()

def ends():
    stopped.set()
    sys.stdin.readline()

TERMINATION.when_asked(ends)

def waits(_):
    {first}
    {waits}
    return JobReport({{}})

status = run_job("job", "what it does", waits, argv=["--root", "/nowhere"])
print("after the job", file=sys.stderr)
sys.stdin.readline()
sys.exit(status)
"""
READY = "print('ready', flush=True)"
WHILE_IT = {
    "sleeps": f"{READY}; time.sleep(600)",
    # As one that waits for Spark, which is stopped.
    "waits for threads": f"with ThreadPoolExecutor(1) as one: one.submit(stopped.wait); {READY}; time.sleep(600)",
    "meets what follows from the signal": f"{READY}\n    try: time.sleep(600)\n    finally: raise OSError('Spark is gone')",
    "starts Spark": f"with TERMINATION.held_back(): {READY}; stopped.wait(1); print('started')\n    time.sleep(600)",
}


@pytest.mark.parametrize("waits", WHILE_IT.values(), ids=WHILE_IT)
def test_sigterm_is_one_line_and_status_143(waits: str) -> None:
    status, out, err = ended_by(signal.SIGTERM, waits)

    assert (status, err) == (143, "job: ended by SIGTERM; nothing that was committed is lost\n")
    assert out == ("started\n" if "started" in waits else "")


@pytest.mark.parametrize("waits", WHILE_IT.values(), ids=WHILE_IT)
def test_ctrl_c_is_one_line_and_status_130_also_where_pyspark_took_it(waits: str) -> None:
    """PySpark's own way cancels jobs by the connection on which the main thread may wait."""
    pyspark_takes_it = "with TERMINATION.held_back(): signal.signal(signal.SIGINT, lambda *_: print('took'))"

    status, out, err = ended_by(signal.SIGINT, waits, pyspark_takes_it)

    assert (status, err) == (130, "job: interrupted; nothing that was committed is lost\n")
    assert out == ("started\n" if "started" in waits else "")


def ended_by(number: signal.Signals, waits: str, first: str = "pass") -> tuple[int, str, str]:
    with subprocess.Popen(
        [sys.executable, "-c", WAITS.format(first=first, waits=waits)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROJECT,
    ) as job:  # fmt: skip
        assert job.stdin
        assert job.stdout
        assert job.stderr
        if job.stdout.readline() != "ready\n":
            job.kill()  # the job may still wait for a thread
            raise AssertionError(job.stderr.read())
        job.send_signal(number)
        said = job.stderr.readline()
        send_more(job)  # what was begun elsewhere ends after the next line only
        job.stdin.write("end\n")
        job.stdin.flush()
        assert job.stderr.readline() == "after the job\n"
        send_more(job)
        out, err = job.communicate("end\n", timeout=60)
    return job.returncode, out, said + err


def send_more(job: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        job.send_signal(number)


def test_ctrl_c_is_status_130(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: JobContext) -> JobReport:
        raise KeyboardInterrupt

    assert run(interrupted) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.posix("reads the view")
def test_a_changed_topic_is_shown_in_the_view(tmp_path: Path) -> None:
    def create(context: JobContext) -> JobReport:
        context.topics.create("t", 2, {})
        return JobReport({}, changed_topics=["t"])

    assert run(create, root=str(tmp_path)) == 0
    assert sorted(folder.name for folder in (tmp_path / "log").glob("t-*")) == ["t-0", "t-1"]


@pytest.mark.posix("makes a file in the place of the view")
def test_a_view_that_cannot_be_made_is_a_failure_of_done_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def create(context: JobContext) -> JobReport:
        context.topics.create("t", 1, {})
        (tmp_path / "log").write_text("in the way")
        return JobReport({}, changed_topics=["t"])

    assert run(create, root=str(tmp_path)) == 4
    assert "log/ is not up to date" in capsys.readouterr().err


def create(context: JobContext) -> JobReport:
    """Make a topic as an ingest does, with the partitions that the settings give it."""
    make_topic(context.topics, context.settings, plan_topic(context.topics, context.settings, "t"))
    return JobReport({})


def test_what_the_first_job_was_told_of_the_broker_holds_for_all_that_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, root = tmp_path / "first.yaml", tmp_path / "root"
    file.write_text("broker: {log.retention.ms: 5000, num.partitions: 3}\ntopics: {t: {}}\n")
    options = ("--conf", str(file), "--set", "broker.num.partitions=2")
    assert run(create, *options, root=root_at(root), makes_topics=True) == 0
    kept = {"log.retention.ms": "5000", "num.partitions": "3"}
    assert read_broker_settings(storage_at(root)) == kept, "what --set says is for one run"
    assert (
        "job: warning: --set broker.num.partitions: num.partitions=2 is used in this run only"
        in capsys.readouterr().err
    )
    seen: list[tuple[BrokerConfig, int, TopicConfig]] = []

    def look(context: JobContext) -> JobReport:
        topics, partitions = context.topics, context.settings.topics["u"].partitions
        seen.append((topics.broker, partitions, topics.config(topics.state("t"))))
        return JobReport({})

    told_nothing_else = tmp_path / "second.yaml"
    told_nothing_else.write_text("topics: {u: {}}\n")
    capsys.readouterr()
    assert run(look, "--conf", str(told_nothing_else), root=root_at(root)) == 0
    expected = BrokerConfig.from_mapping(kept)
    assert seen == [(expected, 3, expected.topic_defaults)]
    assert capsys.readouterr().err == ""
    assert len(Topics(storage_at(root), BrokerConfig(), SystemClock()).state("t").partitions) == 2

    assert run(look, "--conf", str(told_nothing_else), "--set", "broker.log.retention.hours=1", root=root_at(root)) == 0
    assert seen[1][0] == BrokerConfig.from_mapping({"log.retention.hours": 1, "num.partitions": 3})
    assert capsys.readouterr().err == (
        "job: warning: --set broker.log.retention.hours: log.retention.hours=1 is used in this run only. The root has"
        " log.retention.ms=5000; `lakelog broker alter --config log.retention.hours=1` stores this value in the root\n"
    )
    assert read_broker_settings(storage_at(root)) == kept


def test_an_ingest_into_an_older_root_lets_it_keep_the_section_and_other_jobs_do_not(tmp_path: Path) -> None:
    file, storage = tmp_path / "conf.yaml", storage_at(tmp_path / "root")
    file.write_text("broker: {log.retention.ms: 5000}\ntopics: {t: {}}\n")
    Topics(storage, BrokerConfig(), SystemClock()).create("t", 1, {})
    assert run(create, "--conf", str(file), root=storage.uri) == 0
    assert read_broker_settings(storage) is None
    assert run(create, "--conf", str(file), root=storage.uri, makes_topics=True) == 0
    assert read_broker_settings(storage) == {"log.retention.ms": "5000"}


def test_two_first_jobs_that_are_told_different_things_do_not_both_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, storage = tmp_path / "conf.yaml", storage_at(tmp_path / "root")
    file.write_text("broker: {log.retention.ms: 5000}\ntopics: {t: {}}\n")

    def late(context: JobContext) -> JobReport:
        put_broker_settings(storage, {"log.retention.ms": "7000"})
        return create(context)

    assert run(late, "--conf", str(file), root=storage.uri, makes_topics=True) == 1
    assert "another run stored different settings of the broker at the same time" in capsys.readouterr().err
    assert list(Topics(storage, BrokerConfig(), SystemClock()).names()) == []


def test_a_damaged_document_of_the_broker_ends_every_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = storage_at(tmp_path)
    put_broker_settings(storage, {"log.retention.ms": "5000"})
    storage.replace(SETTINGS_KEY, storage.read(SETTINGS_KEY).replace(b"5000", b"5001"))
    assert run(lambda _: REPORT, root=storage.uri) == 1
    assert capsys.readouterr().err.startswith(f"job: {SETTINGS_KEY} at position 0: expected bytes with digest")
