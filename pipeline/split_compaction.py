"""One large partition compacted by many Spark tasks: a job that surveys its parts, and one that rewrites them.

For a skewed topic, of which one partition would keep one core busy while the others have nothing to do
(cleaner.splitting says when and how). The outcome is that of one task, and is committed in the same way. A task that
fails, or that Spark retries or speculates on, leaves files that nobody names: new segments, and runs of keys in staging.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql import SparkSession

from pipeline.spark_failures import spark_failures
from storage_engine.cleaner.cleaner import CleanedPartition, CleaningTask
from storage_engine.cleaner.splitting import (
    Part,
    SurveyedPart,
    delete_parts,
    delete_runs,
    joined,
    rewrite,
    split,
    survey,
)
from storage_engine.errors import LogError
from storage_engine.progress import Progress
from storage_engine.storage import Storage
from storage_engine.storage.opening import open_storage
from storage_engine.topic.staging import staging_folder
from storage_engine.topic.swapping import Failure

_Made = TypeVar("_Made")


def compact_split(
    spark: SparkSession, storage: Storage, task: CleaningTask, count: int, progress: Progress
) -> CleanedPartition | Failure:
    """Compact a partition in so many parts.

    Args:
        storage: the root, which the tasks open by its URI. progress: can be pickled; is told bytes and records of each part.
    """
    version = task.files.version
    assert version is not None, "Spark compacts under a root only"
    parts = split(storage, task, count, staging_folder(task.topic_id, version))
    surveyed = _on_spark(spark, _Work(storage.uri, _Survey(parts, progress)), len(parts))
    found = [each for each in surveyed if isinstance(each, SurveyedPart)]
    try:
        if failure := _failure(task, surveyed):
            return failure
        rewritten = _on_spark(spark, _Work(storage.uri, _Rewrite(parts, tuple(found), progress)), len(parts))
    finally:
        delete_runs(storage, found)
    made = [each for each in rewritten if isinstance(each, CleanedPartition)]
    if failure := _failure(task, rewritten):
        delete_parts(storage, made)
        return failure
    return joined(made)


def _failure(task: CleaningTask, outcomes: Sequence[object]) -> Failure | None:
    errors = [each for each in outcomes if isinstance(each, LogError)]
    return Failure(task.partition, errors[0]) if errors else None


def _on_spark(spark: SparkSession, work: _Work[_Made], count: int) -> list[_Made | LogError]:
    # As a DataFrame and not an RDD: an RDD's functions run in workers of another daemon, which would import all again.
    with spark_failures("cleaning"):
        rows = spark.range(0, count, 1, count).mapInArrow(work, "outcome binary").collect()
    loads = CPickleSerializer().loads
    return [loads(bytes(row["outcome"])) for row in rows]  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Work(Generic[_Made]):
    """What a Spark task runs: it is given the number of its part. do: what it does to that."""

    root: str
    do: Callable[[Storage, int], _Made]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                outcome: _Made | LogError
                try:
                    outcome = self.do(open_storage(self.root), number)
                except LogError as error:
                    outcome = error
                pickled = CPickleSerializer().dumps(outcome)  # type: ignore[no-untyped-call]
                yield pa.RecordBatch.from_arrays([pa.array([pickled])], ["outcome"])


@dataclass(frozen=True)
class _Survey:
    parts: tuple[Part, ...]
    progress: Progress

    def __call__(self, storage: Storage, number: int) -> SurveyedPart:
        return survey(storage, self.parts[number], self.progress)


@dataclass(frozen=True)
class _Rewrite:
    parts: tuple[Part, ...]
    surveyed: tuple[SurveyedPart, ...]
    progress: Progress

    def __call__(self, storage: Storage, number: int) -> CleanedPartition:
        return rewrite(storage, self.parts, self.surveyed, number, self.progress)
