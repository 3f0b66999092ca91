"""Runs numbered pieces of work as one Spark job.

Spark retries a task that raises, and in the end the job fails. So a failure that must not stop other numbers is
returned as a value. Spark may run a number twice at the same time, so the work must be safe to run twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql import SparkSession

from storage_engine.storage import Storage
from storage_engine.storage.opening import open_storage

_Made = TypeVar("_Made")


def run_numbered(spark: SparkSession, root: str, do: Callable[[Storage, int], _Made], count: int) -> list[_Made]:
    """What `do` makes of each number below count, in their order.

    Args:
        root: URI of the storage, which each task opens itself. do: is pickled, and so is what it makes.
    """
    # As a DataFrame and not an RDD: an RDD's functions run in workers of another daemon, which would import all again.
    numbers = spark.range(0, count, 1, min(count, max(1, spark.sparkContext.defaultParallelism)))
    rows = numbers.mapInArrow(_Work(root, do), "id bigint, outcome binary").collect()
    loads = CPickleSerializer().loads
    outcomes = {row["id"]: loads(bytes(row["outcome"])) for row in rows}  # type: ignore[no-untyped-call]
    return [outcomes[number] for number in range(count)]


@dataclass(frozen=True)
class _Work(Generic[_Made]):
    """What a Spark task runs: it is given numbers."""

    root: str
    do: Callable[[Storage, int], _Made]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = open_storage(self.root)
        for batch in batches:
            for number in batch["id"].to_pylist():
                pickled = CPickleSerializer().dumps(self.do(storage, number))  # type: ignore[no-untyped-call]
                yield pa.RecordBatch.from_arrays([pa.array([number]), pa.array([pickled])], ["id", "outcome"])
