"""Ensures that only one member at a time reads for a group and commits the group's positions.

A member joins with the next generation: it puts a new file for that generation (topic.readers.consumer_files). The
put fails if the file exists, so two members never have the same generation. Only the file of the highest generation
is used. A member of a lower generation is fenced: a later commit of this member changes a file that is no longer
used.

    join    put the file of generation g + 1 with the positions of g, read g again, delete g
    commit  check that no higher generation exists, replace the file, and check again

The file of generation g is read again after the put. The reason is that the member of generation g can have committed
between the first read and the put. So a commit that raises no FencedError is never lost. After a crash the file of
the highest generation is complete, and the next join deletes the files of lower generations. Each call of a member
writes at most one file, and can be repeated.

Only one thread may use a Membership. Any number of processes may join, commit and reset in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    ConflictError,
    FencedError,
    NotFoundError,
    StateError,
)
from storage_engine.storage import Storage
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.readers.consumer_files import (
    ACTIVE_MS,
    DATABASE_EXPORT_KIND,
    EXPORT_KIND,
    GROUP_KIND,
    STREAM_KIND,
    Consumer,
    check_no_folder,
    consumer_key,
    encode_consumer,
    generations,
    put_consumer,
    read_consumer,
)

_MOST_ATTEMPTS = 100
_Positions = Callable[[Consumer], Mapping[int, int]]


class Membership:
    """The membership of this process in a group on one topic. It ends when another member joins."""

    def __init__(self, storage: Storage, topic: str, consumer: Consumer) -> None:
        self._storage = storage
        self._topic = topic
        self.consumer = consumer

    def commit(self, state: TopicState, positions: Mapping[int, int], now_ms: int) -> None:
        """Store these positions. If they are stored already, nothing is written.

        Raises:
            FencedError: another member has joined, or the group was deleted. It is unknown whether the positions are
            stored.
        """
        if dict(positions) != self.consumer.positions:
            self._put(self.consumer.moved(state, positions, now_ms).model_copy(update={"seen_ms": now_ms}))

    def stay(self, now_ms: int) -> None:
        """Record that the member is still active, if the last such record is not recent. Raises the errors of commit."""
        if now_ms - self.consumer.seen_ms > ACTIVE_MS // 5:
            self._put(self.consumer.model_copy(update={"seen_ms": now_ms}))

    def leave(self) -> None:
        """Leave the group, which then has no member. Raises the errors of commit."""
        self._put(self.consumer.model_copy(update={"member": "", "host": ""}))

    def _put(self, consumer: Consumer) -> None:
        self._check()
        put_consumer(self._storage, self._topic, consumer)
        self.consumer = consumer
        self._check()

    def _check(self) -> None:
        there = generations(self._storage, self._topic, self.consumer.name)
        newest = max(there, default=0)
        if newest != self.consumer.generation:
            raise FencedError(
                f"group {self.consumer.name}, topic {self._topic}",
                f"has generation {newest}, found a member of generation {self.consumer.generation}"
                if there
                else "was deleted",
                "Another reader has joined the group, or its positions were reset. Only one reader at a time can"
                " commit.",
            )


def join(
    storage: Storage,
    state: TopicState,
    name: str,
    member: str,
    host: str,
    now_ms: int,
    *,
    holds_back: bool | None = None,
) -> Membership:
    """Join a group as its only member. The previous member is fenced.

    Args:
        member, host: the names that `lakelog groups describe` shows for the member.
        holds_back: whether cleaning waits for the group; None leaves this unchanged. Cleaning does not wait for a new
            group.

    Raises:
        StateError: the group is an export or a stream, so its positions are stored elsewhere.
        CorruptionError: the group's file is damaged.
        ConflictError: other members joined at the same time, many times in a row.
    """
    changes: dict[str, object] = {"member": member, "host": host, "seen_ms": now_ms}
    if holds_back is not None:
        changes["holds_back"] = holds_back
    consumer = _claim(storage, state, name, lambda found: found.positions, changes, now_ms)
    return Membership(storage, state.topic, consumer)


def set_positions(storage: Storage, state: TopicState, name: str, positions: Mapping[int, int], now_ms: int) -> None:
    """Store these positions for a group that has no active member. The positions of other partitions do not change.

    Raises:
        StateError: a member is active, or the group's positions are decided elsewhere.
        CorruptionError, ConflictError: as in join.
    """
    changes: dict[str, object] = {"member": "", "host": ""}
    _claim(storage, state, name, lambda found: {**found.positions, **positions}, changes, now_ms, idle=True)


def find_group(storage: Storage, state: TopicState, name: str) -> Consumer | None:
    """The consumer of this name; None if the topic has none.

    Raises:
        CorruptionError: its file is damaged.
    """
    check_no_folder(storage, state.topic, name)
    for key in reversed(generations(storage, state.topic, name).values()):
        found = read_consumer(storage, key)
        if found is not None:
            return found if found.topic_id == state.topic_id else None
    return None


def check_resettable(consumer: Consumer, topic: str, now_ms: int) -> None:
    """Refuse to change the positions of a group from outside.

    Raises:
        StateError: a member is active, or the positions are decided elsewhere.
    """
    _check_kind(consumer, topic)
    if consumer.is_active(now_ms):
        seconds = (consumer.seen_ms + ACTIVE_MS - now_ms + 999) // 1000
        raise StateError(
            f"group {consumer.name}, topic {topic}",
            f"has an active member, {consumer.member} on {consumer.host}",
            f"Stop this reader. If the reader was killed, the group counts as inactive in {seconds} seconds.",
        )


def _check_kind(consumer: Consumer, topic: str) -> None:
    if consumer.kind == GROUP_KIND:
        return
    decides = {
        STREAM_KIND: "the checkpoint of a Spark query decides where this stream continues. Change startingOffsets and"
        " use a new checkpoint.",
        DATABASE_EXPORT_KIND: "the database of the exported table decides where the export continues. Use the option"
        " --from-offset of the export.",
        EXPORT_KIND: "the table that is exported decides where the export continues. Restore the table, or export into"
        " a new table.",
    }
    raise StateError(
        f"group {consumer.name}, topic {topic}", f"is of kind {consumer.kind!r}, not {GROUP_KIND!r}",
        "The positions of this consumer cannot be changed here:"
        f" {decides.get(consumer.kind, 'its own program decides them.')}",
    )  # fmt: skip


def _claim(
    storage: Storage,
    state: TopicState,
    name: str,
    positions: _Positions,
    changes: Mapping[str, object],
    now_ms: int,
    *,
    idle: bool = False,
) -> Consumer:
    """Put the file of the next generation, and delete the files of lower generations."""
    check_no_folder(storage, state.topic, name)
    for _ in range(_MOST_ATTEMPTS):
        there = generations(storage, state.topic, name)
        newest = max(there, default=0)
        found = read_consumer(storage, there[newest]) if there else None
        if found is not None and found.topic_id == state.topic_id:
            check_resettable(found, state.topic, now_ms) if idle else _check_kind(found, state.topic)
        else:
            found = None
        before = found or Consumer(
            name=name,
            kind=GROUP_KIND,
            topic_id=state.topic_id,
            registered_ms=now_ms,
            updated_ms=now_ms,
            holds_back=False,
        )
        before = before.model_copy(update={**changes, "generation": newest + 1})
        claimed = before.moved(state, positions(before), now_ms)
        if not _put_new(storage, state.topic, claimed):
            continue
        if found is not None:  # the previous member may have committed since the read
            last = read_consumer(storage, there[newest])
            if last is not None and last.positions != found.positions:
                claimed = claimed.moved(state, positions(last), now_ms)
                put_consumer(storage, state.topic, claimed)
        for key in there.values():
            storage.delete(key)
        now_there = generations(storage, state.topic, name)
        if 0 in now_there and not there:  # a consumer without members registered meanwhile: its name is taken
            storage.delete(consumer_key(state.topic, name, claimed.generation))
        elif max(now_there, default=0) == claimed.generation:
            return claimed
    raise ConflictError(
        f"group {name}, topic {state.topic}",
        f"the group's member changed {_MOST_ATTEMPTS} times in a row while this process tried to join",
        "Try again later.",
    )


def _put_new(storage: Storage, topic: str, consumer: Consumer) -> bool:
    """Whether this process has put the file of a generation."""
    key = consumer_key(topic, consumer.name, consumer.generation)
    data = encode_consumer(key, consumer)
    try:
        storage.put_new(key, data)
    except AlreadyExistsError:
        return False
    except AmbiguousPutError as unclear:
        try:
            if storage.read(key) != data:
                return False
        except NotFoundError:
            raise unclear from None
        storage.sync_names(key.rpartition("/")[0])
    return True
