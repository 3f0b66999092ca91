"""Writes the .snapshot files of the view: a partition's producers at each roll and at its end.

A snapshot contains the producers at its offset when the log was rolled there, and never changes: a snapshot derived
from a compacted log would differ. So the digits of its modification time are a hash of the topic's id, the snapshot's
offset and its size, and an existing snapshot stays as long as a segment begins at its offset. An imported snapshot is
shown unchanged. The last snapshot is made from the state.
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
from storage_engine.storage import FolderEntry, Storage, ViewableStorage
from storage_engine.topic.chain.state import TopicState
from storage_engine.topic.kafka.view_folder import hold_lock, is_shown, view_folder
from storage_engine.topic.readers.reader import segment_file
from storage_engine.topic.topics import Topics


def settle_snapshots(
    storage: ViewableStorage, state: TopicState, number: int, folder: str, there: Mapping[str, FolderEntry]
) -> set[str]:
    """Show the producers at each roll and at the end; returns the names of what is shown.

    What lies between two rolls is read only once, and only where the partition knows producers.
    """
    part = state.partitions[number]
    names: set[str] = set()
    producers: Producers | None = Producers()
    """Those at the end of the segment before; None where they are as shown there."""
    for before, segment in itertools.pairwise(part.segments):
        name = offset_name(segment.base_offset) + SNAPSHOT
        names.add(name)
        entry = there.get(name)
        if entry is not None and _is_snapshot(state, segment.base_offset, entry):
            producers = None
            continue
        if part.producers:
            if producers is None:
                producers = _shown_producers(storage, state, number, folder, before)
            _replay(storage, state, number, before, producers)
        data = encode_snapshot(producers.entries() if part.producers and producers else ())
        # Thousands of snapshots are not worth a sync each: one that a power cut emptied has another time.
        storage.show_bytes(data, f"{folder}/{name}", _snapshot_ns(state, before, segment.base_offset, len(data)))
    last = part.active_segment
    if part.producers or (last is not None and part.high_watermark > part.segments[0].base_offset):
        name = offset_name(part.high_watermark) + SNAPSHOT
        if name in names:  # of the roll to a segment that is still empty
            return names
        names.add(name)
        data = encode_snapshot(part.producers)
        if not is_shown(storage, f"{folder}/{name}", data, there.get(name)):
            time = _snapshot_ns(state, last, part.high_watermark, len(data)) if last is not None else None
            storage.show_bytes(data, f"{folder}/{name}", time)
    return names


def show_snapshots(
    topics: Topics, state: TopicState, number: int, snapshots: Mapping[int, Sequence[ProducerEntry]]
) -> None:
    """Show what another log tells of a partition's producers at the rolls, by offset, before settling would derive it.

    Raises:
        StateError: log/ is not ours.
        StorageError: the storage refused, or a Kafka broker runs on the view.
    """
    storage = topics.storage
    if not isinstance(storage, ViewableStorage):
        return
    folder = view_folder(state.topic, number)
    with hold_lock(storage):
        for before, segment in itertools.pairwise(state.partitions[number].segments):
            offset = segment.base_offset
            if (entries := snapshots.get(offset)) is not None:
                data = encode_snapshot(entries)
                time = _snapshot_ns(state, before, offset, len(data))
                storage.show_bytes(data, f"{folder}/{offset_name(offset)}{SNAPSHOT}", time)


def shown_snapshots(storage: Storage, state: TopicState, number: int) -> dict[int, tuple[ProducerEntry, ...]]:
    """A partition's producers at its rolls, by offset, as far as the view has them. They are of when the log was rolled:
    behind a compaction they cannot be derived, as the first records of a transaction may have gone."""
    if not isinstance(storage, ViewableStorage):
        return {}
    folder = view_folder(state.topic, number)
    there = {entry.name: entry for entry in storage.entries(folder)}
    found = {}
    for segment in state.partitions[number].segments[1:]:
        name = offset_name(segment.base_offset) + SNAPSHOT
        if name in there and _is_snapshot(state, segment.base_offset, there[name]):
            with suppress(CorruptionError, NotFoundError):
                found[segment.base_offset] = decode_snapshot(storage.read(f"{folder}/{name}"), name)
    return found


def _snapshot_ns(state: TopicState, before: Segment, offset: int, size: int) -> int:
    """The time of change of the snapshot at an offset: the segment's that ends there, to the millisecond."""
    return before.modified_ms * 1_000_000 + _snapshot_digits(state, offset, size)


def _snapshot_digits(state: TopicState, offset: int, size: int) -> int:
    return zlib.crc32(f"{state.topic_id} {offset} {size}".encode()) % 1_000_000


def _is_snapshot(state: TopicState, offset: int, entry: FolderEntry) -> bool:
    """Whether this file is the snapshot at this offset, of whatever time."""
    return entry.modified_ns % 1_000_000 == _snapshot_digits(state, offset, entry.size)


def _shown_producers(
    storage: ViewableStorage, state: TopicState, number: int, folder: str, segment: Segment
) -> Producers:
    """The producers at a segment's base offset, from the snapshot that is shown there; where it is damaged from all
    segments before it."""
    key = f"{folder}/{offset_name(segment.base_offset)}{SNAPSHOT}"
    try:
        return Producers(decode_snapshot(storage.read(key), key))
    except (CorruptionError, NotFoundError):
        producers = Producers()
        for earlier in state.partitions[number].segments:
            if earlier.base_offset < segment.base_offset:
                _replay(storage, state, number, earlier, producers)
        return producers


def _replay(storage: Storage, state: TopicState, number: int, segment: Segment, producers: Producers) -> None:
    file = segment_file(state.topic_id, number, segment)
    for chunk in read_chunks(storage, file):
        producers.replay(chunk.data, chunk.table, file.key, chunk.position)
