"""Imports batches from a Kafka log directory into an existing topic, and appends them after the topic's end. Both
logs must contain the same batches up to the topic's end.

For example, an operator imports the batches that a broker appended to an exported directory. The batches get the leader
epoch of the topic's writer instead of the broker's leader epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from storage_engine.errors import ConfigError, ConflictError, TopicExistsError
from storage_engine.kafka_dir.log_directory import FoundPartition
from storage_engine.log.leader_epochs import begin_epoch
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.segment_reader import SegmentFile, position_of, read_chunks
from storage_engine.storage import Storage
from storage_engine.topic.chain.topic_state import DroppedFile, TopicState
from storage_engine.topic.kafka.segment_import import ImportedPartition, ImportedTopic, SegmentImporter, as_text
from storage_engine.topic.readers.reader import segment_file
from storage_engine.topic.topics import empty_partition


def continue_topic(
    importer: SegmentImporter, state: TopicState, found: Sequence[FoundPartition], configs: Mapping[str, object]
) -> ImportedTopic:
    """Append the batches of a log directory that are beyond the end of an existing topic."""
    if configs:
        raise ConfigError(
            f"topic {state.topic}", f"already exists, so an import cannot change its settings: {', '.join(configs)}",
            "`lakelog topics alter` changes the settings of a topic.",
        )  # fmt: skip
    epoch = state.writer.epoch
    config = importer.topics.config(state)
    more = tuple(empty_partition(epoch) for _ in found[len(state.partitions) :])
    parts = state.partitions + more
    additions: dict[int, tuple[Segment, ...]] = {}
    came = []
    for number, (part, each) in enumerate(zip(parts, found, strict=True)):
        _check_continues(importer, state, part, each)
        end, size = part.high_watermark, 0
        later = [segment for segment in each.state.segments if segment.end_offset > end or segment.base_offset >= end]
        has_rolled = bool(later and part.segments) and part.empty_end is None
        if each.state.high_watermark > end or has_rolled:  # otherwise nothing is written: no version would name it
            additions[number] = tuple(
                importer.take(state.topic_id, state.version, each, segment, config, end, epoch)._replace(
                    aborted=tuple(entry for entry in segment.aborted if entry.last_offset >= end)
                )
                for segment in later
            )
            size = sum(segment.size for segment in additions[number])
        came.append(ImportedPartition(end, each.state.high_watermark, size, each.torn))
    if not additions and not more:
        return ImportedTopic(state, False, tuple(came))

    def change(current: TopicState) -> TopicState:
        now = current.partitions + more
        ends = [part.high_watermark for part in now]
        if (
            (current.topic_id, current.deleted, current.writer.epoch) != (state.topic_id, False, epoch)
            or ends != [part.high_watermark for part in parts]
            or current.is_below_sweep_floor(state.version)
        ):  # fmt: skip
            raise ConflictError(
                f"topic {state.topic}",
                "was changed since the import began, or a sweep may have deleted the imported files",
                "Import the topic again.",
            )
        longer = {
            number: _appended(now[number], segments, found[number].state, epoch)
            for number, segments in additions.items()
        }
        dropped = _replaced(current.topic_id, now, additions, importer.topics.clock.now_ms())
        return current.model_copy(update={"partitions": now, "dropped": current.dropped + dropped}).with_partitions(
            longer
        )

    chain = importer.topics.chain(state.topic)
    what = f"imported later batches from {as_text(importer.directory.path)}"
    state = importer.commit(lambda: chain.commit(change, what))
    importer.show_snapshots(state, found)
    return ImportedTopic(state, False, tuple(came))


def _replaced(
    topic_id: str, parts: Sequence[PartitionState], numbers: Iterable[int], now_ms: int
) -> tuple[DroppedFile, ...]:
    """The empty segments at the ends of these partitions. Imported segments replace them."""
    ends = ((number, parts[number].empty_end) for number in numbers)
    return tuple(DroppedFile(topic_id, number, empty.name, now_ms) for number, empty in ends if empty is not None)


def _check_continues(importer: SegmentImporter, state: TopicState, part: PartitionState, found: FoundPartition) -> None:
    """Check that a log contains the same batches as the topic up to the topic's end.

    Raises:
        TopicExistsError: the batches differ, the log ends before the topic, or the two logs have no batches in common.
    """

    def refused(problem: str) -> TopicExistsError:
        return TopicExistsError(
            f"topic {state.topic}, partition {found.name.number}",
            f"already exists, and the log in {importer.directory.path} does not continue the topic: {problem}",
            "Choose one: (1) delete the topic first; (2) import into another root; (3) name all other topics with --topic.",
        )

    end, theirs = part.high_watermark, found.state
    start = max(part.log_start_offset, theirs.log_start_offset)
    if theirs.high_watermark < end:
        raise refused(f"the imported log ends at offset {theirs.high_watermark}, but the topic ends at offset {end}")
    if not end:
        return  # nothing was ever appended
    if start > end or (start == end and found.topic_id != state.topic_id):
        raise refused(
            f"the imported log begins at offset {theirs.log_start_offset}, but the topic ends at offset {end}"
        )
    reader = importer.directory.reader(found)
    ours = [segment_file(state.topic_id, found.name.number, segment) for segment in part.segments]
    batches = _batches(importer.topics.storage, ours, start, end)
    others = _batches(importer.directory.storage, map(reader.segment_file, theirs.segments), start, end)
    for one, other in itertools.zip_longest(batches, others):
        if one != other:
            offset = min(batch.last_offset for batch in (one, other) if batch is not None)
            raise refused(f"the batches up to offset {offset} differ")


class _Batch(NamedTuple):
    """The fields by which two batches are compared. The leader epoch is not compared."""

    last_offset: int
    size: int
    crc: int


def _batches(storage: Storage, files: Iterable[SegmentFile], first_offset: int, end_offset: int) -> Iterator[_Batch]:
    """The batches that end in this range, in order."""
    for file in files:
        if file.end_offset <= first_offset or file.base_offset >= end_offset:
            continue
        for chunk in read_chunks(storage, file, position_of(storage, file, first_offset)):
            ends = chunk.table.last_offsets
            table = chunk.table.select((ends >= first_offset) & (ends < end_offset))
            yield from map(_Batch, table.last_offsets.tolist(), table.sizes.tolist(), table.crcs.tolist())


def _appended(part: PartitionState, segments: Sequence[Segment], found: PartitionState, epoch: int) -> PartitionState:
    """The partition with these segments after its end."""
    end = part.high_watermark
    before = part.segments if part.empty_end is None else part.segments[:-1]
    return part.model_copy(
        update={
            "log_start_offset": part.log_start_offset if end else found.log_start_offset,
            "high_watermark": found.high_watermark,
            "segments": before + tuple(segments),
            "leader_epochs": begin_epoch(part.leader_epochs, epoch, end),
            "producers": found.producers,
        }
    )
