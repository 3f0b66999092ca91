"""Prunes old versions of a topic's state: writes the changes of the versions into history files, and then deletes the
versions, oldest first.

    roll up   The changes of a hundred valid versions are written into one history file (history_file) as soon as the
              hundred is complete, long before the versions are deleted.
    retire    Version 0 is replaced by a file without an id (state_chain gives the reason).
    delete    Versions 1, 2, 3 ... are deleted one by one, if they are rolled up, but never the newest thousand. Before
              the first version of a hundred is deleted, the history file of the hundred is read once. If the history
              file is damaged and all its versions still exist, the file is rebuilt from these versions.
    lists     A list file of segments is deleted if all versions that named it are deleted.

Ingests, readers, cleaners and other pruners may run during pruning, because these rules hold:

- **A history file is correct and complete.** The file of a hundred versions is stored once, and none of these
  versions is deleted before the file exists. A paused process can put a version only under the name of a missing
  version. So until the history file is stored, the versions under these names are the valid versions. A second pruner
  finds that the history file exists. If a pruner finds that the history file is damaged, the pruner reads all hundred
  versions, and then checks the file once more. If the file is still damaged, no pruner has deleted any of these
  versions, and the versions that were read are valid.
- **The deleted versions are consecutive: they form one hole, which begins directly after version 0.** A version in
  the hole is not valid, because the version before it is missing or has another id. The deleted versions stay
  consecutive even after a power cut: the folder is synced before each deletion, so every earlier deletion is durable.
  A paused writer can leave its version in the hole. The next pruning deletes this version.
- **A reader** checks after its read whether the version still exists. If the version was deleted during the read, the
  reader begins again with a listing.
- **A list file** belongs to consecutive versions, and all of them name the list file. Its file name contains the
  number of the first of these versions. If the first of these versions is deleted, and the oldest remaining version
  does not name the list, no other version names the list, now or later. Pruning ignores a list if the first version
  of the list must not be deleted yet, or does not exist yet.

After a crash, the next run continues the work. No decision depends on a clock.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
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
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.version_files import version_key

KEPT_VERSIONS = 1000
"""How many of the newest versions are never deleted. A paused process still finds its own version if fewer versions
were committed during the pause.
"""
_EVERY = 25
_STEPS_A_COMMIT = 3
_STEPS_AT_THE_END = 300


@dataclass
class Pruned:
    """The result of pruning: the number of versions rolled up, versions deleted, and list files deleted."""

    rolled_up: int = 0
    versions: int = 0
    lists: int = 0


def prune(storage: Storage, chain: StateChain, keep: int = KEPT_VERSIONS) -> Pruned:
    """Roll up and delete all versions of a topic that are due.

    Args:
        keep: how many of the newest versions are not deleted, at least two. The name of version 0 always remains.

    Raises:
        UnknownTopicError: there is no chain.
        CorruptionError: a version is missing or damaged. Earlier steps of this pruning remain done.
        StorageError: the storage refused or failed. Earlier steps of this pruning remain done.
    """
    pruned = Pruned()
    for _ in pruning_steps(storage, chain, pruned, keep):
        pass
    return pruned


def pruning_steps(storage: Storage, chain: StateChain, pruned: Pruned, keep: int = KEPT_VERSIONS) -> Iterator[None]:
    """Like prune, but in small steps. Each iteration does one step, and the caller may stop after any step.

    Args:
        pruned: is updated after each step.
    """
    assert keep >= 2, "the newest version counts only if the version before it exists"
    newest = chain.newest().version
    end = yield from _roll_up(storage, chain, newest, pruned)
    # The last version that is rolled up is not deleted: the first change of the next hundred is the difference to this
    # version.
    last = min(newest - keep, end - 2)
    if last < 1:
        return
    # Another pruner may have put history files and not synced the folder. Versions may only be deleted after that sync.
    storage.sync_names(history_folder(chain.topic))
    # Versions that are missing in this listing were deleted. The first sync of the chain's folder makes that durable.
    due = [version for version in takewhile(lambda version: version <= last, chain.versions()) if version]
    readable = -1
    if due:  # before version 0 is replaced, because the first history file is derived from it, too
        readable = yield from _ensure_readable(storage, chain, due[0])
    chain.retire_first()
    for version in due:
        # The first change of the next hundred is the difference to this version, so that file is checked first.
        if file_start(version + 1) > readable:
            readable = yield from _ensure_readable(storage, chain, version + 1)
        storage.sync_names(f"meta/{chain.topic}")
        storage.delete(version_key(chain.topic, version))
        pruned.versions += 1
        yield
    yield from _delete_lists(storage, chain, last, pruned)


def _roll_up(storage: Storage, chain: StateChain, newest: int, pruned: Pruned) -> Generator[None, None, int]:
    """Roll up every complete hundred of versions; return the first version that is not rolled up."""
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
    """The changes of a hundred versions; None if another pruner has rolled them up and deleted some of them."""
    changes: list[VersionChange] = []
    before = chain.at(start - 1) if start else None
    for version in range(start, file_end(start)):
        state = chain.at(version)
        if state is None and before is None and start:
            continue  # deleted by hand: a pruner would have rolled it up before the deletion
        if state is None or (before is not None and state.parent != before.id):
            if is_rolled_up(storage, chain.topic, start):
                return None
            raise CorruptionError(
                version_key(chain.topic, version), 0, "a version that names its predecessor as its parent",
                "no such version",
                "Restore this version from a backup."
                " Until this version is restored, neither it nor any later version is pruned.",
            )  # fmt: skip
        changes.append(change_of(before, state))
        before = state
        yield
    return changes


def _put_history(storage: Storage, topic: str, start: int, changes: list[VersionChange]) -> int:
    """Put a history file; return the number of versions in it, or 0 if the file already existed."""
    try:
        key = history_key(topic, start)
        storage.put_new(key, encode_history(key, changes))
        return len(changes)
    except (AlreadyExistsError, AmbiguousPutError):
        if not is_rolled_up(storage, topic, start):
            raise
    return 0


def _ensure_readable(storage: Storage, chain: StateChain, version: int) -> Generator[None, None, int]:
    """Check the history file that contains a version. If the file is damaged, rebuild it from the versions. Return the
    first version of the file.

    Raises:
        CorruptionError: the file is damaged, and not all of its versions still exist.
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
                    "Restore this file from a backup. It cannot be rebuilt, because some of its versions are"
                    " already deleted. Until this file is restored, the remaining versions and all later"
                    " versions are not pruned."
                ) from damage
            key = history_key(chain.topic, start)
            storage.replace(key, encode_history(key, changes))
    return start


