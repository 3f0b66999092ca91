"""Detects lost versions of a topic's state: compares the state with other files of the root that recorded offsets of
the topic.

The newest version of a state chain can be deleted, or be overwritten by an old version. The state chain alone cannot
show this loss. Other files, the witnesses, then contain later offsets than the state:

    log/recovery-point-offset-checkpoint, log/replication-offset-checkpoint   the high watermarks when log/ was settled
    log/log-start-offset-checkpoint                                           the log start offsets at that time
    log/<topic>-<partition>/leader-epoch-checkpoint                           the log start offset at that time
    log/<topic>-<partition>/partition.metadata                                the topic id at that time
    meta/<topic>/groups/                                                      the positions of registered consumers

If the topic's history contains later versions than the state, the state chain itself reports this.

A witness is written only after the commit of the version whose offsets it contains. So a process first reads the
witnesses, and then the state. The process then finds either a state with the same or later offsets, or a state that
has lost versions. The two checkpoints with high watermarks normally have the same offsets. If the offsets differ, the
lower offset is used, so that one damaged file of the view causes no false alarm. Settling writes the checkpoints
before partition.metadata. So if a topic was deleted and created again, a process that reads the id first, and the
checkpoints second, gets no offsets of the deleted topic.

This module only reads, so any number of processes may use it in parallel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from storage_engine.errors import CorruptionError, StorageError
from storage_engine.log.checkpoint import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    decode_leader_epochs,
    decode_offsets,
    decode_partition_metadata,
)
from storage_engine.log.filenames import LOG, is_offset_name
from storage_engine.quantities import counted
from storage_engine.storage import Storage
from storage_engine.topic.chain.history_file import history_folder
from storage_engine.topic.chain.state_chain import LOST_VERSIONS, StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.readers.consumer_files import Consumer, all_consumers, group_folder
from storage_engine.topic.view_record import VIEW, is_on_record

Offsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and by partition."""


@dataclass(frozen=True)
class AheadWitness:
    """A witness with a later offset than the state.

    witness: the file or the consumer.
    offset: the offset in the witness.
    what: whether the offset is a high watermark or a log start offset; the name of Kafka's checkpoint file.
    """

    partition: int
    witness: str
    offset: int
    what: str
    remedy: str


@dataclass(frozen=True)
class ShownOffsets:
    """The offsets in the view's checkpoints.

    ends: high watermarks.
    starts: log start offsets, of partitions whose log start is inside a segment.
    """

    ends: Offsets = field(default_factory=dict)
    starts: Offsets = field(default_factory=dict)

    @property
    def topics(self) -> set[str]:
        """The topics that the view shows."""
        return set(self.ends)


@dataclass(frozen=True)
class Witnesses:
    """The witnesses at one moment: the offsets in the view, and the consumers of one topic."""

    shown: ShownOffsets = field(default_factory=ShownOffsets)
    consumers: tuple[Consumer, ...] = ()

    def ahead_of(self, state: TopicState) -> Iterator[AheadWitness]:
        """The witnesses with later offsets than a state that was read after them. Consumers with another topic id are
        ignored."""
        remedy = f"{LOST_VERSIONS} To continue without the lost versions, delete log/; settling then writes log/ again."
        for what, offsets in ((HIGH_WATERMARKS, self.shown.ends), (LOG_STARTS, self.shown.starts)):
            for number, offset in offsets.get(state.topic, {}).items():
                if offset > _offset_of(state, number, what):
                    yield AheadWitness(number, f"the view's log/{what}", offset, what, remedy)
        remedy = f"{LOST_VERSIONS} To continue without the lost versions, remove the consumer with `lakelog consumers forget`."
        for consumer in self.consumers:
            for number, position in consumer.positions.items() if consumer.topic_id == state.topic_id else ():
                if position > _offset_of(state, number, HIGH_WATERMARKS):
                    yield AheadWitness(number, f"consumer {consumer.name!r}", position, HIGH_WATERMARKS, remedy)


def _offset_of(state: TopicState, number: int, what: str) -> int:
    """The high watermark or the log start offset of a partition; -1 if the state has no such partition."""
    if number >= len(state.partitions):
        return -1
    part = state.partitions[number]
    return part.log_start_offset if what == LOG_STARTS else part.high_watermark


