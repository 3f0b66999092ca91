"""The writers that Spark calls: one for a batch write, one for a stream. The names of the methods are Spark's.

Spark creates a writer in a separate process on the driver's host, runs `write` in each task, and runs `commit` in
another separate process. Spark passes only the number of the batch to the `commit` of a stream. The checkpoint contains
the query's id and the offsets of the batch. The tasks also know the query's id. This id must be equal to the id in the
checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lakelog.opening import open_topics
from lakelog.spark.options.user_options import LAKELOG, UserOptions, wrong
from lakelog.spark.sink.committing import CheckpointFolder, commit_batch, commit_rows, delete_rows
from lakelog.spark.sink.sink_options import SinkOptions, check_columns, check_types, sink_options
from lakelog.spark.sink.sink_staging import StagedRows, stage_rows
from storage_engine.errors import ConfigError
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.kafka.view import settle_committed

_CHECKPOINT = "checkpointLocation"


class BatchWriter(DataSourceArrowWriter):
    """Appends the rows of a batch: one commit per topic."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        """
        Raises:
            ConfigError: the mode is overwrite, or an option or a column is wrong.
            UnknownTopicError: there is no topic of the option `topic`.
        """
        if overwrite:
            raise ConfigError(
                f"format {LAKELOG}, mode",
                "found overwrite",
                'Use mode("append"). A topic is a log, so its records cannot be overwritten.',
            )
        self._options = sink_options(given)
        check_types(schema)
        check_columns(schema, self._options)
        if self._options.topic is not None:
            open_topics(self._options.root, None, _warn).state(self._options.topic)
        if self._options.warning:
            _warn(self._options.warning)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        return stage_rows(iterator, self._options, durable=False)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        topics = open_topics(self._options.root, None, _warn)
        changed = commit_rows(topics, _reports(messages))
        settle_committed(topics, changed, _warn)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _delete(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends the rows of each micro-batch exactly once.

    A query in the output mode `complete` appends all rows of its result with each micro-batch, as with Kafka's sink.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """
        Raises:
            ConfigError: an option or a column is wrong, or the query's checkpoint is not an option of the sink.
        """
        self._options = sink_options(given)
        check_columns(schema, self._options)
        location = UserOptions(given).get(_CHECKPOINT)
        if not location:
            raise wrong(
                _CHECKPOINT, "is missing. The sink identifies each micro-batch by the query's checkpoint",
                f'Give .option("{_CHECKPOINT}", ...). The sink cannot read the setting'
                " spark.sql.streaming.checkpointLocation.",
            )  # fmt: skip
        self._location = location

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        return stage_rows(iterator, self._options, durable=self._options.topic is None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        if batchId == 0 and self._options.warning:
            _warn(self._options.warning)
        topics = open_topics(self._options.root, None, _warn)
        commit_batch(topics, CheckpointFolder.at(self._location), _reports(messages), batchId, self._options.topic)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete the staged files, unless a list may name them. Spark also calls this after a failed commit."""
        if self._options.topic is not None:
            _delete(self._options, messages)


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    """The reports of the tasks that succeeded."""
    return [message for message in messages if isinstance(message, StagedRows)]


def _delete(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    delete_rows(open_storage(options.root), _reports(messages))


def _warn(line: str) -> None:
    print(line, file=sys.stderr)
