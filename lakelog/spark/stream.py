"""Plans the micro-batches of a stream. Each query has one object of this kind, in a separate process on the driver's
host, until the query ends.

Spark asks where a new stream begins. For each micro-batch, Spark first asks for the end of the micro-batch, and then for
its tasks. A query that is started again gets its position from the checkpoint (stream_position.py). If such a query has
to repeat its first micro-batch, Spark asks again where the stream begins. The answer is not used then, so it is not an
error if the options fit no longer. Of a new stream, this error is raised when Spark asks for the first end.

If the stream has a group, the stream records its position after Spark has finished a micro-batch (group_record.py).
Spark reports the end of a micro-batch with `commit`, but only when the next micro-batch begins. The stream does not
have to wait for `commit`. When Spark looks for new records, Spark passes a start to `latestOffset`. All records before
this start have been processed. So the stream also records this start as its position. A query that ends by itself looks
for new records once more after its last micro-batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from lakelog.spark.group_record import GroupRecord
from lakelog.spark.options.bounds import Edge
from lakelog.spark.options.partition_json import Where
from lakelog.spark.options.source_options import CommonOptions, common_options, stream_group, stream_limits
from lakelog.spark.ranges import check_prepared, check_topics, stream_ranges
from lakelog.spark.read_topics import ReadTopics, States
from lakelog.spark.shares import Waiting, limited
from lakelog.spark.stream_position import Position, checked, is_same, offsets_of, position_at, with_begin
from lakelog.spark.tasks import Task, TaskReader, planned_tasks
from storage_engine.clock import SystemClock
from storage_engine.errors import ConfigError, LogError


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches. The names of the methods are Spark's."""

    def __init__(self, given: Mapping[str, str], check: Callable[[CommonOptions], None]) -> None:
        """Spark hides an error that is raised here, so the first call of a method raises it.

        Args:
            check: checks the options once more.
        """
        self._refusal: LogError | None = None
        try:
            self._options = common_options(given)
            self._limits = stream_limits(given)
            group = stream_group(given, str(uuid.uuid4()))
            check(self._options)
        except LogError as error:
            self._refusal = error
            return
        self._topics = ReadTopics(self._options)
        self._group = None if group is None else GroupRecord(self._topics.storage, group, self._topics.states)
        self._tasks = TaskReader(self._options.root, self._options.include_headers)
        self._waiting = Waiting(self._limits.least or 0, self._limits.max_delay_ms)
        self._initial: Position | None = None
        self._wrong_start: ConfigError | None = None
        self._latest: Position | None = None
        self._ends_there = False
        self._prepared: tuple[States, dict[Where, int]] | None = None

    def _check_options(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        self._check_options()
        if self._limits.most is not None:
            return ReadMaxRows(self._limits.most)
        return ReadAllAvailable() if self._limits.least is None else ReadMinRows(self._limits.least)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        self._check_options()
        states = self._topics.states()
        starting = self._options.starting or Edge.LATEST
        try:
            found = self._topics.found(starting, states, starting=True)
        except ConfigError as error:
            self._wrong_start = error
            return {}
        self._initial = position_at({where: each.offset for where, each in found.items()}, states)
        return dict(self._initial)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the stream end at the ends of the partitions. `_ends` looks these up for the first micro-batch, because the
        start of the stream must be known before its end."""
        self._ends_there = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._check_options()
        if self._wrong_start is not None:
            raise self._wrong_start
        self.commit(start)
        states, latest = self._ends()
        if start and not latest:
            return start  # no topic matches the pattern now: wait for one, as Kafka's source does
        self._latest = position_at(latest, states)
        if self._options.fail_on_data_loss:
            check_topics(states, start, self._latest)
        taken = self._taken(states, start, latest, limit)
        end = start if taken is None else position_at(taken, states)
        if self._initial is not None and start == self._initial:
            return dict(with_begin(end, self._initial))
        return start if is_same(start, end) else dict(end)

    def _ends(self) -> tuple[States, dict[Where, int]]:
        if self._prepared is not None:
            return self._prepared
        states = self._topics.states()
        ends = states, self._topics.latest(states)
        if self._ends_there:
            self._prepared = ends
        return ends

    def _taken(
        self, states: States, start: Position, latest: dict[Where, int], limit: ReadLimit
    ) -> dict[Where, int] | None:
        """The end of the micro-batch, by partition; None if the stream waits for more records."""
        known = {
            where: offset
            for where, offset in offsets_of(start).items()
            if where in latest and start[where[0]]["topic_id"] == states[where[0]].topic_id
        }
        end = {where: _not_back(states, where, offset, known.get(where, 0)) for where, offset in latest.items()}
        if isinstance(limit, ReadAllAvailable):
            return end
        if self._limits.least is not None:
            waiting = sum(offset - known.get(where, 0) for where, offset in end.items())
            if self._waiting.waits(waiting, SystemClock().now_ms()):
                return None
        if isinstance(limit, ReadMaxRows):
            return limited(limit.max_rows, self._topics.earliest(states) | known, end)
        return end

    def commit(self, end: dict[str, Any]) -> None:
        """Record that everything before a position was processed."""
        position = checked(end)
        if self._group is not None:
            self._group.record(position)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._latest is None else dict(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._check_options()
        start, end = dict(checked(start)), dict(checked(end))
        self._initial = self._wrong_start = None  # the first micro-batch is planned
        options, states = self._options, self._topics.states()
        if self._prepared is not None:
            check_prepared(self._topics.latest(states), self._prepared[1], offsets_of(end))
        ranges = stream_ranges(states, start, end, fail_on_loss=options.fail_on_data_loss)
        required = {(each.topic, each.partition): 0 for each in ranges} if options.fail_on_data_loss else {}
        tasks = planned_tasks(
            states, ranges, options.isolation, least=options.min_partitions, most=options.max_records,
            required_from=required,
        )  # fmt: skip
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """If there was nothing to plan, Spark runs one task without a value."""
        return self._tasks.read(partition.value or Task())


def _not_back(states: States, where: Where, end: int, begun: int) -> int:
    """The end of a partition, but at least `begun`. Otherwise a stream that switches to read_committed would go back.

    If `begun` is after the end of the log, the end is returned, and ranges.py handles the loss.
    """
    high_watermark = states[where[0]].partitions[where[1]].high_watermark
    return max(end, begun) if begun <= high_watermark else end
