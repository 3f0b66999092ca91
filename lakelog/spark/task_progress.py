"""Reports the progress of tasks and streams that Spark runs.

Tasks report through Spark's accumulators. The driver gets a task's numbers when the task has ended, so progress grows
task by task. If Spark runs a task twice, it is possible that the numbers of this task are added twice. After each
micro-batch, a stream reports how far its source is ahead of the stream, if the source knows this. Progress is only
shown to people; no job's result depends on these numbers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark import Accumulator
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import SourceProgress

from storage_engine.progress import NO_PROGRESS, Progress

_LOOK_SECONDS = 0.5
"""Seconds between two looks of the driver at the numbers of ended tasks."""


class TaskProgress:
    """A Progress that Spark sends to the executors with their work. Call expect() on the driver, advance() in the tasks."""

    def __init__(self, records: Accumulator[int], size: Accumulator[int], shown: Progress) -> None:
        self._records = records
        self._size = size
        self._shown = shown

    def __getstate__(self) -> Mapping[str, object]:
        return self.__dict__ | {"_shown": NO_PROGRESS}  # what is shown stays on the driver

    def expect(self, records: int | None = None, size: int | None = None) -> None:
        self._shown.expect(records, size)

    def advance(self, records: int = 0, size: int = 0) -> None:
        self._records.add(records)
        self._size.add(size)


@contextmanager
def progress_of_tasks(spark: SparkSession, shown: Progress) -> Iterator[TaskProgress]:
    """A TaskProgress. While the context lasts, `shown` is advanced by what the tasks report."""
    records, size = spark.sparkContext.accumulator(0), spark.sparkContext.accumulator(0)
    ended = threading.Event()

    def pass_on() -> None:
        passed_records = passed_size = 0
        at_end = False
        while not at_end:
            at_end = ended.wait(_LOOK_SECONDS)
            now_records, now_size = records.value, size.value
            shown.advance(now_records - passed_records, now_size - passed_size)
            passed_records, passed_size = now_records, now_size

    watch = threading.Thread(target=pass_on, name="task-progress", daemon=True)
    watch.start()
    try:
        yield TaskProgress(records, size, shown)
    finally:
        ended.set()
        watch.join()


def records_behind(sources: Sequence[SourceProgress]) -> int | None:
    """How many records of its sources a stream had not read after its last micro-batch; None if a source does not
    report this.

    The sources kafka and lakelog report this: their offsets have, for each topic, a number for each of its partitions.
    """
    behind = 0
    for source in sources:
        end, latest = _records_up_to(source.endOffset), _records_up_to(source.latestOffset)
        if end is None or latest is None:
            return None
        behind += max(0, latest - end)
    return behind if sources else None


def _records_up_to(offset: str) -> int | None:
    """The sum of {topic: {partition: offset}} or {topic: {"topic_id": ..., "offsets": {partition: offset}}} in JSON; None
    for anything else."""
    try:
        topics = json.loads(offset)
        of_topics = [each.get("offsets", each) if "topic_id" in each else each for each in topics.values()]
        offsets = [each for partitions in of_topics for each in partitions.values()]
    except (ValueError, AttributeError, TypeError):
        return None
    return sum(offsets) if all(isinstance(each, int) for each in offsets) else None
