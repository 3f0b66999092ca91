"""The metrics of a job in a file for node_exporter: what Prometheus reads while the job runs, and after its end."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark import SparkContext
from pyspark.sql import SparkSession

import lakelog
from jobs.ingest import add_ingest_options, ingest
from lakelog.terminal.progress_display import NoDisplay
from pipeline.job import JobContext, JobReport, run_job
from pipeline.job_metrics import job_metrics
from pipeline.job_metrics.job_metrics import JobMetrics, MetricsTargets
from pipeline.job_metrics.outputs import SparkMetrics, Textfile
from storage_engine.clock import ManualClock, SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import ExitStatus, FencedError, StorageAccessError
from storage_engine.topic.ingest_reports import read_report
from storage_engine.topic.topics import Topics
from tests.stores import root_at, storage_at

EXPOSITION = Path(__file__).with_name("job_exposition.prom")
PROJECT = Path(__file__).resolve().parents[2]


def samples(path: Path) -> dict[str, float]:
    """The values without labels of works, by the metric's name."""
    families = text_string_to_metric_families(path.read_text())
    return {each.name: each.value for family in families for each in family.samples if "work" not in each.labels}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_file_has_the_run_its_amounts_and_the_figures_of_an_ingest(tmp_path: Path) -> None:
    clock, path = ManualClock(1_000_000), tmp_path / "ingest.prom"
    metrics = JobMetrics(NoDisplay(), MetricsTargets(path), "ingest", "flights", clock)
    for records in (3, 4):  # amounts of work with the same name are added
        with metrics.work("ingest flights") as meter:
            meter.expect(records=10, size=1000)
            meter.advance(records=records, size=100 * records)
            meter.figure("batches", 1)
            meter.figure("batch_seconds", 0.5 * records)
            meter.figure("phase_seconds", {"stage": 0.25, "fsync": 0.5})
            meter.figure("spark_seconds", {"addBatch": 0.5})
            meter.figure("input_rows", records + 1)
            meter.figure("input_rows_per_second", 2.5)
            meter.figure("processed_rows_per_second", 40.0 * records)
            meter.figure("source_lag_records", 10 - records)
            meter.figure("dead_letters", {"no_key": records, 'it\'s "too" large\n': 1})
    with metrics.work("settle log/"):
        pass
    clock.advance(2_500)
    metrics.end(ExitStatus.DONE)
    assert path.read_text() == EXPOSITION.read_text()


def test_the_file_is_current_while_work_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_metrics, "_WRITE_SECONDS", 0.1)
    path = tmp_path / "job.prom"
    labels = '{conf="",name="compaction",work="compact orders"}'

    def main(context: JobContext) -> JobReport:
        assert samples(path)["lakelog_job_running"] == 1
        with context.display.work("compact orders") as meter:
            meter.advance(records=4)
            wait_until(lambda: f"lakelog_job_records_total{labels} 4.0" in path.read_text())
            assert "lakelog_job_exit_status" not in samples(path)
        return JobReport({})

    argv = ["--root", str(tmp_path), "--metrics-textfile", str(path)]
    assert run_job("compaction", "", main, argv=argv, environ={}) == 0
    found = samples(path)
    assert (found["lakelog_job_running"], found["lakelog_job_exit_status"]) == (0, 0)


