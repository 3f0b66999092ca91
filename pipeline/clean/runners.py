"""Runs the tasks of a cleaning job: on Spark, or in the driver if the driver is faster.

Each task writes only new files, and returns a result or a Failure. So if a task fails, or if Spark runs a task twice,
the needless files appear in no state. A later sweep deletes these files.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession

from lakelog.spark.task_progress import TaskProgress, progress_of_tasks
from pipeline.clean.work_queue import SMALL_BYTES, InThisThread, Runner, Task
from pipeline.spark.failures import spark_failures
from pipeline.spark.numbered_tasks import run_numbered
from storage_engine.cleaner.cleaner import CleanedPartition, CleaningTask
from storage_engine.cleaner.replacement import Replacement
from storage_engine.cleaner.splitting import parts_wanted
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.storage import Storage
from storage_engine.topic.clean.split_compaction import compact_split
from storage_engine.topic.clean.state_swap import Failure
from storage_engine.topic.clean.topic_compaction import run_cleaning_task
from storage_engine.topic.clean.topic_merging import run_merge_task

Outcome = CleanedPartition | Replacement | Failure

_MOST_THREADS = 1024


class DriverRunner:
    """Runs one piece of work after another in the caller's thread."""

    at_once = 1

    def __init__(self, storage: Storage, progress: Progress) -> None:
        self._storage = storage
        self._progress = progress
        self._thread = InThisThread()

    def submit(self, tasks: Sequence[Task]) -> Future[Sequence[Outcome]]:
        return self._thread.submit(self._run, tasks)

    def _run(self, tasks: Sequence[Task]) -> Sequence[Outcome]:
        return [run_task(self._storage, task, self._progress) for task in tasks]


@dataclass(frozen=True)
class SparkRunner:
    """Runs each piece of work as one Spark job.

    Tasks that run at the same time share the allowed number of bytes per second. A large partition is compacted by
    several Spark tasks (storage_engine.cleaner.splitting).

    threads: threads of the driver; each thread waits for one job.
    group: the job group of these jobs.
    bytes_of_all: the number of bytes that all tasks of the run together read.
    tasks: the number of tasks in the run.
    """

    spark: SparkSession
    storage: Storage
    progress: TaskProgress
    threads: Executor
    group: str
    bytes_of_all: int
    tasks: int

    @property
    def at_once(self) -> int:
        # One job more than there are cores, so no core is idle during a commit, and Spark can request more cores.
        return self.spark.sparkContext.defaultParallelism + 1

    def submit(self, tasks: Sequence[Task]) -> Future[Sequence[Outcome]]:
        return self.threads.submit(self._run, tasks)

    def _run(self, piece: Sequence[Task]) -> Sequence[Outcome]:
        context = self.spark.sparkContext
        slots = max(1, context.defaultParallelism)
        first = piece[0]
        verb = "compaction" if isinstance(first, CleaningTask) else "merging"
        context.setJobGroup(self.group, f"{verb} of topic {first.topic}, {len(piece)} tasks")
        with spark_failures(f"{verb} of topic {first.topic}"):
            if isinstance(first, CleaningTask) and len(piece) == 1:
                parts = parts_wanted(first, self.bytes_of_all, slots)
                if parts > 1:
                    numbered = partial(run_numbered, self.spark, self.storage.uri)
                    return [compact_split(self.storage, first, parts, numbered, self.progress)]
            rate = first.bytes_per_second / min(self.tasks, slots)
            shared = tuple(replace(task, bytes_per_second=rate) for task in piece)
            return run_numbered(self.spark, self.storage.uri, _RunTask(shared, self.progress), len(shared))


@contextmanager
def runner_of(
    spark: Callable[[], SparkSession], storage: Storage, shown: Progress, tasks: Sequence[Task]
) -> Iterator[Runner[Outcome]]:
    """The runner for these tasks: the driver if all tasks together are small, otherwise Spark."""
    if sum(task.bytes_to_read for task in tasks) <= SMALL_BYTES:
        yield DriverRunner(storage, shown)
    else:
        with on_spark(spark(), storage, shown, tasks) as runner:
            yield runner


@contextmanager
def on_spark(spark: SparkSession, storage: Storage, shown: Progress, tasks: Sequence[Task]) -> Iterator[SparkRunner]:
    """A SparkRunner for these tasks. If an error ends the block, running jobs are cancelled."""
    size = sum(task.bytes_to_read for task in tasks)
    group = f"lakelog-cleaning-{secrets.token_hex(4)}"
    with progress_of_tasks(spark, shown) as progress, ThreadPoolExecutor(_MOST_THREADS, "cleaning") as threads:
        try:
            yield SparkRunner(spark, storage, progress, threads, group, size, len(tasks))
        except BaseException:
            spark.sparkContext.cancelJobGroup(group)
            raise


def run_task(storage: Storage, task: Task, progress: Progress = NO_PROGRESS) -> Outcome:
    """Compact a partition, or merge a run of segments, into new files."""
    if isinstance(task, CleaningTask):
        return run_cleaning_task(storage, task, progress)
    return run_merge_task(storage, task, progress)


@dataclass(frozen=True)
class _RunTask:
    tasks: tuple[Task, ...]
    progress: TaskProgress

    def __call__(self, storage: Storage, number: int) -> Outcome:
        return run_task(storage, self.tasks[number], self.progress)
