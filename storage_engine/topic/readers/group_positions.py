"""Reports the positions of groups: the position, the log end offset and the lag of each partition. Kafka's tool
kafka-consumer-groups reports the same values.

The lag is a difference of offsets, as in Kafka. The unread records, their bytes and their time are counted only if
the caller requests them. The reason is that this count reads the log after the position (unread.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from storage_engine.clock import tells_age
from storage_engine.storage import Storage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.transaction_files import newest_decided
from storage_engine.topic.readers.consumer_files import Consumer, read_consumers
from storage_engine.topic.readers.reader import PartitionReader


@dataclass(frozen=True)
class GroupPosition:
    """The position of a group in one partition.

    kind: "group", "delta export", "database export" or "stream".
    current_offset: the offset after the last record that was read; None if no record was read.
    log_end_offset: the offset after the last record of the partition.
    lag: log_end_offset minus current_offset; None if there is no current_offset.
    records, bytes: the number and the size of the committed records that the group has not read. None if they were not
        counted.
    seconds: the age of the oldest unread record; 0 if there is no unread record. None if the age was not requested, or
        is not known.
    member, host: the program that reads for the group now, and its host; empty if no program reads.
    """

    group: str
    kind: str
    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int
    lag: int | None
    records: int | None
    bytes: int | None
    seconds: float | None
    member: str
    host: str


def group_positions(storage: Storage, chain: StateChain, now_ms: int, *, unread: bool = False) -> list[GroupPosition]:
    """The positions of all groups of a topic.

    Args:
        unread: also count the unread records.

    Raises:
        CorruptionError: the file of a group, or a part of the log that must be read, is damaged.
        UnknownTopicError: there is no such topic.
    """
    consumers = read_consumers(storage, chain.newest())
    for damaged in consumers.damaged:
        raise damaged
    return positions_of(storage, chain, consumers.known, now_ms, unread=unread)


def positions_of(
    storage: Storage, chain: StateChain, consumers: Iterable[Consumer], now_ms: int, *, unread: bool = False
) -> list[GroupPosition]:
    """The positions of these consumers of a topic. If a group has no member and has not read a partition, the partition
    is omitted.

    Args:
        unread: also count the unread records.

    Raises:
        CorruptionError: a part of the log that must be read is damaged.
        UnknownTopicError: there is no such topic.
    """
    state = newest_decided(storage, chain)  # read after the consumers, so no consumer is ahead of this state
    readers = [PartitionReader(storage, chain, number, state) for number in range(len(state.partitions))]
    return [found for each in consumers for found in _positions(each, chain.topic, readers, now_ms, unread)]


def _positions(
    consumer: Consumer, topic: str, readers: list[PartitionReader], now_ms: int, unread: bool
) -> Iterator[GroupPosition]:
    is_active = consumer.is_active(now_ms)
    for number, reader in enumerate(readers):
        position = consumer.positions.get(number)
        if position is None and not is_active:
            continue
        end = reader.partition.high_watermark
        records = size = seconds = None
        if unread:
            records, size, oldest_ms = reader.unread(position or 0)
            if oldest_ms is not None and tells_age(oldest_ms, now_ms):
                seconds = max(0.0, (now_ms - oldest_ms) / 1000)
            else:
                seconds = None if records else 0.0
        yield GroupPosition(
            group=consumer.name, kind=consumer.kind, topic=topic, partition=number, current_offset=position,
            log_end_offset=end, lag=None if position is None else end - position, records=records, bytes=size,
            seconds=seconds, member=consumer.member if is_active else "", host=consumer.host if is_active else "",
        )  # fmt: skip