def newest_state(storage: Storage, chain: StateChain, shown: ShownOffsets) -> TopicState | None:
    """A topic's newest state, after the comparison with the witnesses; None if there is no chain.

    Args:
        shown: the offsets in the view, read at any earlier time.

    Raises:
        CorruptionError: the state is damaged, or a witness has later offsets.
    """
    consumers = all_consumers(storage, chain.topic)
    state = chain.newest_or_none()
    if state is None or state.deleted or not any(Witnesses(shown, consumers).ahead_of(state)):
        return state
    # The topic may have been deleted and created again meanwhile, so everything is read once more, in this order.
    shown_id = shown_topic_id(storage, chain.topic)
    witnesses = Witnesses(shown_offsets(storage), all_consumers(storage, chain.topic))
    state = chain.newest()
    # A process that was paused while it settled may have written the offsets of a deleted topic of this name, but not
    # that topic's files.
    shown = witnesses.shown if shown_id == state.topic_id else ShownOffsets()
    ends, starts = shown.ends.get(state.topic, {}), shown.starts.get(state.topic, {})
    ends = {number: offset for number, offset in ends.items() if _shows_more(storage, state, number)}
    starts = {
        number: offset for number, offset in starts.items() if shown_start(storage, state.topic, number) >= offset
    }
    witnesses = replace(witnesses, shown=ShownOffsets({state.topic: ends}, {state.topic: starts}))
    for ahead in witnesses.ahead_of(state) if not state.deleted else ():
        raise lost_versions(state, ahead)
    return state


def _shows_more(storage: Storage, state: TopicState, number: int) -> bool:
    """Whether the view has bytes of a partition that the state does not name."""
    if storage.view is None:
        return False
    if number >= len(state.partitions):
        return shown_topic_id(storage, state.topic, number) == state.topic_id
    part = state.partitions[number]
    named = {segment.base_offset: segment.size for segment in part.segments}
    for entry in storage.view.entries(f"{VIEW}/{state.topic}-{number}"):
        base = entry.name.removesuffix(LOG)
        if entry.name.endswith(LOG) and is_offset_name(base):
            known = named.get(int(base), 0 if int(base) >= part.high_watermark else entry.size)
            if entry.size > known:
                return True
    return False


def lost_versions(state: TopicState, ahead: AheadWitness) -> CorruptionError:
    """The error for a state with lost versions."""
    begins_or_ends = "begins" if ahead.what == LOG_STARTS else "ends"
    known = _offset_of(state, ahead.partition, ahead.what)
    has = (
        f"which has {counted(len(state.partitions), 'partition')}"
        if known < 0
        else f"in which it {begins_or_ends} at {known}"
    )
    return CorruptionError(
        f"meta/{state.topic}", 0,
        f"a version in which partition {ahead.partition} {begins_or_ends} at offset {ahead.offset} or later, because"
        f" {ahead.witness} has this offset",
        f"version {state.version} as the newest, {has}",
        ahead.remedy,
    )  # fmt: skip


def lost_chain(storage: Storage, chain: StateChain) -> CorruptionError | None:
    """An error if a file shows the topic although no version of its state exists; else None. A deleted topic still has
    versions."""
    topic = chain.topic
    if is_on_record(storage) and shown_topic_id(storage, topic) is not None:
        witness, kept = f"{VIEW}/{topic}-0", f"its folders in {VIEW}/"
    else:
        folders = (group_folder(topic), f"{history_folder(topic)}/")
        file = next((file for folder in folders for file in storage.list(folder)), None)
        if file is None:
            return None
        witness, kept = file.key, f"meta/{topic}/"
    if any(True for _ in chain.versions()):  # read last: another process may just have created the topic
        return None
    return CorruptionError(
        f"meta/{topic}", 0, f"the state chain of the topic that {witness} shows", "no version",
        f"Restore meta/{topic}/ from a backup. To continue without the topic, delete {kept}.",
    )  # fmt: skip


def shown_start(storage: Storage, topic: str, partition: int) -> int:
    """The first offset in a partition's leader-epoch-checkpoint of the view, which is its log start offset; -1 if the
    file is missing, damaged or empty."""
    key = f"{VIEW}/{topic}-{partition}/{LEADER_EPOCHS}"
    try:
        epochs = decode_leader_epochs(storage.read(key), key)
    except (StorageError, CorruptionError):
        return -1
    return epochs[0][1] if epochs else -1


def shown_offsets(storage: Storage) -> ShownOffsets:
    """The offsets in the view: the high watermarks that are in both checkpoints, and the log start offsets. Empty if
    the root has no view, or if a checkpoint is damaged."""
    if storage.view is None or not is_on_record(storage):
        return ShownOffsets()
    try:
        one, other, starts = (
            decode_offsets(storage.read(f"{VIEW}/{name}"), f"{VIEW}/{name}")
            for name in (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS)
        )
    except (StorageError, CorruptionError):
        return ShownOffsets()
    ends = {where: min(offset, other[where]) for where, offset in one.items() if where in other}
    return ShownOffsets(_by_topic(ends), _by_topic(starts))


def _by_topic(offsets: Mapping[tuple[str, int], int]) -> Offsets:
    found: dict[str, dict[int, int]] = {}
    for (topic, number), offset in offsets.items():
        found.setdefault(topic, {})[number] = offset
    return found


def shown_topic_id(storage: Storage, topic: str, partition: int = 0) -> str | None:
    """The topic id in the view under this topic's name; None if there is none, or if the file is damaged."""
    key = f"{VIEW}/{topic}-{partition}/{PARTITION_METADATA}"
    try:
        return decode_partition_metadata(storage.read(key), key)
    except (StorageError, CorruptionError):
        return None
