"""Reads and writes list files, which contain the older segments and leader epochs of one partition.

    meta/<topic>/segments/<topic id>.<partition>.<version>.<32 hex digits>.json

Every change writes the whole state, so a state with many segments would be expensive. Therefore only the newest
segments stay in the state, and all older segments are moved to a list file. The file is stored before the first
version that names it, and never changes. The name of the list file contains the number of the first version that
refers to the list. All versions that name the same list are consecutive, because each version takes the list over from
the version before it. From format 2 on, a version also contains the digests of its lists.

If a process crashes after the put of a list and before the put of the list's version, no version names the list.
Pruning deletes such a list. Only one thread may use a SegmentLists.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence

from pydantic import ValidationError

from storage_engine.errors import AlreadyExistsError, AmbiguousPutError, CorruptionError
from storage_engine.log.partition_state import LeaderEpoch, PartitionState, Segment, SegmentList
from storage_engine.storage import Storage, exists
from storage_engine.topic.chain.documents import FORMAT, decode_document, digest_of, encode_document
from storage_engine.topic.chain.topic_state import ListedSegments, TopicState

_NEWEST_SEGMENTS = 32
"""How many segments and leader epochs remain in the document when older ones are moved to a list file."""
_MOST_SEGMENTS = 2 * _NEWEST_SEGMENTS
_A_LIST = "a list of segments"
RESTORE = "`lakelog verify --repair` restores what can be proven. Otherwise restore this file from a backup."
_LIST = re.compile(r"[^./]+\.[0-9]+\.([0-9]+)\.[0-9a-f]{32}\.json")


def list_folder(topic: str) -> str:
    """The folder of a topic's list files, with a slash at its end."""
    return f"meta/{topic}/segments/"


def list_version(key: str) -> int | None:
    """The first version that names a list file; None if the key is not that of a list file."""
    found = _LIST.fullmatch(key.rpartition("/")[2])
    return int(found[1]) if found else None


class SegmentLists:
    """The list files of one topic. For each partition the list that was read or put last is cached in memory."""

    def __init__(self, storage: Storage, topic: str) -> None:
        self._storage = storage
        self._topic = topic
        self._lists: dict[str, dict[str, tuple[tuple[Segment, ...], tuple[LeaderEpoch, ...]]]] = {}
        """By partition and by list name: the list that was read last, and the lists that were stored after it."""

    def spilled(self, state: TopicState, version: int) -> TopicState:
        """The state as it will be put as this version. The list files that the state names are durable on return."""
        parts = tuple(
            self._spill(f"{state.topic_id}.{number}.{version}", part) for number, part in enumerate(state.partitions)
        )
        return state.model_copy(update={"partitions": parts})

    def _spill(self, stem: str, part: PartitionState) -> PartitionState:
        """Move all but the newest segments and epochs to a list file, if there are more than 64 of them."""
        part = drop_unproven_list(part)
        listed = part.listed or SegmentList("", 0, 0)
        if max(len(part.segments) - listed.segments, len(part.leader_epochs) - listed.leader_epochs) <= _MOST_SEGMENTS:
            return part
        segments = part.segments[:-_NEWEST_SEGMENTS]
        epochs = part.leader_epochs[:-_NEWEST_SEGMENTS]
        name = f"{stem}.{uuid.uuid4().hex}"
        key = self._list_key(name)
        data = encode_list(key, segments, epochs)
        self._put_list(key, data)
        self._lists.setdefault(_partition_of(name), {})[name] = segments, epochs
        listed = SegmentList(name, len(segments), len(epochs), digest_of(data) or "")
        return part.model_copy(update={"listed": listed})

    def _put_list(self, key: str, data: bytes) -> None:
        try:
            self._storage.put_new(key, data)
        except (AlreadyExistsError, AmbiguousPutError) as error:
            # The name is random, so only this process can have put the file. If the file exists, it is this list, and
            # the reply of an earlier put was lost.
            if not exists(self._storage, key):
                raise error from None
            self._storage.sync_names(list_folder(self._topic))

    def unspill(self, part: PartitionState, state_format: int) -> PartitionState:
        """A partition of a state document with the content of its list file added. Errors are those of decode_list."""
        if part.listed is None:
            return part
        segments, epochs = self._list(part.listed, state_format)
        return part.model_copy(
            update={"segments": segments + part.segments, "leader_epochs": epochs + part.leader_epochs}
        )

    def _list(self, listed: SegmentList, state_format: int) -> tuple[tuple[Segment, ...], tuple[LeaderEpoch, ...]]:
        known = self._lists.get(_partition_of(listed.name), {})
        if listed.name not in known:
            key = self._list_key(listed.name)
            segments, epochs = decode_list(self._storage, key, listed, state_format)
            known = self._lists[_partition_of(listed.name)] = {listed.name: (segments, epochs)}
        return known[listed.name]

    def _list_key(self, name: str) -> str:
        return f"{list_folder(self._topic)}{name}.json"


def encode_list(key: str, segments: Sequence[Segment], epochs: Sequence[LeaderEpoch]) -> bytes:
    """The bytes of a list file, with the digest."""
    document = {"format": FORMAT, "segments": segments, "leader_epochs": epochs}
    return encode_document(key, json.dumps(document, separators=(",", ":")).encode())


def decode_list(
    storage: Storage, key: str, listed: SegmentList, state_format: int
) -> tuple[tuple[Segment, ...], tuple[LeaderEpoch, ...]]:
    """The segments and leader epochs in a list file.

    Args:
        listed: the state's entry for the list.
        state_format: the format of that state. From format 2 on, the entry contains the digest of the list.

    Raises:
        CorruptionError: the file does not contain the bytes that were stored.
        NotFoundError: there is no such list.
    """
    data = storage.read(key)
    if digest_of(data) != (listed.digest or None) or (state_format == FORMAT and not listed.digest):
        raise CorruptionError(key, 0, f"{_A_LIST} with the digest that the state names", "another digest", RESTORE)
    try:
        found = ListedSegments.model_validate(decode_document(storage, key, data, _A_LIST, RESTORE))
    except ValidationError as error:
        raise CorruptionError(key, 0, _A_LIST, f"{error.error_count()} wrong fields", RESTORE) from error
    if (len(found.segments), len(found.leader_epochs)) != (listed.segments, listed.leader_epochs):
        raise CorruptionError(
            key, 0, f"{listed.segments} segments and {listed.leader_epochs} epochs",
            f"{len(found.segments)} and {len(found.leader_epochs)}", RESTORE,
        )  # fmt: skip
    return found.segments, found.leader_epochs


def without_listed(part: PartitionState) -> PartitionState:
    """The partition as it is in the state document: without the content of its list file."""
    if part.listed is None:
        return part
    segments, epochs = part.segments[part.listed.segments :], part.leader_epochs[part.listed.leader_epochs :]
    return part.model_copy(update={"segments": segments, "leader_epochs": epochs})


def _partition_of(name: str) -> str:
    """The topic id and partition in the name of a list file."""
    return ".".join(name.split(".")[:2])


def drop_listing(part: PartitionState) -> PartitionState:
    """Remove the entry for the list file, because a segment or epoch that may be in the list was changed."""
    return part.model_copy(update={"listed": None})


def drop_unproven_list(part: PartitionState) -> PartitionState:
    """Remove the entry for a list file of format 1, which has no digest. The next put writes a list file with a
    digest."""
    return part if part.listed is None or part.listed.digest else drop_listing(part)
