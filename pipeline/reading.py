"""Reading a topic on Spark's executors: offset ranges in, the columns of Spark's Kafka source out.

The driver plans splits, one segment's offsets each, from one version of the state; tasks read them through the storage
and never ask for the state. Only where a file has gone meanwhile, because a compaction replaced it and its delay has
passed, does a task follow the state to what came in its place: offsets stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from pipeline.progress import TaskProgress
from pipeline.spark_types import spark_struct
from storage_engine.clock import SystemClock
from storage_engine.errors import NotFoundError
from storage_engine.log.segment_reader import SegmentFile, read_records
from storage_engine.record.columns import HEADERS
from storage_engine.storage import Storage
from storage_engine.storage.opening import open_storage
from storage_engine.topic.reader import PartitionReader, segments_in_range
from storage_engine.topic.state import TopicState
from storage_engine.topic.state_chain import StateChain

KAFKA_SOURCE = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS),
    ]
)
"""The columns of Spark's Kafka source, with includeHeaders."""

_SPLITS_PER_CORE = 4


@dataclass(frozen=True)
class Split:
    """The records of one segment with first_offset <= offset < end_offset."""

    partition: int
    segment: SegmentFile
    first_offset: int
    end_offset: int


@dataclass(frozen=True)
class _ReadSplits:
    """What a task runs: it is given numbers of groups and reads the splits of each."""

    root: str
    topic: str
    groups: tuple[tuple[Split, ...], ...]
    progress: TaskProgress

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = open_storage(self.root)
        for batch in batches:
            for group in batch["id"].to_pylist():
                for split in self.groups[group]:
                    for records in self._read(storage, split):
                        self.progress.advance(records.num_rows)
                        yield _as_kafka_source(records, self.topic, split.partition)
                    self.progress.advance(size=split.segment.size)

    def _read(self, storage: Storage, split: Split) -> Iterator[pa.RecordBatch]:
        offset = split.first_offset
        try:
            for records in read_records(storage, split.segment, offset, split.end_offset):
                yield records
                offset = records["offset"][-1].as_py() + 1
        except NotFoundError:
            reader = PartitionReader(storage, StateChain(storage, self.topic, SystemClock()), split.partition)
            offset = max(offset, reader.partition.log_start_offset)
            if offset < split.end_offset:
                yield from reader.read(offset, split.end_offset)


def read_topic(
    spark: SparkSession,
    storage: Storage,
    state: TopicState,
    first: Mapping[int, int],
    end: Mapping[int, int],
    progress: TaskProgress,
) -> DataFrame:
    """The records of some partitions, columns as in KAFKA_SOURCE; a task's rows are in the order of the log.

    Args:
        first, end: by partition, the first offset and the one behind the last.
        progress: is told the records that are read, and the bytes of the segments that they are read from.
    """
    splits = [
        Split(partition, segment, first[partition], end[partition])
        for partition in sorted(first)
        for segment in segments_in_range(state, partition, first[partition], end[partition])
    ]
    progress.expect(size=sum(split.segment.size for split in splits))
    groups = _grouped(splits, spark.sparkContext.defaultParallelism * _SPLITS_PER_CORE)
    numbers = spark.range(0, len(groups), 1, max(1, len(groups)))
    return numbers.mapInArrow(_ReadSplits(storage.uri, state.topic, groups, progress), spark_struct(KAFKA_SOURCE))


def _grouped(splits: list[Split], most: int) -> tuple[tuple[Split, ...], ...]:
    """Neighbouring splits together, in at most so many groups of about as many bytes."""
    total = sum(split.segment.size for split in splits)
    groups: list[list[Split]] = []
    room = 0.0
    for split in splits:
        if room <= 0 or not groups:
            groups.append([])
            room = total / most
        groups[-1].append(split)
        room -= split.segment.size
    return tuple(tuple(group) for group in groups)


def _as_kafka_source(records: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
    rows = records.num_rows
    return pa.RecordBatch.from_arrays(
        [
            records["key"],
            records["value"],
            pa.repeat(pa.scalar(topic), rows),
            pa.repeat(pa.scalar(partition, pa.int32()), rows),
            records["offset"],
            pc.multiply(records["timestamp"], 1000).cast(pa.timestamp("us", tz="UTC")),
            records["timestamp_type"].cast(pa.int32()),
            records["headers"],
        ],
        schema=KAFKA_SOURCE,
    )