def test_scrapes_get_the_metrics_of_their_moment_until_the_job_ends(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    addresses = []

    def main(context: JobContext) -> JobReport:
        (address,) = re.findall(
            r"^export: metrics at (http://127\.0\.0\.1:\d+/metrics)$", capfd.readouterr().err, re.MULTILINE
        )
        addresses.append(address)
        with context.display.work("export orders") as meter:
            for records in (3, 7):
                meter.advance(records=records - meter.records)
                with urlopen(address) as answer:
                    text = answer.read().decode()
                labels = '{conf="",name="export",work="export orders"}'
                assert f"lakelog_job_records_total{labels} {records}.0\n" in text
        return JobReport({})

    argv = ["--root", str(tmp_path), "--metrics-listen", "127.0.0.1:0"]
    assert run_job("export", "", main, argv=argv, environ={}) == 0
    with pytest.raises(URLError):
        urlopen(addresses[0])


def test_an_address_that_is_none_or_is_taken_is_refused_before_the_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for given, status, told in (
            ("9309", 2, "--metrics-listen: expected HOST:PORT; found '9309'. For example 127.0.0.1:9309."),
            (
                f"127.0.0.1:{port}", 1,
                f"--metrics-listen 127.0.0.1:{port}: cannot be opened: Address already in use. Choose another address.",
            ),
        ):  # fmt: skip
            argv = ["--root", str(tmp_path), "--metrics-listen", given]
            assert run_job("export", "", lambda _: pytest.fail("the work began"), argv=argv, environ={}) == status
            assert capfd.readouterr().err == f"export: {told}\n"


def test_a_job_whose_address_is_taken_leaves_the_file_of_the_run_before(tmp_path: Path) -> None:
    file = tmp_path / "export.prom"
    argv = ["--root", str(tmp_path), "--metrics-textfile", str(file)]
    assert run_job("export", "", lambda _: JobReport({}), argv=argv, environ={}) == 0
    before = file.read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        argv += ["--metrics-listen", f"127.0.0.1:{taken.getsockname()[1]}"]
        assert run_job("export", "", lambda _: pytest.fail("the work began"), argv=argv, environ={}) == 1
    assert file.read_bytes() == before
    assert samples(file)["lakelog_job_running"] == 0


def test_an_address_is_closed_if_the_file_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Textfile) -> None:
        raise StorageAccessError(str(tmp_path), "No space left on device", "Free space.")

    monkeypatch.setattr(Textfile, "write", refused)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    targets = MetricsTargets(textfile=tmp_path / "export.prom", listen=("127.0.0.1", port))
    with pytest.raises(StorageAccessError):
        JobMetrics(NoDisplay(), targets, "export", "")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_context_that_another_thread_stops_ends_no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopping:
        """A context that is stopped after the first look at it."""

        looks = 0
        applicationId = "app"  # noqa: N815 - the name in PySpark

        @property
        def _jsc(self) -> object:
            self.looks += 1
            return SimpleNamespace(sc=lambda: SimpleNamespace(applicationId=lambda: "app")) if self.looks == 1 else None

    monkeypatch.setattr(SparkContext, "_active_spark_context", Stopping())
    SparkMetrics(list).write()


def test_a_run_keeps_the_status_and_the_last_success_of_the_runs_before(tmp_path: Path) -> None:
    path = tmp_path / "job.prom"
    argv = ["--root", str(tmp_path), "--metrics-textfile", str(path)]

    def fails(_: JobContext) -> JobReport:
        raise FencedError("topic t", "was taken over")

    def breaks(_: JobContext) -> JobReport:
        raise ZeroDivisionError

    def looks_alone(context: JobContext) -> JobReport:
        assert "lakelog_job_exit_status" not in samples(path)
        return fails(context)

    assert run_job("ingest", "", fails, argv=argv, environ={}) == 3
    assert "lakelog_job_success_timestamp_seconds" not in samples(path)
    assert run_job("ingest", "", lambda _: JobReport({}), argv=argv, environ={}) == 0
    success = samples(path)["lakelog_job_success_timestamp_seconds"]
    assert run_job("ingest", "", lambda _: JobReport({}, failures=["a part"]), argv=argv, environ={}) == 4
    assert samples(path)["lakelog_job_exit_status"] == 4

    def looks(_: JobContext) -> JobReport:
        found = samples(path)
        assert (found["lakelog_job_running"], found["lakelog_job_exit_status"]) == (1, 4)
        return JobReport({}, failures=["a part"])

    assert run_job("ingest", "", looks, argv=argv, environ={}) == 4
    with pytest.raises(ZeroDivisionError):
        run_job("ingest", "", breaks, argv=argv, environ={})
    assert run_job("ingest", "", fails, argv=[*argv, "--set", "no.such=1"], environ={}) == 2
    found = samples(path)
    assert (found["lakelog_job_exit_status"], found["lakelog_job_success_timestamp_seconds"]) == (2, success)
    # Another job does not inherit them.
    assert run_job("export", "", looks_alone, argv=argv, environ={}) == 3
    assert "lakelog_job_success_timestamp_seconds" not in samples(path)


def test_a_settings_file_may_have_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    conf = tmp_path / "ord-\udce4.yaml"
    conf.write_text("topics: {orders: {partitions: 1}}\n")
    argv = ["--root", str(tmp_path), "--conf", str(conf), "--metrics-textfile", str(tmp_path / "job.prom")]
    assert run_job("ingest", "", lambda _: JobReport({}), argv=argv, environ={}) == 0
    assert 'lakelog_job_exit_status{conf="ord-?",name="ingest"} 0.0' in (tmp_path / "job.prom").read_text()


def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["--root", str(tmp_path), "--metrics-textfile", str(tmp_path / "missing/file.prom")]
    assert run_job("ingest", "", lambda _: pytest.fail("the work began"), argv=argv, environ={}) == 1
    expected = f"ingest: --metrics-textfile {tmp_path}/missing/file.prom: found no directory {tmp_path}/missing."
    assert capfd.readouterr().err == f"{expected} Create the directory, or choose another file.\n"
    argv = ["--root", str(tmp_path), "--metrics-textfile", f"{tmp_path}/file.prom", "--progress-json", "/missing/file"]
    assert run_job("ingest", "", lambda _: pytest.fail("the work began"), argv=argv, environ={}) == 2
    assert not (tmp_path / "file.prom").exists()


