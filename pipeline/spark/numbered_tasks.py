"""Runs numbered pieces of work as one Spark job.

Spark repeats a task that raises an error. If the repeats also fail, the whole job fails. So if one failed piece must
not stop the other pieces, the function that does the work returns the failure as a value. Spark can run the piece with
a given number twice, even at the same time. So it must be safe to run a piece twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql import SparkSession

from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_storage

_Made = TypeVar("_Made")


def run_numbered(spark: SparkSession, root: str, do: Callable[[Storage, int], _Made], count: int) -> list[_Made]:
    """Call `do` for each number from 0 to count - 1, and return the results in this order.

    Args:
        root: URI of the storage. Each task opens the storage itself.
        do: the work. The function and its results are pickled.
    """
    # A DataFrame and not an RDD: an RDD's functions run in workers of another daemon, which would import everything again.
    numbers = spark.range(0, count, 1, min(count, max(1, spark.sparkContext.defaultParallelism)))
    rows = numbers.mapInArrow(_NumberedWork(root, do), "id bigint, outcome binary").collect()
    loads = CPickleSerializer().loads
    outcomes = {row["id"]: loads(bytes(row["outcome"])) for row in rows}  # type: ignore[no-untyped-call]
    return [outcomes[number] for number in range(count)]


@dataclass(frozen=True)
class _NumberedWork(Generic[_Made]):
    """The function of a Spark task: it receives numbers and returns their pickled results."""

    root: str
    do: Callable[[Storage, int], _Made]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = open_storage(self.root)
        for batch in batches:
            for number in batch["id"].to_pylist():
                pickled = CPickleSerializer().dumps(self.do(storage, number))  # type: ignore[no-untyped-call]
                yield pa.RecordBatch.from_arrays([pa.array([number]), pa.array([pickled])], ["id", "outcome"])
