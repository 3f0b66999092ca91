"""Runs each job many times as a process, also while other processes keep the machine busy. Reports unexpected lines on
standard error.

    .venv/bin/python -m tests.jobs.quiet_runs --runs 20 --burners 4

A chain is a new root and jobs that run on it one after another. The chains contain

- a first ingest, an ingest without new rows, and ingests from each source that needs no server;
- exports that append and upsert, with and without new records;
- maintenance with and without work that is due;
- the demo, and jobs on a root without records.

The exit status and the summary of each job are checked, too. So an export fails the check if it should find new records
but finds none.

If a job ends with status 0, each line that does not come from the job itself is a finding. The chain `failures` checks
the opposite: a job must print the failure of a task, and must print its one line after SIGTERM.

The program prints a table of the steps and each finding. Its exit status is 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import ExitStatus
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.topics import Topics
from tests.jobs.noise import noise
from tests.sample_orders import write_files
from tests.storage_engine.record_tables import Row, to_table

PROJECT = Path(__file__).resolve().parents[2]
ORDERS = 500
PATIENCE = 1800
SCHEMA = '"id STRING, customer STRING, amount DOUBLE, at TIMESTAMP"'

SETTINGS = """
root: {root}
topics:
  orders: {{partitions: 2, segment.bytes: 20000}}
  by-customer: {{partitions: 2, cleanup.policy: compact, segment.bytes: 20000, min.cleanable.dirty.ratio: 0.01}}
  ticks: {{partitions: 1}}
"""
FROM_FILES = """
ingest:
  topic: orders
  checkpoint: checkpoints/ingest/{form}
  source: {{format: {form}, path: {source}/{form}{schema}}}
  key: customer
  value: to_json(struct(*))
export: {{topic: orders, table: tables/orders}}
"""
FROM_TOPIC = """
ingest:
  topic: by-customer
  source: {format: lakelog, options: {subscribe: orders, startingOffsets: earliest}}
  key: key
  value: value
export: {topic: by-customer, table: tables/by_customer, spark.records: 0}
"""
FROM_RATE = """
ingest:
  topic: ticks
  source: {format: rate, options: {rowsPerSecond: 10}}
  value: cast(value as string)
  trigger: 1 second
"""


def write_settings(folder: Path) -> None:
    """A settings file for each source in the chain's folder."""
    common, source = SETTINGS.format(root=folder / "root"), folder / "source"
    schemas = {
        "json": f", schema: {SCHEMA}",
        "csv": f", schema: {SCHEMA}, options: {{header: true}}",
        "parquet": f", schema: {SCHEMA}",
        "delta": "",
    }
    for form, schema in schemas.items():
        text = FROM_FILES.format(form=form, source=source, schema=schema)
        (folder / f"{form}.yaml").write_text(common + text)
    (folder / "topic.yaml").write_text(common + FROM_TOPIC)
    (folder / "rate.yaml").write_text(common + FROM_RATE)


# What is done before a job.


def nothing(folder: Path) -> None: ...


def no_orders(folder: Path) -> None:
    (folder / "source" / "json").mkdir(parents=True)


def first_orders(folder: Path) -> None:
    write_files(folder / "source", 0, ORDERS)


def more_orders(folder: Path) -> None:
    write_files(folder / "source", ORDERS, ORDERS)


def no_parquet(folder: Path) -> None:
    first_orders(folder)
    (folder / "source" / "parquet" / "no.parquet").write_bytes(b"this is no Parquet at all")


def large_topic(folder: Path) -> None:
    """Make a topic that is large enough for a compaction by Spark: 300 MB with three records of each key."""
    topics = Topics(PosixStorage(folder / "root"), BrokerConfig(), SystemClock())
    configs = {"cleanup.policy": "compact", "segment.bytes": "20000000", "min.cleanable.dirty.ratio": "0.01"}
    config = topics.config(topics.create("large", 4, configs))
    for _ in range(3):
        rows = [Row(b"k%d" % number, os.urandom(100_000)) for number in range(1000)]
        append_records(topics.storage, topics.chain("large"), config, topics.clock, to_table(rows), None)


# The chains.


