"""Ensures that only one member at a time reads for a group and commits the group's positions.

A member joins with the next generation: it puts a new file for that generation (topic.readers.consumer_files). The
put fails if the file exists, so two members never have the same generation. At first the file has `"joining":true`. A
joining file only fences the members of lower generations. The group's positions are in the **file in use**: of the
files that are not joining, the file of the highest generation.

    join    read the file in use, put the joining file of generation g + 1, and check that no higher generation exists;
            read the file in use again, replace the joining file by a complete file with these positions, and delete the
            files of lower generations
    reset   join with other positions, and check again that no higher generation exists
    commit  check that no higher generation exists, replace the file, and check again

If a check finds a higher generation, a join and a reset begin again, and a commit raises a FencedError. If several
members join at the same time, each join can succeed, but only the member of the highest generation can commit.

**A commit that raises no FencedError is never lost.** Assume that a member commits to file c, which is in use.

- The commit's last check found no higher generation. So the commit replaced file c before file c + 1 was put.
- A member that joins reads the file in use again after its own put. So its complete file contains the positions of
  every commit without an error in lower generations.
- File c stays in use until the file of a higher generation is complete, and no process deletes file c before that. So
  if a joining member dies, or if its put arrives after it has given up, the group continues at the positions in file c.
- A joining member that is overtaken by a higher generation may still complete its file, even much later. But no commit
  follows, because the member is already fenced.
- A fenced member may still replace its file, even after the file was deleted, and then gets a FencedError. If a file of
  a higher generation is complete, the late file is not used. Otherwise the next member continues at the positions in
  the late file, or at the positions before.

The check after the put is necessary, because a number can be used twice. While a process is paused between its listing
and its put, others can use this number and delete its file. Then file c has a higher number than the new file.

Files are read in the order of their generations, the lowest first. If file c is deleted before it is read, then a file
of a higher generation is already complete, and is read next. If this file was not in the listing, the files are listed
again.

After a crash, the next join deletes the files of lower generations. If a process dies during a reset, either all new
positions are stored or none. Each call of a member can be repeated. If only a joining file is left, because the first
member of a group has died or the file in use was removed by hand, the joining file is used. It contains the positions of
the moment at which its member began to join.

Only one thread may use a Membership. Any number of processes may join, commit and reset in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    ConflictError,
    CorruptionError,
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
    MORE_LISTINGS,
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
    """Join a group as its only member. The previous member is fenced. If another member joins at the same time, the
    returned membership may already be fenced, too.

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
    files = _read(storage, state, generations(storage, state.topic, name).values())
    for _ in range(MORE_LISTINGS):
        if files.is_whole:
            break
        files = _read(storage, state, generations(storage, state.topic, name).values())
    return files.used


class _Files(NamedTuple):
    """The files of a group.

    used: the file in use; None if the topic has no such group.
    last: the file of the highest generation, which may be joining.
    is_whole: False if a file was deleted before it was read, or only a joining file was found. Then another member has
        probably joined.
    """

    used: Consumer | None
    last: Consumer | None
    is_whole: bool


def _read(storage: Storage, state: TopicState, keys: Iterable[str]) -> _Files:
    """Read the files of a group. A damaged file is ignored if a complete file of a higher generation exists.

    Args:
        keys: the keys of the files, the lowest generation first.

    Raises:
        CorruptionError: a file that may be in use, or that may be joining, is damaged.
    """
    used = last = None
    damage: CorruptionError | None = None
    is_whole = True
    for key in keys:
        try:
            found = read_consumer(storage, key)
        except CorruptionError as error:
            damage = error
            continue
        if found is None:
            is_whole = False
            continue
        damage = damage if found.joining else None
        if found.topic_id == state.topic_id:
            used, last = found if used is None or used.precedes(found) else used, found
    if damage is not None:
        raise damage
    return _Files(used, last, is_whole and (used is None or not used.joining))


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
    """Put the file of the next generation, complete it, and delete the files of lower generations."""
    check_no_folder(storage, state.topic, name)
    for _ in range(_MOST_ATTEMPTS):
        there = generations(storage, state.topic, name)
        own = max(there, default=0) + 1
        changed = {**changes, "generation": own}
        files = _read(storage, state, there.values())
        for found in filter(None, (files.used, files.last)):
            check_resettable(found, state.topic, now_ms) if idle else _check_kind(found, state.topic)
        before = files.used or Consumer(
            name=name,
            kind=GROUP_KIND,
            topic_id=state.topic_id,
            registered_ms=now_ms,
            updated_ms=now_ms,
            holds_back=False,
        )
        if not _put_new(storage, state.topic, before.model_copy(update={**changed, "joining": True})):
            continue
        there_now = generations(storage, state.topic, name)
        own_key = there_now.pop(own, None)
        if 0 in there_now and not there:  # a consumer without members registered meanwhile: its name is taken
            storage.delete(consumer_key(state.topic, name, own))
            continue
        if own_key is None or max(there_now, default=0) > own:
            continue
        before = _read(storage, state, there_now.values()).used or before  # the previous member may have committed
        claimed = before.model_copy(update={**changed, "joining": False}).moved(state, positions(before), now_ms)
        put_consumer(storage, state.topic, claimed)
        for key in there_now.values():
            storage.delete(key)
        if not idle or max(generations(storage, state.topic, name), default=0) == own:
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
