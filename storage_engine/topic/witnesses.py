"""What else in a root knows how far a topic is: where its newest versions are missing, these show it.

A chain cannot show by itself that its newest version was deleted or overwritten by an old one. The view and registered
consumers are further then than the state:

    log/recovery-point-offset-checkpoint, log/replication-offset-checkpoint     the high watermarks when log/ was settled
    log/<topic>-<partition>/partition.metadata                                  of which topic id
    meta/<topic>/groups/                                                        up to where consumers have read
    meta/<topic>/history/                                                       versions that were rolled up

Each is written after the version that it rests on can be seen by everybody. So whoever reads the witnesses first and the
state afterwards finds a state that is at least as far, or one that has lost versions. The two checkpoints have the same
offsets, and the lower one counts: one damaged file of the view accuses nobody. Settling writes the checkpoints before
partition.metadata: whoever reads the id first and the checkpoints afterwards has no offsets of a former topic of the name.

Only reading; for any number of processes at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from storage_engine.checkpoint import (
    HIGH_WATERMARKS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    decode_offsets,
    decode_partition_metadata,
)
from storage_engine.errors import CorruptionError, StorageError
from storage_engine.log.filenames import LOG, is_offset_name
from storage_engine.storage import Storage, ViewableStorage
from storage_engine.topic.groups import Consumer, all_consumers
from storage_engine.topic.history_file import history_key, read_history_file
from storage_engine.topic.state import TopicState
from storage_engine.topic.state_chain import StateChain
from storage_engine.topic.view_record import VIEW, is_on_record

Offsets = Mapping[tuple[str, int], int]
"""Topic and partition to offset."""
_LOST = (
    "The newest versions of the state are missing. Restore them from a backup, or let `lakelog verify --repair` bring back"
    " what the view still proves. A network file system with a stale cache shows this for a minute at most."
)


@dataclass(frozen=True)
class Ahead:
    """A witness that is further than a state. who: the file or consumer. offset: up to where it has seen records."""

    partition: int
    who: str
    offset: int
    remedy: str


@dataclass(frozen=True)
class Witnesses:
    """What was on record in a root at one moment.

    shown: the high watermarks in the view, by topic and partition.
    consumers: those of one topic.
    """

    shown: Offsets = field(default_factory=dict)
    consumers: tuple[Consumer, ...] = ()

    def ahead_of(self, state: TopicState) -> Iterator[Ahead]:
        """Those that are further than a state which was read after them, if they are of the same topic id."""
        for number, part in enumerate(state.partitions):
            shown = self.shown.get((state.topic, number), 0)
            if shown > part.high_watermark:
                remedy = f"{_LOST} To go on without what is lost, delete log/, which is made again."
                yield Ahead(number, f"the view, log/{HIGH_WATERMARKS},", shown, remedy)
        for consumer in self.consumers:
            for number, position in consumer.positions.items() if consumer.topic_id == state.topic_id else ():
                if number >= len(state.partitions) or position > state.partitions[number].high_watermark:
                    remedy = f"{_LOST} To go on without what is lost, `lakelog consumers forget` it."
                    yield Ahead(number, f"consumer {consumer.name!r}", position, remedy)


def newest_state(storage: Storage, chain: StateChain, shown: Offsets) -> TopicState | None:
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
    witnesses = Witnesses(shown_ends(storage), all_consumers(storage, chain.topic))
    state = chain.newest()
    if shown_id != state.topic_id:
        witnesses = replace(witnesses, shown={})
    # A settle that slept may have put back the offsets of a former topic of this name. It has not put back its files.
    bytes_shown = {where: offset for where, offset in witnesses.shown.items() if _shows_more(storage, state, where)}
    witnesses = replace(witnesses, shown=bytes_shown)
    for ahead in witnesses.ahead_of(state) if not state.deleted else ():
        raise lost_versions(state, ahead)
    return state


def _was_followed(storage: Storage, state: TopicState) -> bool:
    """Whether history knows a version that followed this one."""
    with suppress(CorruptionError):  # damage to history is named by whoever needs history
        changes = read_history_file(storage, state.topic, state.version + 1)
        return changes is not None and changes[state.version + 1].parent == state.id
    return False


def _shows_more(storage: Storage, state: TopicState, where: tuple[str, int]) -> bool:
    """Whether the view has bytes of a partition that the state does not name."""
    topic, number = where
    if topic != state.topic or number >= len(state.partitions) or not isinstance(storage, ViewableStorage):
        return False
    part = state.partitions[number]
    named = {segment.base_offset: segment.size for segment in part.segments}
    for entry in storage.entries(f"{VIEW}/{topic}-{number}"):
        base = entry.name.removesuffix(LOG)
        if entry.name.endswith(LOG) and is_offset_name(base):
            known = named.get(int(base), 0 if int(base) >= part.high_watermark else entry.size)
            if entry.size > known:
                return True
    return False


def lost_versions(state: TopicState, ahead: Ahead) -> CorruptionError:
    """The error that a witness proves."""
    end = state.partitions[ahead.partition].high_watermark if ahead.partition < len(state.partitions) else 0
    return CorruptionError(
        f"meta/{state.topic}", 0,
        f"a version in which partition {ahead.partition} ends at offset {ahead.offset} or later, as {ahead.who} knows it",
        f"version {state.version} as the newest, in which it ends at {end}", ahead.remedy,
    )  # fmt: skip


def shown_ends(storage: Storage) -> dict[tuple[str, int], int]:
    """The high watermarks that both checkpoints of the view confirm; nothing where there is no view of ours, or a damaged
    one."""
    if not isinstance(storage, ViewableStorage) or not is_on_record(storage):
        return {}
    try:
        one, other = (
            decode_offsets(storage.read(f"{VIEW}/{name}"), f"{VIEW}/{name}")
            for name in (RECOVERY_POINTS, HIGH_WATERMARKS)
        )
    except (StorageError, CorruptionError):
        return {}
    return {where: min(offset, other[where]) for where, offset in one.items() if where in other}


def shown_topic_id(storage: Storage, topic: str) -> str | None:
    """The id of the topic that the view shows under this name; None where it shows none, or is damaged."""
    key = f"{VIEW}/{topic}-0/{PARTITION_METADATA}"
    try:
        return decode_partition_metadata(storage.read(key), key)
    except (StorageError, CorruptionError):
        return None