@dataclass(frozen=True)
class Step:
    """A job that is run.

    settings: which of the chain's settings files it is given; the demo has its own.
    before: what is done before it, in the chain's folder.
    done: figures that its summary has to have.
    some: figures of its summary that have to be above 0.
    status: its exit status.
    says: what standard error has to contain.
    asked_at: a text. SIGTERM is sent to all processes of the job as soon as standard error or the arguments of a
    process contain this text.
    """

    name: str
    job: str
    settings: str | None = None
    before: Callable[[Path], None] = nothing
    done: Mapping[str, object] = field(default_factory=dict)
    some: Sequence[str] = ()
    options: Sequence[str] = ()
    status: int = ExitStatus.DONE
    says: Sequence[str] = ()
    asked_at: str | None = None


ALL_OF_IT = {"records": ORDERS, "dead letters": 0}
NOTHING = {"records": 0, "batches": 0}
NEW_QUERY = ["--accept-new-checkpoint"]
SLOW_DAEMON = ["--set", "export.spark.records=0", "--", "--conf", "spark.python.daemon.module=tests.jobs.slow_daemon"]

CHAINS: dict[str, Sequence[Step]] = {
    "orders": [
        Step("first ingest of a root", "ingest", "json", first_orders, ALL_OF_IT),
        Step("ingest, nothing new", "ingest", "json", done=NOTHING),
        Step("first export, append", "export", "json", done={"rows appended": ORDERS}),
        Step("export, append, nothing new", "export", "json", done={"rows appended": 0}),
        Step("first ingest from a topic", "ingest", "topic", done=ALL_OF_IT),
        Step("first export, upsert", "export", "topic", done={"records": ORDERS, "rows upserted": 7}),
        Step("ingest, something new", "ingest", "json", more_orders, ALL_OF_IT),
        Step("export, append, something new", "export", "json", done={"rows appended": ORDERS}),
        Step("ingest from a topic, something new", "ingest", "topic", done=ALL_OF_IT),
        Step("export, upsert, something new", "export", "topic", done={"records": ORDERS, "rows upserted": 7}),
        Step("export, upsert, nothing new", "export", "topic", done={"records": 0, "rows upserted": 0}),
        Step("maintenance, something due", "maintenance", "topic", some=["partitions compacted", "records removed"]),
        Step("maintenance, nothing due", "maintenance", "topic", done={"partitions compacted": 0, "records removed": 0}),
    ],
    "files": [
        Step("ingest from CSV", "ingest", "csv", first_orders, ALL_OF_IT),
        Step("ingest from Parquet", "ingest", "parquet", done=ALL_OF_IT, options=NEW_QUERY),
        Step("ingest from Delta", "ingest", "delta", done=ALL_OF_IT, options=NEW_QUERY),
        Step("ingest from Delta, nothing new", "ingest", "delta", done=NOTHING),
    ],
    "empty": [
        Step("first ingest of a root, no record", "ingest", "json", no_orders, NOTHING),
        Step("export, no record", "export", "json", done={"rows appended": 0}),
        Step("maintenance, no record", "maintenance", "json", done={"partitions compacted": 0}),
        Step("retention, no record", "retention", "json"),
        Step("compaction, no record", "compaction", "json", done={"partitions compacted": 0}),
    ],
    "large": [
        Step("maintenance by Spark", "maintenance", "topic", large_topic, some=["records removed"]),
    ],
    "rate": [
        Step("ingest without end, SIGTERM", "ingest", "rate", asked_at=": batch 1: ", some=["batches"]),
    ],
    "demo": [
        Step("demo", "demo", done={"records in": 334_264, "of these new": 334_264, "table rows": 4_043}),
        Step("demo, nothing new", "demo", done={"of these new": 0, "table rows": 4_043}),
    ],
    "failures": [
        Step(
            "ingest, a task fails", "ingest", "parquet", no_parquet, status=ExitStatus.ERROR,
            says=["ERROR Executor: Exception in task", "is not a Parquet file", "\ningest: "],
        ),
        Step("first ingest of a root", "ingest", "json", done=ALL_OF_IT, options=NEW_QUERY),
        Step(
            "export, SIGTERM in a task", "export", "json", options=SLOW_DAEMON, status=128 + signal.SIGTERM,
            says=["export: ended by SIGTERM; nothing that was committed is lost\n"], asked_at="-m tests.jobs.slow_daemon",
        ),
    ],
}  # fmt: skip


# Running them.


@dataclass(frozen=True)
class Outcome:
    """The result of a step. Without a problem, there are no findings."""

    step: str
    findings: Sequence[str]


