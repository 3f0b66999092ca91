"""Who does the tasks of a cleaning: Spark, or the driver itself where that is sooner.

Each task writes new files and returns what it made, or its Failure. So one that fails, or that Spark retries or
speculates on, leaves only files that nobody names.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession

from pipeline.numbered_tasks import run_numbered
from pipeline.progress import TaskProgress, progress_of_tasks
from pipeline.spark_failures import spark_failures
from pipeline.work_queue import InThisThread, Task
from storage_engine.cleaner.cleaner import CleanedPartition, CleaningTask
from storage_engine.cleaner.replacement import Replacement
from storage_engine.cleaner.splitting import parts_wanted
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.storage import Storage
from storage_engine.topic.compaction import run_cleaning_task
from storage_engine.topic.merging import run_merge_task
from storage_engine.topic.split_compaction import compact_split
from storage_engine.topic.swapping import Failure

Outcome = CleanedPartition | Replacement | Failure

_MOST_THREADS = 1024


@dataclass(frozen=True)
class Runner:
    """Runs pieces of work.

    executor: on whose threads. at_once: how many pieces may run at the same time. run: does the tasks of one piece;
    outcomes in their order.
    """

    executor: Executor
    at_once: Callable[[], int]
    run: Callable[[Sequence[Task]], list[Outcome]]


def here(storage: Storage, progress: Progress) -> Runner:
    """Runs one piece after another, on the thread that asks."""
    return Runner(
        InThisThread(),
        lambda: 1,
        lambda tasks: [run_task(storage, task, progress) for task in tasks],
    )


@contextmanager
def on_spark(spark: SparkSession, storage: Storage, shown: Progress, tasks: Sequence[Task]) -> Iterator[Runner]:
    """Runs each piece as a Spark job of its own; those that still run when an error ends the context are cancelled.

    Args:
        tasks: all of them. Those that run at the same time share their bytes a second, and a partition that is much larger
            than its share of all is compacted by several Spark tasks.
    """
    bytes_of_all = sum(task.bytes_to_read for task in tasks)
    context = spark.sparkContext
    group = f"lakelog-cleaning-{secrets.token_hex(4)}"
    with progress_of_tasks(spark, shown) as progress, ThreadPoolExecutor(_MOST_THREADS, "cleaning") as threads:

        def run(piece: Sequence[Task]) -> list[Outcome]:
            slots = max(1, context.defaultParallelism)
            first = piece[0]
            verb = "compaction" if isinstance(first, CleaningTask) else "merging"
            context.setJobGroup(group, f"{verb} of topic {first.topic}, {len(piece)} tasks")
            with spark_failures(f"{verb} of topic {first.topic}"):
                if isinstance(first, CleaningTask) and len(piece) == 1:
                    parts = parts_wanted(first, bytes_of_all, slots)
                    if parts > 1:
                        numbered = partial(run_numbered, spark, storage.uri)
                        return [compact_split(storage, first, parts, numbered, progress)]
                rate = first.bytes_per_second / min(len(tasks), slots)
                shared = tuple(replace(task, bytes_per_second=rate) for task in piece)
                return run_numbered(spark, storage.uri, _RunTask(shared, progress), len(shared))

        try:
            # One more than there are cores: none waits for a commit, and Spark sees that it could have more of them.
            yield Runner(threads, lambda: context.defaultParallelism + 1, run)
        except BaseException:
            context.cancelJobGroup(group)
            raise


def run_task(storage: Storage, task: Task, progress: Progress = NO_PROGRESS) -> Outcome:
    """Compact a partition, or merge a run, into new files."""
    if isinstance(task, CleaningTask):
        return run_cleaning_task(storage, task, progress)
    return run_merge_task(storage, task, progress)


@dataclass(frozen=True)
class _RunTask:
    tasks: tuple[Task, ...]
    progress: TaskProgress

    def __call__(self, storage: Storage, number: int) -> Outcome:
        return run_task(storage, self.tasks[number], self.progress)