def _delete_lists(storage: Storage, chain: StateChain, last: int, pruned: Pruned) -> Iterator[None]:
    """Delete the list files that only versions up to `last` named. These versions are deleted already."""
    file = read_history_file(storage, chain.topic, last + 1)
    oldest = chain.at(last + 1)
    if file is None or oldest is None or oldest.id != file[oldest.version].id:
        return  # another pruner has deleted more versions, and deletes these list files
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
    """The bytes of the history file that begins with this version, derived from the versions; None if one of the
    versions is missing.

    Raises:
        CorruptionError: one of these versions is damaged.
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
    """Prunes a few versions with each commit of a writer, so that the number of versions stays bounded without
    maintenance.

    A new pruning begins every 25 versions. Each commit does at most 3 steps of this pruning. Closing the writer does at
    most 300 more steps. The steps at the end matter if each append runs in a separate process. The cost per commit does
    not grow with the length of the chain. An error during pruning is ignored, so that no commit fails because of the
    error. Maintenance gets the same error and reports it. Only one thread may use a PruningShare.

    In a storage in which each request takes long, the steps run in a thread, so the caller does not wait for them. Only
    the next call of `committed` waits, if these steps are not done by then.
    """

    def __init__(self, storage: Storage, chain: StateChain, keep: int = KEPT_VERSIONS) -> None:
        self._storage = storage
        self._chain = chain
        self._keep = keep
        self._steps: Iterator[None] | None = None
        self._due: int | None = None
        self._thread = ThreadPoolExecutor(1) if storage.reads_at_once > 1 else None
        self._running: Future[None] | None = None

    def committed(self, version: int) -> None:
        """Do a few steps, or begin to do them. The writer calls this after each commit."""
        if self._due is None:
            self._due = -(-version // _EVERY) * _EVERY
        self._wait()
        if self._steps is None and version >= self._due:
            self._due = (version // _EVERY + 1) * _EVERY
            # A chain belongs to one thread.
            chain = StateChain(self._storage, self._chain.topic, self._chain.clock) if self._thread else self._chain
            self._steps = pruning_steps(self._storage, chain, Pruned(), self._keep)
        if self._thread is None:
            self._take(_STEPS_A_COMMIT)
        elif self._steps is not None:
            with suppress(RuntimeError):  # no thread can be started; a later call goes on
                self._running = self._thread.submit(self._take, _STEPS_A_COMMIT)

    def close(self) -> None:
        """Do more steps of the pruning that is in progress. The pruning may remain incomplete."""
        self._wait()
        self._take(_STEPS_AT_THE_END)
        self._steps = None
        if self._thread is not None:
            self._thread.shutdown()

    def _wait(self) -> None:
        """Wait for the steps that run in the thread. An error that is not a LogError is raised here."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def _take(self, most: int) -> None:
        if self._steps is None:
            return
        try:
            if len(list(islice(self._steps, most))) < most:
                self._steps = None
        except LogError:
            self._steps = None