def run_chain(name: str, keep: Path) -> list[Outcome]:
    """Run the steps of a chain, up to the first step that does not end as it should."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=keep))
    write_settings(folder)
    outcomes = []
    for step in CHAINS[name]:
        step.before(folder)
        status, out, err = run_step(step, folder)
        wrong, noisy = list(wrongs(step, status, out, err)), noise(err) if step.status != ExitStatus.ERROR else []
        for each in [*wrong, *noisy]:
            print(f"{step.name} ({folder}): {each}", flush=True)
        outcomes.append(Outcome(step.name, [*wrong, *noisy]))
        if wrong:
            break
    if not any(outcome.findings for outcome in outcomes):
        shutil.rmtree(folder)
    return outcomes


def run_step(step: Step, folder: Path) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of the job."""
    where: list[str | Path] = (
        ["--conf", folder / f"{step.settings}.yaml"] if step.settings else ["--root", folder / "root"]
    )
    stderr = folder / f"{step.name}.stderr"
    with (
        stderr.open("wb") as file,
        subprocess.Popen(
            [PROJECT / "spark-submit.sh", step.job, *where, "--json", *step.options],
            stdout=subprocess.PIPE, stderr=file, text=True, cwd=PROJECT, start_new_session=True,
        ) as job,
    ):  # fmt: skip
        if step.asked_at is not None:
            await_sign(job, stderr, step.asked_at)
            os.killpg(job.pid, signal.SIGTERM)
        out, _ = job.communicate(timeout=PATIENCE)
    return job.returncode, out, stderr.read_text()


def await_sign(job: subprocess.Popen[str], stderr: Path, sign: str) -> None:
    deadline = time.monotonic() + PATIENCE
    listing = ["ps", "-s", str(job.pid), "-o", "args="]
    while job.poll() is None and time.monotonic() < deadline:
        processes = subprocess.run(listing, capture_output=True, text=True, check=False).stdout
        if sign in processes or sign in stderr.read_text():
            return
        time.sleep(0.1)


def wrongs(step: Step, status: int, out: str, err: str) -> Iterator[str]:
    """How the job ended otherwise than it should, line by line."""
    if status != step.status:
        yield f"expected status {step.status}, found {status}: {(err.splitlines() or ['no line'])[-1]}"
        return
    for line in step.says:
        if line not in f"\n{err}":
            yield f"standard error does not say {line.strip()!r}"
    summary: dict[str, Any] = json.loads(out) if status == ExitStatus.DONE else {}
    found = {name: summary.get(name) for name in step.done}
    if found != step.done:
        yield f"expected {dict(step.done)}, found {found}"
    for name in step.some:
        if not summary.get(name):
            yield f"expected some {name}, found {summary.get(name)}"


@contextmanager
def burning(processes: int) -> Iterator[None]:
    """So many processes that do nothing but keep a core busy."""
    context = multiprocessing.get_context("spawn")
    burners = [context.Process(target=burn, daemon=True) for _ in range(processes)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()


def burn() -> None:
    while True:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.jobs.quiet_runs", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="of each chain")
    parser.add_argument("--chain", action="append", choices=list(CHAINS), help="may be given several times")
    parser.add_argument("--burners", type=int, default=0, help="processes that keep the machine busy meanwhile")
    parser.add_argument("--at-once", type=int, default=1, help="chains that run at the same time")
    parser.add_argument("--keep", type=Path, help="where what has findings is kept; by default a new folder")
    arguments = parser.parse_args()
    keep = arguments.keep or Path(tempfile.mkdtemp(prefix="quiet-runs-"))
    keep.mkdir(parents=True, exist_ok=True)
    runs: Counter[str] = Counter()
    findings: Counter[str] = Counter()
    started = time.monotonic()
    with burning(arguments.burners), ThreadPoolExecutor(arguments.at_once) as pool:
        names = list(arguments.chain or CHAINS) * arguments.runs
        chains = {pool.submit(run_chain, name, keep): name for name in names}
        for number, done in enumerate(as_completed(chains), 1):
            for outcome in done.result():
                runs[outcome.step] += 1
                findings[outcome.step] += bool(outcome.findings)
            so_far = f"{runs.total()} jobs, {findings.total()} with findings"
            print(f"chain {number} of {len(names)}, {chains[done]}: so far {so_far}", flush=True)
    print(f"\n{'step':<40} {'runs':>6} {'with findings':>14}")
    for step, count in runs.items():
        print(f"{step:<40} {count:>6} {findings[step]:>14}")
    print(f"\n{runs.total()} runs in {time.monotonic() - started:.0f} s, {findings.total()} with findings")
    return 1 if findings.total() else 0


if __name__ == "__main__":
    sys.exit(main())
