"""Writes the .snapshot files of the view. These files contain the producers of a partition at each segment roll and at
the end of the log.

A snapshot contains the producers at the time of the roll, and never changes. A snapshot that is rebuilt after a
compaction could be different. So an existing snapshot remains as long as a segment begins at the snapshot's offset.
An up-to-date snapshot is recognised by its modification time: the digits below the millisecond are a hash of the
topic's id, the snapshot's offset and its size. An imported snapshot is copied unchanged. The snapshot at the log end
offset is made from the state.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress

from storage_engine.errors import CorruptionError, NotFoundError
from storage_engine.log.filenames import SNAPSHOT, offset_name
from storage_engine.log.partition_state import Segment
from storage_engine.log.producers.producer_snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from storage_engine.log.producers.producer_state import Producers
from storage_engine.log.segment_reader import read_chunks
from storage_engine.storage import FolderEntry, Storage, View
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.kafka.view_folder import hold_lock, is_shown, view_folder
from storage_engine.topic.readers.reader import segment_file
from storage_engine.topic.topics import Topics


def settle_snapshots(
    storage: Storage, view: View, state: TopicState, number: int, folder: str, there: Mapping[str, FolderEntry]
) -> set[str]:
    """Write the missing snapshots of a partition into the view; return the names of all its snapshots.

    If the partition has producers, the records between two rolls are read once, and all records a second time if the first
    snapshot is missing and the log begins above offset 0. Without producers no records are read.
    """
    part = state.partitions[number]
    names: set[str] = set()
    producers: Producers | None = None
    """The producers at the base offset of `before`; None until they are derived, or if the view has a snapshot with them."""
    for before, segment in itertools.pairwise(part.segments):
        name = offset_name(segment.base_offset) + SNAPSHOT
        names.add(name)
        entry = there.get(name)
        if entry is not None and _is_snapshot(state, segment.base_offset, entry):
            producers = None
            continue
        if part.producers:
            if before is part.segments[0]:
                producers = producers_at_start(storage, state, number)
            elif producers is None:
                producers = _shown_producers(storage, state, number, folder, before)
            _replay(storage, state, number, before, producers)
        data = encode_snapshot(producers.entries() if part.producers and producers else ())
        # Snapshots are not synced one by one. If a power cut has emptied a snapshot, the snapshot has another time, and
        # is written again.
        view.show_bytes(data, f"{folder}/{name}", _snapshot_ns(state, before, segment.base_offset, len(data)))
    last = part.active_segment
    if part.producers or (last is not None and part.high_watermark > part.segments[0].base_offset):
        name = offset_name(part.high_watermark) + SNAPSHOT
        if name in names:  # written above: the last segment is still empty
            return names
        names.add(name)
        data = encode_snapshot(part.producers)
        if not is_shown(storage, f"{folder}/{name}", data, there.get(name)):
            time = _snapshot_ns(state, last, part.high_watermark, len(data)) if last is not None else None
            view.show_bytes(data, f"{folder}/{name}", time)
    return names


def producers_at_start(storage: Storage, state: TopicState, number: int) -> Producers:
    """The producers before the first segment that are still known: those of which no segment has a batch. If the log does
    not begin at offset 0 and has producers, all segments are read."""
    part = state.partitions[number]
    if not part.producers or not part.segments or not part.segments[0].base_offset:
        return Producers()
    later = Producers()
    for segment in part.segments:
        _replay(storage, state, number, segment, later)
    changed = {each.producer_id for each in later.entries()}
    return Producers(each for each in part.producers if each.producer_id not in changed)


def show_snapshots(
    topics: Topics, state: TopicState, number: int, snapshots: Mapping[int, Sequence[ProducerEntry]]
) -> None:
    """Write the snapshots of an imported log into the view, so that settling does not derive them.

    Args:
        snapshots: the producers at the rolls, by offset.

    Raises:
        StateError: log/ is not the view of this root.
        StorageError: the storage refused, or a Kafka broker runs on the view.
    """
    view = topics.storage.view
    if view is None:
        return
    folder = view_folder(state.topic, number)
    with hold_lock(topics.storage):
        for before, segment in itertools.pairwise(state.partitions[number].segments):
            offset = segment.base_offset
            if (entries := snapshots.get(offset)) is not None:
                data = encode_snapshot(entries)
                time = _snapshot_ns(state, before, offset, len(data))
                view.show_bytes(data, f"{folder}/{offset_name(offset)}{SNAPSHOT}", time)


def shown_snapshots(storage: Storage, state: TopicState, number: int) -> dict[int, tuple[ProducerEntry, ...]]:
    """The producers of a partition at its rolls, by offset, for each snapshot in the view. These are the producers at
    the time of the roll. After a compaction they cannot be derived, because the first records of a transaction may be
    deleted.
    """
    if storage.view is None:
        return {}
    folder = view_folder(state.topic, number)
    there = {entry.name: entry for entry in storage.view.entries(folder)}
    found = {}
    for segment in state.partitions[number].segments[1:]:
        name = offset_name(segment.base_offset) + SNAPSHOT
        if name in there and _is_snapshot(state, segment.base_offset, there[name]):
            with suppress(CorruptionError, NotFoundError):
                found[segment.base_offset] = decode_snapshot(storage.read(f"{folder}/{name}"), name)
    return found


def _snapshot_ns(state: TopicState, before: Segment, offset: int, size: int) -> int:
    """The modification time, in nanoseconds, of the snapshot at an offset. The milliseconds of this time are the time
    of change of the segment that ends at the offset.
    """
    return before.modified_ms * 1_000_000 + _snapshot_digits(state, offset, size)


def _snapshot_digits(state: TopicState, offset: int, size: int) -> int:
    return zlib.crc32(f"{state.topic_id} {offset} {size}".encode()) % 1_000_000


def _is_snapshot(state: TopicState, offset: int, entry: FolderEntry) -> bool:
    """Whether this file is the snapshot at this offset. Its milliseconds are not compared."""
    return entry.modified_ns % 1_000_000 == _snapshot_digits(state, offset, entry.size)


def _shown_producers(storage: Storage, state: TopicState, number: int, folder: str, segment: Segment) -> Producers:
    """The producers at a segment's base offset: from the snapshot in the view, or, if that snapshot is damaged, from
    all segments before.
    """
    key = f"{folder}/{offset_name(segment.base_offset)}{SNAPSHOT}"
    try:
        return Producers(decode_snapshot(storage.read(key), key))
    except (CorruptionError, NotFoundError):
        producers = producers_at_start(storage, state, number)
        for earlier in state.partitions[number].segments:
            if earlier.base_offset < segment.base_offset:
                _replay(storage, state, number, earlier, producers)
        return producers


def _replay(storage: Storage, state: TopicState, number: int, segment: Segment, producers: Producers) -> None:
    file = segment_file(state.topic_id, number, segment)
    for chunk in read_chunks(storage, file):
        producers.replay(chunk.data, chunk.table, file.key, chunk.position)
