"""Publishing by a Spark job: one task per partition, which writes new files only.

For what is too much for the driver alone, and where the storage cannot append. A task draws the names of its files
itself and reports them; the driver commits those of the attempts whose report Spark took. So a failed, retried or
speculative attempt leaves at most files that nobody names. Where the job fails as a whole, what its attempts had written
is deleted; an attempt that ends later than that leaves its files for the sweep.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import SparkSession

from pipeline.spark_failures import spark_failures
from storage_engine.errors import StorageError
from storage_engine.phases import Phases
from storage_engine.storage import AppendableStorage, Storage
from storage_engine.storage.opening import open_storage
from storage_engine.topic.planning import AppendPlan, OpenSegment
from storage_engine.topic.publishers import COPY, NewSegments, Publisher, with_names


def publisher_of(spark: SparkSession, storage: Storage, size: int, spark_bytes: int) -> Publisher | None:
    """Who publishes a micro-batch of this size; None: the writer itself.

    Args:
        spark_bytes: from this size on it is a Spark job.
    """
    if isinstance(storage, AppendableStorage) and size < spark_bytes:
        return None
    return SparkPublisher(spark, storage)


class SparkPublisher:
    """A Publisher that keeps nothing from one publish to the next."""

    def __init__(self, spark: SparkSession, storage: Storage) -> None:
        self._spark = spark
        self._storage = storage

    def open_segments(self) -> Mapping[int, OpenSegment]:
        return {}

    def publish(self, plan: AppendPlan, phases: Phases) -> AppendPlan:
        word = secrets.token_hex(8)
        tasks = tuple(NewSegments.of(plan, part, word) for part in plan.partitions)
        if not tasks:
            return plan
        try:
            with phases.phase(COPY), spark_failures(f"publishing to topic id {plan.topic_id}"):
                # As a DataFrame and not an RDD, as in pipeline.cleaning.
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
        """The files are complete."""

    def abandon(self, plan: AppendPlan) -> None:
        """They are complete, too, and nobody names them."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class _WriteSegments:
    """What a task runs: it is given the numbers of the partitions of the plan that it is to write."""

    root: str
    tasks: tuple[NewSegments, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                names = self.tasks[number].write(open_storage(self.root))
                yield pa.RecordBatch.from_pylist([{"number": number, "names": json.dumps(names)}])
