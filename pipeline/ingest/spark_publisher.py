"""Publishes a micro-batch with a Spark job that has one task per partition. Each task writes only new files.

The job is used only if a micro-batch is too large for the driver alone. A task chooses random names for its files and
reports them. The driver commits the files of the attempts whose reports Spark accepted. So an attempt that fails, or
that Spark runs needlessly, leaves only files that appear in no state. If the whole job fails, the files of its attempts
are deleted. If an attempt ends later, a sweep deletes its files.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import SparkSession

from pipeline.spark.failures import spark_failures
from storage_engine.config import TopicConfig
from storage_engine.errors import StorageError
from storage_engine.phases import Phases
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.append.append_plan import AppendPlan, OpenSegment
from storage_engine.topic.append.new_files_publisher import NewSegments, with_names
from storage_engine.topic.append.publishing import COPY, Publisher
from storage_engine.topic.chain.topic_state import TopicState


def publisher_of(spark: SparkSession, storage: Storage, size: int, spark_bytes: int) -> Publisher | None:
    """The publisher of a micro-batch of this size; None: the writer publishes it in the driver.

    Args:
        spark_bytes: the smallest size for a Spark job.
    """
    if size < spark_bytes:
        return None
    return SparkPublisher(spark, storage)


class SparkPublisher:
    """A Publisher that writes new segments in each call of `publish`, and leaves no file open."""

    def __init__(self, spark: SparkSession, storage: Storage) -> None:
        self._spark = spark
        self._storage = storage

    def prepare(self, state: TopicState, config: TopicConfig, partitions: Iterable[int]) -> None:
        """Does nothing: no segment is continued."""

    def open_segments(self) -> Mapping[int, OpenSegment]:
        return {}

    def publish(self, plan: AppendPlan, phases: Phases) -> AppendPlan:
        word = secrets.token_hex(8)
        tasks = tuple(NewSegments.of(plan, part, word) for part in plan.partitions)
        if not tasks:
            return plan
        try:
            with phases.phase(COPY), spark_failures(f"publishing to topic id {plan.topic_id}"):
                # A DataFrame and not an RDD, for the reason in pipeline.spark.numbered_tasks.
                numbers = self._spark.range(0, len(tasks), 1, len(tasks))
                job = _WriteSegments(self._storage.uri, tasks)
                reports = numbers.mapInArrow(job, "number bigint, names string").collect()
        except BaseException:
            for task in tasks:
                with suppress(StorageError):
                    task.delete_all(self._storage)
            raise
        names = {report["number"]: tuple(json.loads(report["names"])) for report in reports}
        parts = tuple(with_names(part, names[number]) for number, part in enumerate(plan.partitions))
        return replace(plan, partitions=parts)

    def keep(self, plan: AppendPlan) -> None:
        """Does nothing: the files are complete."""

    def abandon(self, plan: AppendPlan) -> None:
        """Does nothing: no state names the files, so a sweep deletes them."""

    def close(self) -> None:
        """Does nothing: no file is open."""


@dataclass(frozen=True)
class _WriteSegments:
    """The function of a Spark task: it receives the numbers of partitions of the plan, and writes their segments."""

    root: str
    tasks: tuple[NewSegments, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                names = self.tasks[number].write(open_storage(self.root))
                yield pa.RecordBatch.from_pylist([{"number": number, "names": json.dumps(names)}])
