"""Sweeps a root: deletes the files that no version names or will name, so that files of crashed processes do not stay
forever.

    floor      a version commits that names of new files planned before the floor count no more (TopicState.sweep_floor).
               The floor is the newest version that is lakelog.sweep.delay.ms old, a day by default.
    data/      files of plans below the floor that the state does not name, and has not dropped just now
    staging/   files staged below the floor, but for those that the list of an unfinished micro-batch names
    .tmp-      what a put that died has left under meta/<topic>/, data/<topic id>/, and in the folders that all topics
               share, meta/@transactions/, meta/@imported/, meta/@view/, meta/@broker/ and staging/batches/, once it is as
               old

Clocks decide when a file is deleted, not whether. Each deletion is safe, however long a process is paused:

- **A file under data/ that is named, or may be named one day, stays.** Its name has the version of its plan, and a
  commit that names new files of a plan below the floor is refused: an append is planned again, a compaction discarded,
  an import begun again. So from the floor's version on, the names below the floor only become fewer, and no later state
  names a file below the floor that the newest state does not name. Readers of older versions read files that were named
  then: those are among the dropped files, and are deleted after file.delete.delay.ms (topic.dropped_files).
- **A file under staging/ is never named by a version**: a publish copies the file whole before it commits, and fails if
  the file is missing. A file that a list names is needed to replay the batch, and stays as long as the list.
- **A temporary file** may belong to a put that is still running: then the put fails, or its link was made already and
  holds the bytes.
- **A deleted topic's id** is never given to another topic while the root knows the id, so the files under it can only
  be left-overs.

A crash leaves files for the next sweep; two parallel sweeps delete the same files. A floor is committed only when there
is something to sweep: an idle topic gets no versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from storage_engine.config import LONG_MAX, BrokerConfig
from storage_engine.log.filenames import planned_version
from storage_engine.storage import TEMPORARY, Storage, StoredFile, ViewableStorage
from storage_engine.topic.append.staged_list import STAGED_LISTS, pending_lists
from storage_engine.topic.append.staging import staged_version
from storage_engine.topic.broker_settings import BROKER_SETTINGS
from storage_engine.topic.chain.decisions import TRANSACTIONS
from storage_engine.topic.chain.history import History
from storage_engine.topic.chain.state import TopicState
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.imported_ids import IMPORTED_IDS
from storage_engine.topic.view_record import VIEW_RECORDS


@dataclass(frozen=True)
class Swept:
    """What a sweep did to a topic. files, bytes: how much went, staged and temporary files included."""

    state: TopicState
    files: int = 0
    bytes: int = 0


def sweep_topic(storage: Storage, chain: StateChain, broker: BrokerConfig) -> Swept:
    """Delete what no version names or will name, of a deleted topic as well.

    Raises:
        UnknownTopicError: there is no chain.
        CorruptionError: the state, its history or a list of staged runs is damaged.
        StorageError: the storage refused or failed. In each case what was deleted before stays so.
    """
    due_ms = chain.clock.now_ms() - broker.sweep_delay_ms
    state = chain.newest()
    floor = max(state.sweep_floor, History(storage, chain).written_before(due_ms))
    if next(_unnamed(storage, state, floor), None) is not None:
        state = _raise_floor(chain, floor)
    files = list(_unnamed(storage, state, state.sweep_floor))
    for file in files:
        storage.delete(file.key)
    if isinstance(storage, ViewableStorage):
        own = [f"meta/{state.topic}", *(f"data/{topic_id}" for topic_id in _topic_ids(state))]
        for folder in (*own, TRANSACTIONS, IMPORTED_IDS, VIEW_RECORDS, BROKER_SETTINGS, STAGED_LISTS):
            files += _delete_temporaries(storage, folder, due_ms)
        _remove_staging_folders(storage, state)
    state = _forget_former(storage, chain, state, floor)
    return Swept(state, len(files), sum(file.size for file in files))


def unnamed_files(storage: Storage, state: TopicState) -> Iterator[StoredFile]:
    """The files under data/ and staging/ of a topic that its state does not name, whatever their age: those that a sweep
    will delete one day, and those of appends and cleaning that are under way."""
    return _unnamed(storage, state, LONG_MAX)


def _raise_floor(chain: StateChain, floor: int) -> TopicState:
    def change(state: TopicState) -> TopicState | None:
        return state.model_copy(update={"sweep_floor": floor}) if state.sweep_floor < floor else None

    return chain.commit(change, f"sweep floor {floor}")


def _topic_ids(state: TopicState) -> Iterator[str]:
    yield state.topic_id
    for former in state.former:
        yield former.topic_id


def _unnamed(storage: Storage, state: TopicState, floor: int) -> Iterator[StoredFile]:
    """Files of plans, and staged, below a version, that neither the state names nor a list."""
    named = {(each.topic_id, each.partition, each.name) for each in state.dropped}
    for number, part in enumerate(state.partitions):
        named.update((state.topic_id, number, segment.name) for segment in part.segments)
    for topic_id in _topic_ids(state):
        folder = f"data/{topic_id}/"
        for file in storage.list(folder):
            partition, _, name = file.key.removeprefix(folder).partition("/")
            planned_at = planned_version(name)
            if planned_at is None or planned_at >= floor or not partition.isdecimal():
                continue
            if (topic_id, int(partition), name.rpartition(".")[0]) not in named:
                yield file
    staged = [
        file
        for topic_id in _topic_ids(state)
        for file in storage.list(f"staging/{topic_id}/")
        if (version := staged_version(file.key)) is not None and version < floor
    ]
    if staged:
        listed = {key for listed in pending_lists(storage) for key in listed.files}
        yield from (file for file in staged if file.key not in listed)


def _delete_temporaries(storage: ViewableStorage, folder: str, due_ms: int) -> Iterator[StoredFile]:
    for entry in storage.entries(folder):
        key = f"{folder}/{entry.name}"
        modified_ms = entry.modified_ms
        if entry.is_folder:
            yield from _delete_temporaries(storage, key, due_ms)
        elif entry.name.startswith(TEMPORARY) and modified_ms <= due_ms:
            storage.delete(key)
            yield StoredFile(key, entry.size, modified_ms)


def _remove_staging_folders(storage: ViewableStorage, state: TopicState) -> None:
    """Remove the folders below the floor that are empty; a late file in one of them is nobody's."""
    for topic_id in _topic_ids(state):
        for entry in storage.entries(f"staging/{topic_id}"):
            folder = f"staging/{topic_id}/{entry.name}"
            is_old = entry.is_folder and entry.name.isdecimal() and int(entry.name) < state.sweep_floor
            if is_old and next(storage.list(f"{folder}/"), None) is None:
                storage.remove_folder(folder)


def _forget_former(storage: Storage, chain: StateChain, state: TopicState, floor: int) -> TopicState:
    """Remove the deleted topics that have no files left, and can get no files any more except from a process that was
    paused so long."""
    gone = {
        each
        for each in state.former
        if each.until < floor
        and next(storage.list(f"data/{each.topic_id}/"), None) is None
        and next(storage.list(f"staging/{each.topic_id}/"), None) is None
    }
    if not gone:
        return state

    def change(state: TopicState) -> TopicState | None:
        left = tuple(each for each in state.former if each not in gone)
        return state.model_copy(update={"former": left}) if len(left) < len(state.former) else None

    return chain.commit(change, f"swept {len(gone)} deleted topics of this name")
