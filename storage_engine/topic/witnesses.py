"""Finds lost versions: reads the other files of a root that contain how far a topic was, and compares them with its
state.

A chain cannot show by itself that its newest version was deleted or overwritten by an old one. The view and registered
consumers are then ahead of the state. These files, the witnesses, show it:

    log/recovery-point-offset-checkpoint, log/replication-offset-checkpoint     the high watermarks when log/ was settled
    log/log-start-offset-checkpoint, log/<topic>-<partition>/leader-epoch-checkpoint    log start offsets, likewise
    log/<topic>-<partition>/partition.metadata                                  of which topic id
    meta/<topic>/groups/                                                        up to where consumers have read
    meta/<topic>/history/                                                       versions that were rolled up

Each witness is written after every process can read the version behind it. So a process that reads the witnesses first
and the state afterwards finds a state that is at least as far, or a state that has lost versions. The two checkpoints
have the same offsets, and the lower offset counts: one damaged file of the view causes no false alarm. Settling writes
the checkpoints before partition.metadata: a process that reads the id first and the checkpoints afterwards gets no
offsets of a former topic of the same name.

Only reading; for any number of processes in parallel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
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
from storage_engine.storage import Storage, ViewableStorage
from storage_engine.topic.chain.history_file import history_key, read_history_file
from storage_engine.topic.chain.state import TopicState
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.readers.groups import Consumer, all_consumers
from storage_engine.topic.view_record import VIEW, is_on_record

Offsets = Mapping[str, Mapping[int, int]]
"""By topic and by partition. A command that looks at many topics asks for one after another."""
_LOST = (
    "The newest versions of the state are missing. Restore them from a backup, or let `lakelog verify --repair` bring back"
    " what the view still proves. A network file system with a stale cache shows this for a minute at most."
)


@dataclass(frozen=True)
class Ahead:
    """A witness that is further than a state. who: the file or consumer. offset: up to where it has seen records, or from
    where on there are some, which `what` tells."""

    partition: int
    who: str
    offset: int
    what: str
    remedy: str


@dataclass(frozen=True)
class Shown:
    """What the view's checkpoints have: high watermarks, and log start offsets within a segment."""

    ends: Offsets = field(default_factory=dict)
    starts: Offsets = field(default_factory=dict)

    @property
    def topics(self) -> set[str]:
        """The topics that the view shows."""
        return set(self.ends)


@dataclass(frozen=True)
class Witnesses:
    """What was on record in a root at one moment: in the view, and of one topic's consumers."""

    shown: Shown = field(default_factory=Shown)
    consumers: tuple[Consumer, ...] = ()

    def ahead_of(self, state: TopicState) -> Iterator[Ahead]:
        """Those that are further than a state which was read after them, if they are of the same topic id."""
        remedy = f"{_LOST} To go on without the lost versions, delete log/; settling makes it again."
        for what, offsets in ((HIGH_WATERMARKS, self.shown.ends), (LOG_STARTS, self.shown.starts)):
            for number, offset in offsets.get(state.topic, {}).items():
                if offset > _offset_of(state, number, what):
                    yield Ahead(number, f"the view, log/{what},", offset, what, remedy)
        remedy = f"{_LOST} To go on without the lost versions, `lakelog consumers forget` it."
        for consumer in self.consumers:
            for number, position in consumer.positions.items() if consumer.topic_id == state.topic_id else ():
                if position > _offset_of(state, number, HIGH_WATERMARKS):
                    yield Ahead(number, f"consumer {consumer.name!r}", position, HIGH_WATERMARKS, remedy)


def _offset_of(state: TopicState, number: int, what: str) -> int:
    """Where a partition ends or begins; -1 where the state has no such partition."""
    if number >= len(state.partitions):
        return -1
    part = state.partitions[number]
    return part.log_start_offset if what == LOG_STARTS else part.high_watermark


def newest_state(storage: Storage, chain: StateChain, shown: Shown) -> TopicState | None:
    """A topic's newest state, of which no witness knows a later version; None where there is no chain.

    Args:
        shown: what the view showed at some time before.

    Raises:
        CorruptionError: the state is damaged, or a witness is further.
    """
    consumers = all_consumers(storage, chain.topic)
    state = chain.newest_or_none()
    if state is not None and _was_followed(storage, state):
        before, state = state, chain.newest()
        if state.version == before.version:
            raise CorruptionError(
                f"meta/{state.topic}", 0, f"version {state.version + 1}, which the topic's history knows",
                f"version {state.version} as the newest",
                f"{_LOST} To go on without what is lost, move {history_key(state.topic, state.version + 1)} away.",
            )  # fmt: skip
    if state is None or state.deleted or not any(Witnesses(shown, consumers).ahead_of(state)):
        return state
    # Another topic may have taken the name since, so all of it is looked at once more, in this order.
    shown_id = shown_topic_id(storage, chain.topic)
    witnesses = Witnesses(shown_offsets(storage), all_consumers(storage, chain.topic))
    state = chain.newest()
    # A settle that slept may have put back the offsets of a former topic of this name. It has not put back its files.
    shown = witnesses.shown if shown_id == state.topic_id else Shown()
    ends, starts = shown.ends.get(state.topic, {}), shown.starts.get(state.topic, {})
    ends = {number: offset for number, offset in ends.items() if _shows_more(storage, state, number)}
    starts = {
        number: offset for number, offset in starts.items() if shown_start(storage, state.topic, number) >= offset
    }
    witnesses = replace(witnesses, shown=Shown({state.topic: ends}, {state.topic: starts}))
    for ahead in witnesses.ahead_of(state) if not state.deleted else ():
        raise lost_versions(state, ahead)
    return state


