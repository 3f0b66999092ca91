"""Runs the ingest job in separate processes that are killed, restarted, fenced and stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.demo_data import write_flight_events
from storage_engine.errors import ExitStatus
from storage_engine.quantities import shown_moment
from storage_engine.topic.readers.reader import PartitionReader
from tests.java_options import JAVA_OPTIONS
from tests.kafka_broker import KafkaBroker
from tests.pipeline.ingest.ingest_runs import topics_of
from tests.stores import root_at

pytestmark = pytest.mark.spark

PROJECT = Path(__file__).resolve().parents[3]
PATIENCE = 180


class Job:
    """`./spark-submit.sh ingest` on some root, with what it says on standard error in a file."""

    def __init__(self, folder: Path, conf: Path, *arguments: str) -> None:
        self._said = folder / f"{time.monotonic_ns()}.stderr"
        root = root_at(folder / "root")
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [PROJECT / "spark-submit.sh", "ingest", "--conf", conf, "--root", root, "--json", *arguments],
                stdout=subprocess.PIPE, stderr=said, text=True, cwd=folder, start_new_session=True,
                env=os.environ | JAVA_OPTIONS,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self._said.read_text()

    def wait_for(self, text: str) -> None:
        """Until it has said this; fails where it ends without."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.said:
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.said}"
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def kill(self) -> None:
        """kill -9 to the job and everything that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def result(self) -> tuple[int, dict[str, Any]]:
        """Exit status and the JSON line, when it has ended."""
        out, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, json.loads(out.splitlines()[-1]) if out.strip() else {}


@pytest.fixture
def running() -> Iterator[list[Job]]:
    """Jobs that a test started; none outlives it."""
    jobs: list[Job] = []
    yield jobs
    for job in jobs:
        if job.process.poll() is None:
            job.kill()


def records(root: Path, topic: str) -> Iterator[dict[str, Any]]:
    topics = topics_of(root)
    for partition in range(len(topics.state(topic).partitions)):
        reader = PartitionReader(topics.storage, topics.chain(topic), partition)
        next_offset = 0
        for batch in reader.read(0):
            offsets = batch["offset"].to_pylist()
            assert offsets == list(range(next_offset, next_offset + len(offsets)))
            next_offset += len(offsets)
            yield from batch.select(["key", "value"]).to_pylist()


@pytest.mark.soak
def test_flights_arrive_exactly_once_however_often_the_ingest_is_killed(tmp_path: Path, running: list[Job]) -> None:
    source = tmp_path / "source"
    write_flight_events(source)
    conf = PROJECT / "conf" / "flights.yaml"
    random.seed(seed := random.randrange(2**32))
    print(f"seed {seed}", file=sys.stderr)
    for month in ("batch 1:", "batch 6:"):
        job = Job(tmp_path, conf, "--set", f"ingest.source.path={source}")
        running.append(job)
        job.wait_for(month)
        time.sleep(random.uniform(0, 1.0))  # somewhere in the month after it
        job.kill()

    last = Job(tmp_path, conf, "--set", f"ingest.source.path={source}")
    running.append(last)
    status, result = last.result()

    assert status == ExitStatus.DONE, last.said
    assert result["epoch"] == 3
    expected: Counter[tuple[str, str]] = Counter()
    for file in sorted(source.iterdir()):
        for line in file.read_text().splitlines():
            flight = json.loads(line)
            if flight["tailnum"] is not None:
                expected[flight["tailnum"], _identity(flight)] += 1
    found = Counter(
        (row["key"].decode(), _identity(json.loads(row["value"]))) for row in records(tmp_path / "root", "flights")
    )
    assert found.total() == 334_264
    assert found == expected


def _identity(flight: dict[str, Any]) -> str:
    """What tells one flight from another, whichever way its JSON was written."""
    return "/".join(str(flight.get(part)) for part in ("month", "day", "hour", "minute", "carrier", "flight", "origin"))


RATE = """
topics: {{events: {{partitions: 2}}}}
ingest:
  topic: events
  source: {{format: rate, options: {{rowsPerSecond: 50}}}}
  key: string(value % 7)
  value: string(value)
  timestamp: timestamp
  trigger: 1 second
  {more}
