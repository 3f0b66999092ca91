"""The standard error of jobs: if a job ends with status 0, it prints only its own lines. Otherwise the job also prints
the failure.

The test of the demo checks the same for a larger ingest, a larger maintenance and a larger export.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from storage_engine.errors import ExitStatus
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.broker_settings import read_broker_settings
from tests.java_options import JAVA_OPTIONS
from tests.jobs.noise import noise, printed
from tests.pipeline.ingest.ingest_runs import records_of, topics_of
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import root_at, storage_at

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE = 300

SLOWLY = ("--", "--conf", "spark.python.daemon.module=tests.jobs.slow_daemon")
KILLED = (
    "Spark: its JVM was ended by SIGKILL. Nothing that was committed is lost: start the job again. If memory is scarce, the"
    " kernel ends processes in this way."
)

CONF = """
root: {root}
broker: {{log.retention.hours: 24}}
topics: {{orders: {{partitions: 2}}}}
ingest:
  topic: orders
  source: {{format: {form}, path: {source}, schema: id STRING}}
  key: id
  value: to_json(struct(*))
export: {{topic: orders, table: tables/orders}}
"""
ONE_EXPORT = "export: {topic: orders, table: tables/orders}"
TWO_EXPORTS = """
exports:
  one: {topic: orders, table: tables/one, spark.records: 0}
  two: {topic: orders, table: tables/two, spark.records: 0}
