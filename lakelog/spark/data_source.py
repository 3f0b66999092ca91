"""A Lakelog topic as a source and sink for Spark: spark.read, spark.readStream, df.write and df.writeStream with
format("lakelog").

The rows, the options and their defaults are the same as in Spark's Kafka source, and the same inputs are refused. So to
move a program from Kafka to Lakelog, change only the name of the format; the options stay the same (options/).
docs/SOURCES.md lists the differences. Spark plans a read in a separate Python process on the driver's host. That
process reads the topics' states and plans what tasks read: files, sizes and offsets.

    options/                                                   the options of a read
    read_topics.py, stream_position.py, ranges.py, shares.py   the offsets of a read, as its options define them
    tasks.py, splits.py, source_columns.py                     the tasks, and their rows
    stream.py                                                  the micro-batches of a stream
    sink/                                                      writes
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from lakelog.spark.options.bounds import option_of
from lakelog.spark.options.source_options import CommonOptions, batch_bounds, common_options, ignored_warning
from lakelog.spark.options.topic_choice import topic_choice
from lakelog.spark.options.user_options import LAKELOG, UserOptions, wrong
from lakelog.spark.ranges import batch_ranges
from lakelog.spark.read_topics import ReadTopics
from lakelog.spark.sink.writers import BatchWriter, StreamWriter
from lakelog.spark.source_columns import source_schema
from lakelog.spark.stream import StreamReader
from lakelog.spark.tasks import Task, TaskReader, planned_tasks
from lakelog.spark.types import spark_struct

__all__ = ["LAKELOG", "LakelogSource", "may_read"]


def may_read(options: Mapping[str, str], topic: str) -> bool:
    """Whether a read with these options includes a topic, if the topic exists.

    Raises:
        ConfigError: the options do not name topics in one of the three ways.
    """
    return topic_choice(UserOptions(options)).may_read(topic)


class LakelogSource(DataSource):
    """The source and sink that lakelog.register makes known to a session."""

    @classmethod
    def name(cls) -> str:
        return LAKELOG

    def schema(self) -> StructType:
        """The columns. Spark asks for them when a program calls load(), so wrong options are refused here."""
        options = common_options(self.options)
        if (warning := ignored_warning(options)) is not None:
            print(warning, file=sys.stderr)
        return _columns(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = common_options(self.options)
        _check_schema(schema, options)
        return BatchReader(self.options, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return StreamReader(self.options, lambda options: _check_schema(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        return StreamWriter(self.options, schema)


class BatchReader(DataSourceReader):
    """Reads the records between two bounds."""

    def __init__(self, given: Mapping[str, str], options: CommonOptions) -> None:
        self._options = options
        self._starting, self._ending = batch_bounds(given)
        self._tasks = TaskReader(options.root, options.include_headers)

    def partitions(self) -> list[InputPartition]:
        options, topics = self._options, ReadTopics(self._options)
        states = topics.states()
        first = topics.found(self._starting, states, starting=True)
        end = topics.found(self._ending, states, starting=False)
        latest = topics.latest(states)
        wanted = batch_ranges(
            states, first, end, latest,
            starting=option_of(self._starting, "starting"), fail_on_loss=options.fail_on_data_loss,
        )  # fmt: skip
        tasks = planned_tasks(
            states, wanted.ranges, options.isolation, least=options.min_partitions, most=options.max_records,
            required_from=wanted.required_from, from_earliest=wanted.from_earliest, to_latest=wanted.to_latest,
        )  # fmt: skip
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """If there was nothing to plan, Spark runs one task without a value."""
        return self._tasks.read(partition.value or Task())


def _columns(options: CommonOptions) -> StructType:
    return spark_struct(source_schema(include_headers=options.include_headers))


def _check_schema(schema: StructType, options: CommonOptions) -> None:
    if schema != _columns(options):
        raise wrong(
            "schema",
            "the source has a fixed schema",
            "Remove the schema, and select and cast the columns of the source instead.",
        )