def _was_followed(storage: Storage, state: TopicState) -> bool:
    """Whether history knows a version that followed this one."""
    with suppress(CorruptionError):  # damage to history is named by whoever needs history
        changes = read_history_file(storage, state.topic, state.version + 1)
        return changes is not None and changes[state.version + 1].parent == state.id
    return False


def _shows_more(storage: Storage, state: TopicState, number: int) -> bool:
    """Whether the view has bytes of a partition that the state does not name."""
    if not isinstance(storage, ViewableStorage):
        return False
    if number >= len(state.partitions):
        return shown_topic_id(storage, state.topic, number) == state.topic_id
    part = state.partitions[number]
    named = {segment.base_offset: segment.size for segment in part.segments}
    for entry in storage.entries(f"{VIEW}/{state.topic}-{number}"):
        base = entry.name.removesuffix(LOG)
        if entry.name.endswith(LOG) and is_offset_name(base):
            known = named.get(int(base), 0 if int(base) >= part.high_watermark else entry.size)
            if entry.size > known:
                return True
    return False


def lost_versions(state: TopicState, ahead: Ahead) -> CorruptionError:
    """The error that a witness proves."""
    begins_or_ends = "begins" if ahead.what == LOG_STARTS else "ends"
    known = _offset_of(state, ahead.partition, ahead.what)
    has = (
        f"which has {counted(len(state.partitions), 'partition')}"
        if known < 0
        else f"in which it {begins_or_ends} at {known}"
    )
    return CorruptionError(
        f"meta/{state.topic}", 0,
        f"a version in which partition {ahead.partition} {begins_or_ends} at offset {ahead.offset} or later, as"
        f" {ahead.who} knows it",
        f"version {state.version} as the newest, {has}",
        ahead.remedy,
    )  # fmt: skip


def lost_chain(storage: Storage, chain: StateChain) -> CorruptionError | None:
    """What is wrong where the view shows a topic of which there is no version at all: a deleted one has a version that
    says so. None where nothing is."""
    if not is_on_record(storage) or shown_topic_id(storage, chain.topic) is None or any(True for _ in chain.versions()):
        return None
    return CorruptionError(
        f"meta/{chain.topic}", 0, f"the state chain of the topic that {VIEW}/{chain.topic}-0 shows", "no version",
        f"Restore meta/{chain.topic}/ from a backup. To go on without the topic, delete its folders in {VIEW}/.",
    )  # fmt: skip


def shown_start(storage: Storage, topic: str, partition: int) -> int:
    """From where on the leader epochs of the view begin in a partition, -1 where they do not say: at its log start."""
    key = f"{VIEW}/{topic}-{partition}/{LEADER_EPOCHS}"
    try:
        epochs = decode_leader_epochs(storage.read(key), key)
    except (StorageError, CorruptionError):
        return -1
    return epochs[0][1] if epochs else -1


def shown_offsets(storage: Storage) -> Shown:
    """What the view shows: the high watermarks that both of its checkpoints confirm. Nothing where there is no view of
    ours, or a damaged one."""
    if not isinstance(storage, ViewableStorage) or not is_on_record(storage):
        return Shown()
    try:
        one, other, starts = (
            decode_offsets(storage.read(f"{VIEW}/{name}"), f"{VIEW}/{name}")
            for name in (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS)
        )
    except (StorageError, CorruptionError):
        return Shown()
    ends = {where: min(offset, other[where]) for where, offset in one.items() if where in other}
    return Shown(_by_topic(ends), _by_topic(starts))


def _by_topic(offsets: Mapping[tuple[str, int], int]) -> Offsets:
    found: dict[str, dict[int, int]] = {}
    for (topic, number), offset in offsets.items():
        found.setdefault(topic, {})[number] = offset
    return found


def shown_topic_id(storage: Storage, topic: str, partition: int = 0) -> str | None:
    """The id of the topic that the view shows under this name; None where it shows none, or is damaged."""
    key = f"{VIEW}/{topic}-{partition}/{PARTITION_METADATA}"
    try:
        return decode_partition_metadata(storage.read(key), key)
    except (StorageError, CorruptionError):
        return None
