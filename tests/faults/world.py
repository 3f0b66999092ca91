"""Provides the parts of a fault test: a root with topics, a naive model of their records, and the contents that a
reader sees.

A record's value identifies the record, so a missing, repeated or moved record can be named.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import StorageError
from storage_engine.log.isolation import Isolation
from storage_engine.storage import Storage
from storage_engine.topic.append.appending import Encoding, stage_records
from storage_engine.topic.append.staged_run import StagedRun, StagingWriter, by_partition, delete_staged, staging_folder
from storage_engine.topic.append.topic_writer import BatchIdentity, TopicWriter, take_over
from storage_engine.topic.chain.transaction_files import newest_decided
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table

START = 1_700_000_000_000
BROKER = BrokerConfig.from_mapping({"log.cleaner.dedupe.buffer.size": 64 * 1024})


class ViolatedError(Exception):
    """A condition that must always be true is not true."""


def require(holds: object, what: str) -> None:
    """Raise a ViolatedError where something does not hold."""
    if not holds:
        raise ViolatedError(what)


class Record(NamedTuple):
    """A record to append to a topic, and its partition."""

    partition: int
    key: str
    value: str
    timestamp: int = START


Batch = Sequence[Record]


class PartitionContents(NamedTuple):
    """What a reader sees of a partition; records as offset, key and value."""

    log_start_offset: int
    high_watermark: int
    records: tuple[tuple[int, str, str], ...]


Contents = Mapping[str, tuple[PartitionContents, ...]]
"""What a reader sees of a root, by topic."""


@dataclass
class NaiveTopic:
    """The naive model of a topic: its records and the start and end of each partition."""

    starts: list[int]
    ends: list[int]
    records: list[list[tuple[int, str, str]]]

    @classmethod
    def of(cls, partitions: int) -> NaiveTopic:
        return cls([0] * partitions, [0] * partitions, [[] for _ in range(partitions)])

    def append(self, batch: Batch) -> None:
        for record in batch:
            end = self.ends[record.partition]
            self.records[record.partition].append((end, record.key, record.value))
            self.ends[record.partition] += 1

    def retain(self, partition: int, start: int) -> None:
        self.starts[partition] = start
        self.records[partition] = [record for record in self.records[partition] if record[0] >= start]

    def compact(self, partition: int, below: int) -> None:
        """Of the records below an offset, keep the last of each key."""
        last = {key: offset for offset, key, _ in self.records[partition] if offset < below}
        self.records[partition] = [
            (offset, key, value)
            for offset, key, value in self.records[partition]
            if offset >= below or last[key] == offset
        ]

    def contents(self) -> tuple[PartitionContents, ...]:
        return tuple(
            PartitionContents(start, end, tuple(records))
            for start, end, records in zip(self.starts, self.ends, self.records, strict=True)
        )


Naive = dict[str, NaiveTopic]


def contents_of(naive: Naive) -> Contents:
    return {name: topic.contents() for name, topic in naive.items()}


def stages(naive: Naive, *steps: Callable[[Naive], object]) -> list[Contents]:
    """The contents of a root before the first step and after each step."""
    found = [contents_of(naive)]
    for step in steps:
        naive = copy.deepcopy(naive)
        step(naive)
        found.append(contents_of(naive))
    return found


_Result = TypeVar("_Result")


@dataclass
class World:
    """A root as one process has it."""

    storage: Storage
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))

    @property
    def topics(self) -> Topics:
        return Topics(self.storage, BROKER, self.clock)

    def create(self, topic: str, partitions: int = 2, **configs: Any) -> None:
        # Later timestamps than the clock's are no matter here.
        settings = {"segment.bytes": 4000, "index.interval.bytes": 250, "message.timestamp.after.max.ms": 2**62}
        self.topics.create(topic, partitions, settings | {key.replace("_", "."): v for key, v in configs.items()})

    def stage(self, topic: str, batch: Batch, *, listed: bool = False) -> list[StagedRun]:
        """Stage records as a task would; each partition's make up one run.

        Args:
            listed: a list will name them.
        """
        state = self.topics.state(topic)
        rows = [Row(each.key.encode(), each.value.encode(), (), each.timestamp) for each in batch]
        encoding = Encoding.of(self.topics.config(state), self.clock.now_ms(), batch_bytes=400)
        with StagingWriter(self.storage, staging_folder(state.topic_id, state.version), durable=listed) as writer:
            partitions = np.array([each.partition for each in batch], np.int32)
            if batch:
                stage_records(writer, to_table(rows), partitions, encoding)
        return writer.runs

    def look(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Contents:
        """The contents of all partitions, as a reader sees them that uses one state of each topic."""
        seen = {}
        for name in self.topics.names():
            chain = self.topics.chain(name)
            state = newest_decided(self.storage, chain)
            parts = []
            for number, part in enumerate(state.partitions):
                reader = PartitionReader(self.storage, chain, number, state)
                parts.append(
                    PartitionContents(
                        part.log_start_offset,
                        part.high_watermark,
                        tuple(read(reader, part.log_start_offset, isolation)),
                    )
                )
            seen[name] = tuple(parts)
        return seen


def read(
    reader: PartitionReader, offset: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
) -> Iterable[tuple[int, str, str]]:
    for records in reader.read(offset, isolation=isolation):
        columns = (records[name].to_pylist() for name in ("offset", "key", "value"))
        yield from (
            (at, (key or b"").decode(), (value or b"").decode()) for at, key, value in zip(*columns, strict=True)
        )


def with_retries(step: Callable[[], _Result], tries: int = 3) -> _Result:
    """Run a step again if the storage failed, like a process that does not give up at once."""
    for _ in range(tries - 1):
        try:
            return step()
        except StorageError:
            continue
    return step()


class Feed:
    """A streaming query. It takes the topic over, and offers each micro-batch until the micro-batch is committed."""

    def __init__(self, world: World, topic: str, query: str = "q", *, take_over_others: bool = False) -> None:
        self._world = world
        self._topic = topic
        self._query = query
        self.chain = world.topics.chain(topic)
        state = with_retries(lambda: take_over(self.chain, query, take_over_others))
        config = world.topics.config(state)
        self.writer = with_retries(
            lambda: TopicWriter(world.storage, self.chain, config, world.clock, state.writer.epoch)
        )

    def offer(self, number: int, batch: Batch) -> bool:
        """Commit a micro-batch; returns whether it was committed before."""
        identity = BatchIdentity(self._query, number, f"{number:064x}")
        if self.writer.is_done(with_retries(self.chain.newest), identity):
            return True
        runs = with_retries(lambda: self._world.stage(self._topic, batch))
        committed = with_retries(lambda: self.writer.append(by_partition(runs), identity))
        with_retries(lambda: delete_staged(self._world.storage, runs))
        return committed.skipped

    def last(self) -> int:
        """The last micro-batch that is committed; -1 for none."""
        done = with_retries(self.chain.newest).queries.get(self._query)
        return -1 if done is None else done.batch_id

    def close(self) -> None:
        self.writer.close()
