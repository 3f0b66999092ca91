"""An ingest while the storage is full or unreachable: the ingest waits, reports the problem, and commits its staged
batch once.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from pipeline.delta.dead_letters import INGEST_DEAD_LETTERS, append_staged_dead_letters
from pipeline.ingest.ingesting import Ingest
from pipeline.ingest.micro_batch import IngestResult
from pipeline.ingest.staging_task import DeadLetterFile
from pipeline.ingest.storage_retry import StorageRetry
from pipeline.settings import load_settings
from pipeline.spark.failures import SparkFailedError, spark_failures
from pipeline.stop_request import StopRequest
from storage_engine.errors import (
    AmbiguousPutError,
    FencedError,
    StorageAccessError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.topic_writer import TopicWriter
from tests.bad_input.test_full_disks import SmallDisk
from tests.pipeline.ingest.ingest_runs import records_of, topics_of
from tests.small_disks import can_mount
from tests.stores import root_at

FULL = StorageFullError("root/data/x", "No space left on device", "Free space.")
TRACEBACK = """Traceback (most recent call last):
  File "/opt/lakelog/pipeline/staging_task.py", line 110, in _stage
storage_engine.errors.{kind}: /mnt/shared/lakelog/staging/x.batches: Input/output error. See whether the disk is well.
"""


def failed_publishing(error: PythonException) -> SparkFailedError:
    """What a publish by Spark raises if a task failed with an error."""
    with pytest.raises(SparkFailedError) as raised, spark_failures("publishing"):
        raise error
    return raised.value


class Work:
    """Fails as often as it has errors, then gives 42. waits: the seconds that were waited for in between."""

    def __init__(self, *errors: BaseException, timeout_ms: int = 120_000, asked_to_stop: bool = False) -> None:
        self.errors = list(errors)
        self.waits: list[float] = []
        self.lines: list[str] = []
        self._asked = asked_to_stop
        self._storage_retry = StorageRetry(timeout_ms, self._wait, self.lines.append)

    def _wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return self._asked

    def _work(self) -> int:
        if self.errors:
            raise self.errors.pop(0)
        return 42

    def attempt(self) -> int:
        return self._storage_retry.attempt("batch 7", self._work)


def test_work_that_succeeds_is_done_once_and_nothing_is_said() -> None:
    work = Work()
    assert work.attempt() == 42
    assert (work.waits, work.lines) == ([], [])


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        StorageUnavailableError("root/data/x", "Input/output error"),
        AmbiguousPutError("meta/t/1.json", "was put"),
        PythonException(TRACEBACK.format(kind="StorageUnavailableError")),
        PythonException(TRACEBACK.format(kind="StorageFullError")),
        failed_publishing(PythonException(TRACEBACK.format(kind="StorageFullError"))),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_may_pass_is_waited_for_with_a_line_each_time(error) -> None:
    work = Work(error, error, error)
    assert work.attempt() == 42
    assert work.waits == [1, 2, 4]
    assert all(line.startswith("batch 7: waiting for the storage, ") for line in work.lines)
    assert work.lines[0].endswith("next attempt in 1.0 s, giving up in 2 min")
    assert work.lines[2].endswith("next attempt in 4.0 s, giving up in 1 min 57 s")
    assert "Input/output" in work.lines[0] or "No space" in work.lines[0] or "was put" in work.lines[0]
    assert "Traceback" not in work.lines[0]


def test_pauses_grow_to_half_a_minute_and_end_with_the_storages_error() -> None:
    work = Work(*[FULL] * 100)
    with pytest.raises(StorageFullError) as caught:
        work.attempt()
    assert caught.value is FULL
    assert work.waits == [1, 2, 4, 8, 16, 30, 30, 29]


@pytest.mark.parametrize(
    "error",
    [
        StorageAccessError("root", "Permission denied"),
        StorageError("root", "nobody knows"),
        FencedError("topic t", "taken over"),
        ValueError("a defect"),
        PythonException("Traceback\nstorage_engine.errors.StorageAccessError: root: Permission denied."),
        failed_publishing(PythonException("Traceback\nstorage_engine.errors.StorageAccessError: root: denied.")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_waiting_does_not_mend_is_raised_at_once(error) -> None:
    work = Work(error)
    with pytest.raises(type(error)):
        work.attempt()
    assert (work.waits, work.lines) == ([], [])


def test_zero_does_not_wait() -> None:
    work = Work(FULL, timeout_ms=0)
    with pytest.raises(StorageFullError):
        work.attempt()
    assert work.waits == []


def test_a_request_to_stop_ends_the_waiting_at_once() -> None:
    work = Work(FULL, FULL, asked_to_stop=True)
    with pytest.raises(StorageFullError):
        work.attempt()
    assert work.waits == [1]


def test_a_stop_request_that_nobody_makes_is_waited_for_in_vain() -> None:
    assert StopRequest().wait(0.001) is False


# --- Ingests on storages that fail, and come back -------------------------------------------------------------------

SETTINGS = """
topics: {t: {partitions: 2}}
ingest:
  topic: t
  source: {format: json, path: %s, schema: "k STRING, v STRING"}
  key: k
  value: v