_WAITS = """
import sys, time
from pipeline.job import JobReport, run_job
def main(context):
    print("ready", flush=True)
    time.sleep(600)
sys.exit(run_job("ingest", "", main))
"""


def test_sigterm_writes_the_end_and_sigkill_cannot(tmp_path: Path) -> None:
    for number, status, running in ((signal.SIGTERM, 143, 0), (signal.SIGKILL, -9, 1)):
        path = tmp_path / f"{number}.prom"
        command = [sys.executable, "-c", _WAITS, "--root", str(tmp_path), "--metrics-textfile", str(path)]
        with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as job:
            assert job.stdout is not None
            assert job.stdout.readline() == b"ready\n"
            job.send_signal(number)
            assert job.wait(60) == status
        found = samples(path)
        assert found["lakelog_job_running"] == running
        assert found.get("lakelog_job_exit_status") == (None if running else 143)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["15.prom", "9.prom"]


_COPY = """
topics: {copy: {partitions: 1, cleanup.policy: compact}}
ingest:
  topic: copy
  source: {format: lakelog, options: {subscribe: events, maxOffsetsPerTrigger: 3}}
  key: key
  value: value
"""


@pytest.mark.spark
def test_an_ingest_reports_its_micro_batches(spark: SparkSession, tmp_path: Path) -> None:
    root, conf, path = root_at(tmp_path / "root"), tmp_path / "copy.yaml", tmp_path / "copy.prom"
    conf.write_text(_COPY)
    events = lakelog.open(root, create=True).create_topic("events", partitions=1)
    events.append([{"key": b"k", "value": b"v"}, {"key": None, "value": b"v"}] * 2)
    argv = [
        "--conf",
        str(conf),
        "--root",
        root,
        "--metrics-textfile",
        str(path),
        "--progress-json",
        f"{path}.jsonl",
        "--metrics-spark",
    ]
    assert run_job("ingest", "", ingest, add_ingest_options, argv, {}, makes_topics=True) == 0
    families = text_string_to_metric_families(path.read_text())
    found = [each for family in families for each in family.samples if each.labels.get("work") == "ingest copy"]
    phases = {each.labels["phase"]: each.value for each in found if each.name == "lakelog_job_phase_seconds_total"}
    spark_phases = {each.labels["phase"]: each.value for each in found if each.name == "lakelog_job_spark_seconds"}
    letters = {each.labels["reason"]: each.value for each in found if each.name == "lakelog_job_dead_letters_total"}
    values = {each.name: each.value for each in found if "phase" not in each.labels and "reason" not in each.labels}
    assert letters == {"no_key": 2}
    assert values.pop("lakelog_job_bytes_total") > 0
    assert values.pop("lakelog_job_batch_seconds") > 0
    assert values.pop("lakelog_job_input_rows_per_second") >= 0
    assert values.pop("lakelog_job_processed_rows_per_second") > 0
    assert values == {
        "lakelog_job_records_total": 2, "lakelog_job_expected_records": 2, "lakelog_job_batches_total": 2,
        "lakelog_job_input_rows_total": 4, "lakelog_job_source_lag_records": 0,
    }  # fmt: skip
    assert {"stage", "publish", "commit"} <= phases.keys()
    assert {"addBatch", "triggerExecution"} <= spark_phases.keys()
    lines = [json.loads(line) for line in Path(f"{path}.jsonl").read_text().splitlines()]
    (end,) = [each for each in lines if (each["work"], each["state"]) == ("ingest copy", "done")]
    assert (end["batches"], end["dead_letters"], end["phase_seconds"]) == (2, letters, phases)
    gauges = spark_gauges(spark)
    assert gauges["lakelog_job_records_total.ingest_copy"] == 2
    assert gauges["lakelog_job_phase_seconds_total.ingest_copy.stage"] == phases["stage"]
    assert gauges["lakelog_job_exit_status"] == 0
    storage = storage_at(tmp_path / "root")
    report = read_report(storage, Topics(storage, BrokerConfig(), SystemClock()).state("copy").writer.query).report
    assert report is not None
    assert (report.is_running, report.batch_id, report.lag_records) == (False, 1, 0)


def spark_gauges(spark: SparkSession) -> dict[str, float]:
    """The values that Spark's metrics system has from users, by name."""
    context: Any = spark.sparkContext
    sources = context._jsc.sc().env().metricsSystem().getSourcesByName("AccumulatorSource")
    found: dict[str, float] = {}
    for number in range(sources.size()):
        gauges = sources.apply(number).metricRegistry().getGauges()
        found |= {str(name): float(gauges.get(name).getValue()) for name in gauges.keySet()}
    return found
