"""Prunes old versions: rolls up into history what they did, then deletes them, oldest first.

    roll up   versions that count, a hundred at a time, into a file of history_file. A hundred is rolled up as soon as it
              is complete, long before it is deleted.
    retire    version 0 gives way to a file without an id (state_chain says why).
    delete    versions 1, 2, 3 ... one by one: only those that are rolled up, and never the newest thousand. Before any of a
              hundred goes its file is read once: a damaged one is derived anew, as long as that can be done.
    lists     of segments: those that only deleted versions named.

Ingests, readers, cleaners and other pruners may run during pruning, for these reasons.

- **History is right and whole.** The file of a hundred versions is put once, and a version of it is deleted only when
  the file exists. So before the file is put none of its versions is missing, and the versions read under those names
  are the ones that counted: a process that was paused can put a version only where one is missing. A second pruner
  finds the name taken. The same holds for a file that is still damaged after its versions were read: none of them was
  deleted, so the versions that were read counted.
- **A hole begins after version 0 and has no gaps.** A version in the hole does not count, because the version before it
  is missing or has another id. That holds after a power cut, too: the folder is synced before each deletion, so that
  every earlier deletion is durable. A writer that was paused may leave its version in the hole; the next pruning
  deletes that version.
- **A reader** whose version is deleted during the read finds the version missing afterwards, and begins again with a
  listing.
- **A list file** is named by consecutive versions, and its name contains the first of them. If that first version is
  deleted and the oldest remaining version does not name the list, no version names it or ever will. Pruning ignores a
  list whose first version does not exist yet or is new.

After a crash the next run continues from the point that was reached. Clocks play no part.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile

from storage_engine.errors import AlreadyExistsError, AmbiguousPutError, CorruptionError, LogError
from storage_engine.storage import Storage
from storage_engine.topic.chain.history_file import (
    VersionChange,
    change_of,
    encode_history,
    file_end,
    file_start,
    history_folder,
    history_key,
    is_rolled_up,
    read_history_file,
)
from storage_engine.topic.chain.segment_lists import list_folder, list_version
from storage_engine.topic.chain.state_chain import StateChain, version_key

KEPT_VERSIONS = 1000
"""How many versions stay at least: so long a process may sleep and still find its own."""
_EVERY = 25
_STEPS_A_COMMIT = 3
_STEPS_AT_THE_END = 300


@dataclass
class Pruned:
    """What pruning did: versions rolled up, versions deleted, list files deleted."""

    rolled_up: int = 0
    versions: int = 0
    lists: int = 0


def prune(storage: Storage, chain: StateChain, keep: int = KEPT_VERSIONS) -> Pruned:
    """Roll up and delete all versions of a topic that are due.

    Args:
        keep: how many of the newest versions stay, two at least. Version 0's name stays besides.

    Raises:
        UnknownTopicError: there is no chain.
        CorruptionError: a version is missing or damaged; what was done before stays done.
        StorageError: the storage refused or failed; likewise.
    """
    pruned = Pruned()
    for _ in pruning_steps(storage, chain, pruned, keep):
        pass
    return pruned


def pruning_steps(storage: Storage, chain: StateChain, pruned: Pruned, keep: int = KEPT_VERSIONS) -> Iterator[None]:
    """Like prune, but stops after each small step: the caller's iteration decides when the next step is taken, if ever.

    Args:
        pruned: counts what is done.
    """
    assert keep >= 2, "the newest version counts only if the one before it is there"
    newest = chain.newest().version
    end = yield from _roll_up(storage, chain, newest, pruned)
    # The last one that is rolled up stays: the next hundred is told by the difference to it.
    last = min(newest - keep, end - 2)
    if last < 1:
        return
    # What another rolled up, and died or was slower, may not be durable yet, and the deletions rely on it.
    storage.sync_names(history_folder(chain.topic))
    # What this listing does not show any more is missing for good once the folder is synced.
    due = [version for version in takewhile(lambda version: version <= last, chain.versions()) if version]
    readable = -1
    if due:  # before version 0 goes, of which the first file tells, too
        readable = yield from _ensure_readable(storage, chain, due[0])
    chain.retire_first()
    for version in due:
        # The first change of the next hundred is told by the difference to this version.
        if file_start(version + 1) > readable:
            readable = yield from _ensure_readable(storage, chain, version + 1)
        storage.sync_names(f"meta/{chain.topic}")
        storage.delete(version_key(chain.topic, version))
        pruned.versions += 1
        yield
    yield from _delete_lists(storage, chain, last, pruned)


def _roll_up(storage: Storage, chain: StateChain, newest: int, pruned: Pruned) -> Generator[None, None, int]:
    """Roll up every complete hundred; returns the first version that is not rolled up."""
    start = file_start(newest)
    while start and not is_rolled_up(storage, chain.topic, start - 1) and chain.at(start - 1) is not None:
        start = file_start(start - 1)
        yield
    while file_end(start) <= newest + 1:
        changes = yield from _changes(storage, chain, start)
        if changes is not None:
            pruned.rolled_up += _put_history(storage, chain.topic, start, changes)
            yield
        start = file_end(start)
    return start


def _changes(storage: Storage, chain: StateChain, start: int) -> Generator[None, None, list[VersionChange] | None]:
    """What a hundred versions did; None where another pruner was faster and they may be gone already."""
    changes: list[VersionChange] = []
    before = chain.at(start - 1) if start else None
    for version in range(start, file_end(start)):
        state = chain.at(version)
        if state is None and before is None and start:
            continue  # deleted by hand, as nobody rolled them up
        if state is None or (before is not None and state.parent != before.id):
            if is_rolled_up(storage, chain.topic, start):
                return None
            raise CorruptionError(
                version_key(chain.topic, version), 0, "the version that follows the one before", "none",
                "Restore it from a backup; until then the versions from there on are not pruned.",
            )  # fmt: skip
        changes.append(change_of(before, state))
        before = state
        yield
    return changes


def _put_history(storage: Storage, topic: str, start: int, changes: list[VersionChange]) -> int:
    """Put a file of history; returns how many versions it tells of, 0 where it was there."""
    try:
        key = history_key(topic, start)
        storage.put_new(key, encode_history(key, changes))
        return len(changes)
    except (AlreadyExistsError, AmbiguousPutError):
        if not is_rolled_up(storage, topic, start):
            raise
    return 0


def _ensure_readable(storage: Storage, chain: StateChain, version: int) -> Generator[None, None, int]:
    """See to it that the file that tells of a version can be read, while it can still be derived anew; returns the first
    version of that file.

    Raises:
        CorruptionError: it is damaged, and not all of its versions are there any more.
    """
    start = file_start(version)
    try:
        read_history_file(storage, chain.topic, start)
    except CorruptionError as damage:
        is_whole = not start or chain.at(start - 1) is not None
        changes = (yield from _changes(storage, chain, start)) if is_whole else None
        try:
            read_history_file(storage, chain.topic, start)  # another pruner may have been faster
        except CorruptionError:
            if changes is None or len(changes) < file_end(start) - start:
                raise damage.with_remedy(
                    "Restore this file from a backup. Not all of its versions are there to derive it anew, and until then"
                    " those that are left, and all behind them, are not pruned."
                ) from damage
            key = history_key(chain.topic, start)
            storage.replace(key, encode_history(key, changes))
    return start


def _delete_lists(storage: Storage, chain: StateChain, last: int, pruned: Pruned) -> Iterator[None]:
    """Delete the lists that versions up to `last`, which are deleted, named and none behind them."""
    file = read_history_file(storage, chain.topic, last + 1)
    oldest = chain.at(last + 1)
    if file is None or oldest is None or oldest.id != file[oldest.version].id:
        return  # another pruner is further, and does this
    named = {part.listed.name for part in oldest.partitions if part.listed}
    folder = list_folder(chain.topic)
    for listed in list(storage.list(folder)):
        version = list_version(listed.key)
        if version is None or version > last or listed.key[len(folder) : -len(".json")] in named:
            continue
        storage.delete(listed.key)
        pruned.lists += 1
        yield


def derived_history(storage: Storage, chain: StateChain, start: int) -> bytes | None:
    """The bytes of the history file that begins with this version, from its versions; None where not all are there.

    Raises:
        CorruptionError: one of them is damaged.
    """
    if start and chain.at(start - 1) is None:
        return None
    changes: list[VersionChange] | None = None

    def taken() -> Iterator[None]:
        nonlocal changes
        changes = yield from _changes(storage, chain, start)

    for _ in taken():
        pass
    if changes is None or len(changes) < file_end(start) - start:
        return None
    return encode_history(history_key(chain.topic, start), changes)


class PruningShare:
    """A writer's share of the pruning: a few steps a commit, so that versions stay few where no maintenance runs.

    Every so many versions a pruning is begun, and each commit takes it a little further; the end of the writer a little
    more, which is what prunes where each append is a process of its own. Commits cost the same however long the chain
    is, and none fails because of this: what goes wrong here, maintenance meets again and tells. For one thread.
    """

    def __init__(self, storage: Storage, chain: StateChain, keep: int = KEPT_VERSIONS) -> None:
        self._storage = storage
        self._chain = chain
        self._keep = keep
        self._steps: Iterator[None] | None = None
        self._due: int | None = None

    def committed(self, version: int) -> None:
        """Do a share. To be called after each commit."""
        if self._due is None:
            self._due = -(-version // _EVERY) * _EVERY
        if self._steps is None and version >= self._due:
            self._due = (version // _EVERY + 1) * _EVERY
            self._steps = pruning_steps(self._storage, self._chain, Pruned(), self._keep)
        self._take(_STEPS_A_COMMIT)

    def close(self) -> None:
        """Bring what was begun further, if not to its end."""
        self._take(_STEPS_AT_THE_END)
        self._steps = None

    def _take(self, most: int) -> None:
        if self._steps is None:
            return
        try:
            if len(list(islice(self._steps, most))) < most:
                self._steps = None
        except LogError:
            self._steps = None
