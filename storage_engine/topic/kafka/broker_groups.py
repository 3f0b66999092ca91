"""Imports the committed offsets of a broker's groups into a root, and exports positions in a form that Kafka's tools
read.

A broker stores committed offsets in its topic __consumer_offsets. The broker's rules apply. For each pair of group
and partition, the newest record is used. A tombstone deletes the offset. An offset that was committed in a
transaction is used only if the transaction was committed. If an offset belongs to another topic of the same name
(with another topic id), the offset is ignored. The offsets become positions of groups (topic.readers.consumer_files)
of the imported topic. If the topic in the root already has a group of the same name, this group keeps its positions.
The reason is that a reader may have committed these positions in the root. Three things are not imported: the
metadata of commits, the members of groups, and the positions of share groups.

An export writes a file with lines `group,topic,partition,offset`, which kafka-consumer-groups --reset-offsets reads
with --from-file. An export cannot replace a broker's __consumer_offsets, because this topic also has the members of
groups.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage_engine.errors import CorruptionError, NotFoundError
from storage_engine.kafka_dir.log_directory import FoundPartition, LogDirectory
from storage_engine.log.checkpoint import PARTITION_METADATA, decode_partition_metadata
from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.log.segment_reader import SegmentFile, read_chunks, read_records
from storage_engine.record.coordinator.coordinator_records import (
    CoordinatorRecord,
    UndecodableError,
    decode_coordinator_record,
)
from storage_engine.record.coordinator.coordinator_schemas import LEGACY_OFFSET_COMMIT, NO_ID, OFFSET_COMMIT
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.kafka.segment_import import remedy
from storage_engine.topic.readers.consumer_files import GROUP_KIND, Consumer
from storage_engine.topic.readers.membership import find_group, set_positions
from storage_engine.topic.topics import Topics

CONSUMER_OFFSETS = "__consumer_offsets"
OFFSETS_FILE = "consumer-offsets.csv"
"""The file of an export with the positions of the groups."""
BrokerGroups = Mapping[str, Mapping[str, Mapping[int, int]]]
"""Committed offsets by topic, by group and by partition."""


class _OffsetCommit(NamedTuple):
    """A record with a committed offset.

    offset: the offset of the record itself.
    """

    file: SegmentFile
    offset: int
    key: bytes
    value: bytes


def broker_groups(directory: LogDirectory) -> BrokerGroups:
    """The offsets that the groups of a broker have committed. They are read from the partitions of __consumer_offsets
    that this directory has.

    Raises:
        CorruptionError: a log is damaged before its end, or a record with an offset cannot be decoded.
    """
    newest: dict[bytes, _OffsetCommit] = {}
    with remedy(directory):
        for name in directory.partitions:
            if name.topic == CONSUMER_OFFSETS:
                for file, records in _decided_records(directory, directory.inspect(name)):
                    _replay(newest, file, records)
    ids: dict[str, str] = {}
    offsets: dict[str, dict[str, dict[int, int]]] = {}
    for commit in newest.values():
        record = _decoded(directory, commit)
        assert record.value is not None
        topic = record.key["topic"]
        if topic not in ids:
            ids[topic] = _topic_id(directory, topic)
        if NO_ID in (ids[topic], committed_id := record.value.get("topicId", NO_ID)) or committed_id == ids[topic]:
            of_topic = offsets.setdefault(topic, {})
            of_topic.setdefault(record.key["group"], {})[record.key["partition"]] = record.value["offset"]
    return offsets


def _decided_records(directory: LogDirectory, found: FoundPartition) -> Iterator[tuple[SegmentFile, pa.RecordBatch]]:
    """The records of a partition without those of transactions that were not committed. In contrast to a reader of
    committed records, a broker does not stop at the first open transaction."""
    part, reader = found.state, directory.reader(found)
    not_committed = [
        *part.aborted_transactions(),
        *(
            AbortedTransaction(each.producer_id, each.txn_first_offset, part.high_watermark, part.high_watermark)
            for each in part.producers
            if each.txn_first_offset >= 0
        ),
    ]
    for segment in part.segments:
        file = reader.segment_file(segment)
        for records in read_records(directory.storage, file, part.log_start_offset, part.high_watermark, not_committed):
            yield file, records


def _replay(newest: dict[bytes, _OffsetCommit], file: SegmentFile, records: pa.RecordBatch) -> None:
    """Change the newest commits by the next records."""
    rows = zip(*(records[name].to_pylist() for name in ("offset", "key", "value")), strict=True)
    for offset, key, value in rows:
        if value is None:
            newest.pop(key, None)
        elif key is not None and int.from_bytes(key[:2]) in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT):
            newest[key] = _OffsetCommit(file, offset, key, value)


def _decoded(directory: LogDirectory, commit: _OffsetCommit) -> CoordinatorRecord:
    try:
        return decode_coordinator_record(commit.key, commit.value)
    except UndecodableError as error:
        raise CorruptionError(
            commit.file.key, _position_of(directory, commit), "committed offsets",
            f"a record at offset {commit.offset} that cannot be decoded: {error}",
            "The topics are imported, but the groups are not. A later version of Kafka may have written the record."
            " Read the offsets with kafka-consumer-groups of that version, and store them in the root with"
            " `lakelog groups reset-offsets`.",
        ) from None  # fmt: skip


def _position_of(directory: LogDirectory, commit: _OffsetCommit) -> int:
    """The position of the batch with a record."""
    tables = ((chunk.position, chunk.table) for chunk in read_chunks(directory.storage, commit.file))
    return next(
        position + int(table.positions[np.searchsorted(table.last_offsets, commit.offset)])
        for position, table in tables
        if int(table.last_offsets[-1]) >= commit.offset
    )


def _topic_id(directory: LogDirectory, topic: str) -> str:
    """The id of a topic in a directory; NO_ID if it is not known."""
    for name in directory.partitions:
        key = f"{name.folder}/{PARTITION_METADATA}"
        if name.topic == topic:
            try:
                return decode_partition_metadata(directory.storage.read(key), str(directory.path / key))
            except NotFoundError:
                continue
    return NO_ID


def take_groups(topics: Topics, state: TopicState, groups: Mapping[str, Mapping[int, int]]) -> int:
    """Store the offsets of a broker's groups as positions on an imported topic.

    Args:
        groups: offsets by group and by partition. An offset after the end of a log becomes the end.

    Returns:
        The number of groups that the topic did not have before.

    Raises:
        CorruptionError: the file of a group is damaged.
    """
    taken = 0
    for name, offsets in sorted(groups.items()):
        positions = {
            number: min(offset, state.partitions[number].high_watermark)
            for number, offset in offsets.items()
            if 0 <= number < len(state.partitions) and offset >= 0
        }
        if positions and find_group(topics.storage, state, name) is None:
            set_positions(topics.storage, state, name, positions, topics.clock.now_ms())
            taken += 1
    return taken


def offsets_file(groups: Iterable[tuple[str, Consumer]]) -> bytes:
    """The lines of OFFSETS_FILE. The lines contain only groups whose position is in the group's own file, so exports
    and streams are not included.

    Args:
        groups: topics with their groups.
    """
    rows = [
        (group.name, topic, number, offset)
        for topic, group in groups
        if group.kind == GROUP_KIND
        for number, offset in group.positions.items()
    ]
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows(sorted(rows))
    return lines.getvalue().encode()