"""
ROWS = 400


class Run:
    """An ingest of two micro-batches. at_wait is called when the ingest reports for the first time that it waits."""

    def __init__(self, spark: SparkSession, root: Path, folder: Path) -> None:
        self.spark = spark
        self.root = root
        self.lines: list[str] = []
        self.at_wait: Callable[[], object] = lambda: None
        self._source = folder / "source"
        self._source.mkdir()
        self._conf = folder / "conf.yaml"
        self._conf.write_text(SETTINGS % self._source)

    def write(self, name: str) -> None:
        rows = [{"k": f"{name}{number}", "v": "x" * 500} for number in range(ROWS)]
        (self._source / f"{name}.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def run(self, *overrides: str) -> IngestResult:
        settings = load_settings(self._conf, overrides, root_at(self.root))
        return Ingest(self.spark, settings, topics_of(self.root), report=self._report).run()

    def _report(self, line: str) -> None:
        self.lines.append(line)
        if "waiting for the storage" in line:
            act, self.at_wait = self.at_wait, lambda: None
            act()

    @property
    def waits(self) -> list[str]:
        return [line for line in self.lines if "waiting for the storage" in line]

    def assert_exactly_once(self, *names: str) -> None:
        found = [record["key"].decode() for record in records_of(self.root, "t")]
        assert sorted(found) == sorted(f"{name}{number}" for name in names for number in range(ROWS))


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Run:
    run = Run(spark, tmp_path / "root", tmp_path)
    run.write("a")
    run.run()
    run.write("b")
    return run


def fail_once(monkeypatch: pytest.MonkeyPatch, call: str, code: int, concerned: Callable[[Path], bool]) -> list[Path]:
    """Let the first call for a file that `concerned` selects fail. Returns the paths of the selected files that were
    used."""
    real = getattr(os, call)
    met: list[Path] = []

    def failing(descriptor: int, *arguments: Any) -> Any:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if concerned(path):
            met.append(path)
            if len(met) == 1:
                raise OSError(code, os.strerror(code))
        return real(descriptor, *arguments)

    monkeypatch.setattr(os, call, failing)
    return met


@pytest.mark.parametrize(("call", "code"), [("fsync", errno.EIO), ("pwritev", errno.ENOSPC), ("pwritev", errno.ESTALE)])
@pytest.mark.spark
@pytest.mark.posix("patches calls of the operating system")
def test_a_publish_that_failed_is_made_again_with_new_files_from_the_same_runs(run, monkeypatch, call, code) -> None:
    met = fail_once(monkeypatch, call, code, lambda path: "/data/" in str(path) and path.suffix == ".log")
    result = run.run()
    assert result.records == ROWS
    assert len(run.waits) == 1
    assert os.strerror(code) in run.waits[0]
    run.assert_exactly_once("a", "b")
    failed = met[0]
    assert failed not in met[1:], "a file whose sync or write failed is not touched again"
    named = {segment.name for part in topics_of(run.root).state("t").partitions for segment in part.segments}
    assert failed.stem not in named
    assert not [path for path in (run.root / "staging").rglob("*") if path.is_file()]


@pytest.mark.spark
@pytest.mark.posix("patches calls of the operating system")
def test_a_commit_of_which_only_the_reply_failed_is_found_and_not_made_again(run, monkeypatch) -> None:
    real, stat = os.link, Path.stat
    calls: list[Any] = []

    def link(source: Any, target: Any) -> None:
        real(source, target)
        if "/meta/t/" in str(target) and not calls:
            calls.append(target)
            monkeypatch.setattr(Path, "stat", away)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def away(path: Path, **named: Any) -> Any:
        if path.name.startswith(".tmp-"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return stat(path, **named)

    # The link count would tell that the link was made; here it cannot be asked for, so the chain reads back.
    monkeypatch.setattr(os, "link", link)
    run.run()
    run.assert_exactly_once("a", "b")
    assert len(calls) == 1


@pytest.mark.spark
@pytest.mark.posix("moves the root away")
def test_a_mount_that_comes_back_is_waited_for(run, monkeypatch) -> None:
    away = run.root.with_name("away")
    append = TopicWriter.append

    def lose_the_mount(writer: TopicWriter, *arguments: Any, **named: Any) -> Any:
        if not away.exists() and not run.waits:
            run.root.rename(away)
            run.root.mkdir()  # the mount point, empty
        return append(writer, *arguments, **named)

    def come_back() -> None:
        shutil.rmtree(run.root)
        away.rename(run.root)

    run.at_wait = come_back
    monkeypatch.setattr(TopicWriter, "append", lose_the_mount)
    assert run.run().records == ROWS
    assert len(run.waits) == 1
    assert "has no version of the state any more" in run.waits[0]
    run.assert_exactly_once("a", "b")


@pytest.mark.spark
def test_a_mount_that_stays_away_ends_the_ingest_with_its_error(run, monkeypatch) -> None:
    def unavailable(writer: TopicWriter, *_: Any, **__: Any) -> Any:
        raise StorageUnavailableError("root/data", "Host is down")

    with monkeypatch.context() as patched:
        patched.setattr(TopicWriter, "append", unavailable)
        with pytest.raises(StorageUnavailableError, match="Host is down"):
            run.run("ingest.storage.retry.timeout.ms=1500")
    assert len(run.waits) == 2
    run.assert_exactly_once("a")
    run.run()
    run.assert_exactly_once("a", "b")


@pytest.mark.spark
def test_a_stop_signal_ends_the_waiting_and_the_next_run_goes_on(run, monkeypatch) -> None:
    def unavailable(writer: TopicWriter, *_: Any, **__: Any) -> Any:
        raise StorageUnavailableError("root/data", "Host is down")

    run.at_wait = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with monkeypatch.context() as patched:
        patched.setattr(TopicWriter, "append", unavailable)
        with pytest.raises(StorageUnavailableError, match="Host is down"):
            run.run()
    assert len(run.waits) < 5, "of the two minutes that it would have waited"
    run.run()
    run.assert_exactly_once("a", "b")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if not can_mount():
        pytest.skip("no file system can be mounted here; tests/bad_input/test_full_disks.py does without")
    with SmallDisk(tmp_path / "root").prepared() as disk:
        yield disk


@pytest.mark.posix("fills a disk")
def test_dead_letters_that_find_no_space_are_waited_for(small_disk, tmp_path) -> None:
    storage = PosixStorage(tmp_path / "root")
    letter = {field.name: None for field in INGEST_DEAD_LETTERS} | {"reason": "no_key", "topic": "t", "query_id": "q"}
    rows = pa.Table.from_pylist([letter | {"batch_id": 0, "task": 0, "row": 0}], schema=INGEST_DEAD_LETTERS)
    pq.write_table(rows, tmp_path / "root/staged.parquet")
    with small_disk.full(0), pytest.raises(StorageFullError, match="No space left on device"):
        append_staged_dead_letters(storage, ["staged.parquet"], "letters", "app", 0)
    append_staged_dead_letters(storage, ["staged.parquet"], "letters", "app", 0)
    assert DeltaTable(tmp_path / "root/letters").to_pyarrow_table().num_rows == 1


@pytest.mark.posix("fills a disk")
def test_dead_letters_that_find_no_space_leave_no_file(small_disk, tmp_path) -> None:
    storage = PosixStorage(tmp_path / "root")
    letter = {field.name: None for field in INGEST_DEAD_LETTERS} | {"reason": "no_key", "topic": "t", "query_id": "q"}
    letters = [letter | {"batch_id": 0, "task": 0, "row": row, "source": os.urandom(500).hex()} for row in range(500)]
    rows = pa.RecordBatch.from_pylist(letters, schema=INGEST_DEAD_LETTERS)
    for left in (0, 4096, 100_000):
        with small_disk.full(left), pytest.raises(StorageFullError), DeadLetterFile(storage, "staging/") as file:
            file.write(rows)
        assert list(storage.list("staging/")) == []
    with DeadLetterFile(storage, "staging/") as file:
        file.write(rows)
    assert pq.read_table(tmp_path / "root" / file.key).to_pylist() == letters


@pytest.mark.parametrize("left", [60_000, 150_000, 300_000])
@pytest.mark.spark
@pytest.mark.posix("fills a disk")
def test_a_full_disk_is_waited_for_until_there_is_space(spark, tmp_path, small_disk, left) -> None:
    run = Run(spark, tmp_path / "root", tmp_path)
    run.write("a")
    run.run()
    run.write("b")
    ballast = run.root / "ballast"

    def free() -> None:
        ballast.unlink()

    run.at_wait = free
    ballast.write_bytes(bytes(shutil.disk_usage(run.root).free - left))
    assert run.run().records == ROWS
    assert len(run.waits) == 1
    assert "No space left on device" in run.waits[0]
    run.assert_exactly_once("a", "b")
