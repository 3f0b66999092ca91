"""Reads the records of an increment with the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow as pa

from lakelog.rows import as_rows
from storage_engine.config import LONG_MAX
from storage_engine.log.isolation import Isolation
from storage_engine.progress import Progress
from storage_engine.storage import Storage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.readers.reader import PartitionReader

ReadBatches = Callable[[Mapping[int, int], Mapping[int, int], Mapping[int, int]], Iterable[pa.RecordBatch]]
"""Reads records, with the columns of Spark's Kafka source and in each partition in the order of the log. The arguments
are those of `pipeline.delta.exporting.ReadRecords`."""
RUN_AGAIN = "Run the export again; it names the offsets that are lost."
"""What the user of an export can do if records were deleted before they were read."""


def batch_reader(storage: Storage, chain: StateChain, state: TopicState, progress: Progress) -> ReadBatches:
    """The function that reads committed records of a topic.

    Args:
        chain: the chain of the topic's state.
        state: the version of the state with which the reads begin.
        progress: is advanced by the records that are read.
    """

    def read(first: Mapping[int, int], end: Mapping[int, int], required: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
        progress.expect(records=sum(end[each] - first[each] for each in first))
        for number in sorted(first):
            required_from = required.get(number, LONG_MAX)
            reader = PartitionReader(storage, chain, number, state)
            for records in reader.read(
                first[number], end[number], Isolation.READ_COMMITTED, required_from=required_from, if_lost=RUN_AGAIN
            ):
                progress.advance(records.num_rows)
                yield as_rows(records, state.topic, number)

    return read