"""


def test_another_query_that_asks_takes_over_and_the_first_ends(tmp_path: Path, running: list[Job]) -> None:
    """That another query has to ask: tests/pipeline/ingest/test_ingesting.py. That the same query takes over without
    asking: tests/faults/processes/test_stopped_drivers.py."""
    conf = tmp_path / "rate.yaml"
    conf.write_text("root: unused" + RATE.format(more=""))
    other_conf = tmp_path / "other.yaml"
    other_conf.write_text("root: unused" + RATE.format(more="checkpoint: checkpoints/ingest/other"))

    first = Job(tmp_path, conf)
    running.append(first)
    first.wait_for("batch 1:")
    second = Job(tmp_path, other_conf, "--take-over")
    running.append(second)
    status, result = first.result()
    assert status == ExitStatus.FENCED
    writer = topics_of(tmp_path / "root").state("events").writer
    where = f"query {writer.query} on {writer.host} (process {writer.pid}, since {shown_moment(writer.since_ms)})"
    assert f"{where} took over with epoch 2" in result["error"]

    second.wait_for("batch 2:")
    second.process.send_signal(signal.SIGTERM)
    status, result = second.result()
    assert status == ExitStatus.DONE, second.said
    assert result["epoch"] == 2
    assert result["records"] > 0
    assert len(list(records(tmp_path / "root", "events"))) >= result["records"]


SEVERAL = """
root: unused
topics: {{a: {{partitions: 2}}, b: {{partitions: 1}}, c: {{partitions: 3}}}}
ingest:
  topics: a, b, c
  topic.column: t
  checkpoint: checkpoints/ingest/several
  source: {{format: json, path: {source}, schema: "n INT, t STRING", options: {{maxFilesPerTrigger: 1}}}}
  key: string(n)
  value: string(n)
"""


@pytest.mark.parametrize("kills", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_several_topics_have_every_row_once_after_kills_and_after_ctrl_c(
    tmp_path: Path, running: list[Job], kills: int
) -> None:
    """That every topic has every row once wherever a driver dies: tests/pipeline/ingest/test_several_topics.py."""
    source = tmp_path / "source"
    source.mkdir()
    for file in range(30):
        rows = [{"n": n, "t": "abc"[n % 3]} for n in range(200 * file, 200 * file + 200)]
        (source / f"{file:02d}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    conf = tmp_path / "several.yaml"
    conf.write_text(SEVERAL.format(source=source))
    random.seed(seed := random.randrange(2**32))
    print(f"seed {seed}", file=sys.stderr)

    for _ in range(kills):
        killed = Job(tmp_path, conf)
        running.append(killed)
        killed.wait_for("batch 3:")
        time.sleep(random.uniform(0, 0.5))  # somewhere in the micro-batch after it
        killed.kill()
    stopped = Job(tmp_path, conf)
    running.append(stopped)
    stopped.wait_for("batch 6:")
    os.killpg(stopped.process.pid, signal.SIGINT)  # as a terminal sends it: to Spark's JVM and workers, too

    status, result = stopped.result()
    assert status == ExitStatus.DONE, stopped.said
    assert result["batches"] < 20, "it went on to the end of the source"
    assert "Exception" not in stopped.said
    topics = topics_of(tmp_path / "root")
    for name in "abc" if topics.storage.view is not None else "":
        for partition, part in enumerate(topics.state(name).partitions):
            shown = (tmp_path / "root/log" / f"{name}-{partition}").glob("*.log")
            assert sum(file.stat().st_size for file in shown) == sum(segment.size for segment in part.segments)
    last = Job(tmp_path, conf)
    running.append(last)
    status, result = last.result()
    assert status == ExitStatus.DONE, last.said
    assert {row["topic"]: row["epoch"] for row in result["rows"]} == dict.fromkeys("abc", kills + 2)
    for remainder, name in enumerate("abc"):
        found = sorted(int(record["value"]) for record in records(tmp_path / "root", name))
        assert found == list(range(remainder, 6000, 3))


CONTINUED = """
topics: {{{topic}: {{partitions: 1}}}}
ingest:
  topic: {topic}
  source: {source}
  key: key
  value: value
  trigger: 1 second
"""


@pytest.mark.soak
@pytest.mark.kafka
def test_streams_from_kafka_and_from_a_topic_end_after_the_micro_batch_when_asked_to(
    tmp_path: Path, running: list[Job], kafka_broker: KafkaBroker
) -> None:
    kafka_broker.create_topic("asked")
    kafka_broker.send("asked", b"first")
    topics_of(tmp_path / "root").create("asked", 1, {})  # `second` looks for it as it starts
    options = (
        f"{{kafka.bootstrap.servers: '{kafka_broker.bootstrap_servers}', subscribe: asked, startingOffsets: earliest}}"
    )
    from_kafka, from_topic = tmp_path / "kafka.yaml", tmp_path / "topic.yaml"
    kafka, topic = f"{{format: kafka, options: {options}}}", "{format: lakelog, options: {subscribe: asked}}"
    from_kafka.write_text("root: unused" + CONTINUED.format(topic="asked", source=kafka))
    from_topic.write_text("root: unused" + CONTINUED.format(topic="copy", source=topic))

    first = Job(tmp_path, from_kafka)
    running.append(first)
    first.wait_for("batch 0:")
    second = Job(tmp_path, from_topic)
    running.append(second)
    second.wait_for("batch 0:")
    kafka_broker.send("asked", b"second")
    first.wait_for("batch 1:")
    second.wait_for("batch 1:")
    first.process.send_signal(signal.SIGTERM)
    second.process.send_signal(signal.SIGINT)

    for job in (first, second):
        status, result = job.result()
        assert (status, result["records"]) == (ExitStatus.DONE, 2), job.said
    assert [record["value"] for record in records(tmp_path / "root", "copy")] == [b"first", b"second"]