"""


def run(job: str, conf: Path, *options: str) -> subprocess.CompletedProcess[str]:
    with started(job, conf, *options) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def started(job: str, conf: Path, *options: str) -> subprocess.Popen[str]:
    """A job and its processes, which are a group of their own."""
    return subprocess.Popen(
        [PROJECT / "spark-submit.sh", job, "--conf", conf, *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROJECT, env=os.environ | JAVA_OPTIONS,
        start_new_session=True,
    )  # fmt: skip


def written(folder: Path, form: str) -> Path:
    """The settings of a topic that is fed from a folder beside them, which is made."""
    source = folder / "source"
    source.mkdir()
    conf = folder / "orders.yaml"
    conf.write_text(CONF.format(root=root_at(folder / "root"), form=form, source=source))
    return conf


def test_an_ingest_that_ends_before_python_has_started_prints_no_error(tmp_path: Path) -> None:
    conf = written(tmp_path, "json")

    ended = run("ingest", conf, "--", "--conf", "spark.python.daemon.module=tests.jobs.slow_daemon")

    assert ended.returncode == ExitStatus.DONE, ended.stderr
    assert noise(ended.stderr) == []
    assert "batches 0, records 0" in ended.stdout
    assert read_broker_settings(storage_at(tmp_path / "root")) == {"log.retention.hours": "24"}


def test_a_line_that_only_begins_like_a_job_s_is_noise() -> None:
    told = "ingest: orders has 2 partitions\n"
    alarms = [
        "ingest: Traceback (most recent call last):",
        "export: BrokenPipeError: [Errno 32]",
        "demo: WARN Executor: x",
    ]

    assert noise(told + "\n".join(alarms)) == alarms


def test_a_task_that_fails_is_printed_with_what_failed_in_it(tmp_path: Path) -> None:
    conf = written(tmp_path, "parquet")
    (tmp_path / "source" / "no.parquet").write_bytes(b"this is no Parquet at all")

    ended = run("ingest", conf)

    assert ended.returncode == ExitStatus.ERROR
    assert "ERROR Executor: Exception in task" in ended.stderr
    assert "is not a Parquet file" in ended.stderr
    assert any(line.startswith("ingest: ") for line in ended.stderr.splitlines())


def test_sigterm_to_all_processes_of_an_export_in_the_middle_of_a_task_is_one_line(tmp_path: Path) -> None:
    conf = written(tmp_path, "json")
    append_orders(tmp_path / "root")

    with started("export", conf, "--set", "export.spark.records=0", *SLOWLY) as job:
        await_process_of(job, "-m tests.jobs.slow_daemon")
        os.killpg(job.pid, signal.SIGTERM)
        out, err = job.communicate(timeout=PATIENCE)

    assert job.returncode == 128 + signal.SIGTERM, err
    assert printed(err)[-1] == "export: ended by SIGTERM; nothing that was committed is lost"
    assert [line for line in printed(err) if not line.startswith("export")] == []
    assert out == ""


def test_an_export_by_spark_leaves_no_process_no_socket_and_no_message(tmp_path: Path) -> None:
    conf = written(tmp_path, "json")
    append_orders(tmp_path / "root")

    with tempfile.TemporaryDirectory() as sockets:  # the name of a socket has at most 107 bytes
        options = ("--conf", f"spark.python.unix.domain.socket.dir={sockets}")
        with started("export", conf, "--set", "export.spark.records=0", "--", *options) as job:
            out, err = job.communicate(timeout=PATIENCE)
        left = list(Path(sockets).iterdir())

    assert (job.returncode, noise(err), left) == (0, [], [])
    deadline = time.monotonic() + PATIENCE
    while still_there := processes_of(job):  # Spark does not wait for its Python daemon
        assert time.monotonic() < deadline, still_there
        time.sleep(0.1)
    assert "rows appended 10" in out


def test_the_end_of_the_jvm_is_one_line_and_the_next_run_exports(tmp_path: Path) -> None:
    conf = written(tmp_path, "json")
    conf.write_text(conf.read_text().replace(ONE_EXPORT, TWO_EXPORTS))
    append_orders(tmp_path / "root")

    with started("export", conf, "--json", *SLOWLY) as job:
        await_process_of(job, "-m tests.jobs.slow_daemon")
        kill_jvm(job)
        out, err = job.communicate(timeout=PATIENCE)

    assert (job.returncode, noise(err), printed(err)[-1]) == (ExitStatus.ERROR, [], f"export: {KILLED}")
    assert json.loads(out) == {"job": "export", "exit_status": 1, "error": KILLED}
    assert "rows written 20" in run("export", conf).stdout


def test_the_end_of_the_jvm_of_an_ingest_is_one_line_also_after_tasks_have_ended(tmp_path: Path) -> None:
    conf = written(tmp_path, "json")
    (tmp_path / "source" / "one.json").write_text('{"id": "a"}\n')

    with started("ingest", conf, "--set", "ingest.trigger=1 second") as job:
        await_that(job, "nothing was ingested", lambda: topic_exists(tmp_path / "root") and values(tmp_path / "root"))
        kill_jvm(job)
        out, err = job.communicate(timeout=PATIENCE)

    assert (job.returncode, noise(err), printed(err)[-1], out) == (ExitStatus.ERROR, [], f"ingest: {KILLED}", "")
    assert run("ingest", conf).returncode == ExitStatus.DONE
    assert values(tmp_path / "root") == [b'{"id":"a"}']


def topic_exists(root: Path) -> bool:
    return topics_of(root).find("orders") is not None


def values(root: Path) -> list[bytes]:
    return [record["value"] for record in records_of(root, "orders")]


def kill_jvm(job: subprocess.Popen[str]) -> None:
    subprocess.run(["pkill", "-KILL", "-s", str(job.pid), "java"], check=True)


def append_orders(root: Path) -> None:
    topics = topics_of(root)
    state = topics.create("orders", 2, {})
    rows = [Row(b"k%d" % number, b"v") for number in range(10)]
    append_records(topics.storage, topics.chain("orders"), topics.config(state), topics.clock, to_table(rows), None)


def processes_of(job: subprocess.Popen[str]) -> list[str]:
    """The commands of the running processes of the job's session."""
    listing = ["ps", "-s", str(job.pid), "-o", "args="]
    found = subprocess.run(listing, capture_output=True, text=True, check=False).stdout.splitlines()
    return [each for each in found if not each.endswith("<defunct>")]


def await_process_of(job: subprocess.Popen[str], argument: str) -> None:
    """Wait until one of the processes of the job's session was started with this argument."""
    await_that(
        job, f"no process was started with {argument}", lambda: any(argument in each for each in processes_of(job))
    )


def await_that(job: subprocess.Popen[str], otherwise: str, happens: Callable[[], object]) -> None:
    """Wait until something happens while the job runs."""
    deadline = time.monotonic() + PATIENCE
    while not happens():
        assert job.poll() is None, "the job has ended"
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)
