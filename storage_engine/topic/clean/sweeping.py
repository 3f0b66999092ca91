"""Sweeps a root: deletes files that no version names, now or later, for example files of crashed processes.

    floor      The sweep first commits a floor (TopicState.sweep_floor): the newest version that is older than
               lakelog.sweep.delay.ms, a day by default. A plan is below the floor if it was made at a version older
               than the floor. After this commit, no other commit names new files of a plan below the floor.
    data/      Deletes files of plans below the floor, unless the state names them or lists them as dropped.
    staging/   Deletes files that were staged below the floor, unless the list of an unfinished micro-batch names them.
    .tmp-*     Deletes temporary files of crashed writers after lakelog.sweep.delay.ms: under meta/<topic>/,
               data/<topic id>/, staging/<topic id>/, staging/batches/, and the folders meta/@... of the root.

The clock decides only how early a file is deleted, and never whether its deletion is safe. Each deletion is safe,
however long a process is paused:

- **A file under data/ remains if a version names the file, or if a later version can name it.** The name of each file
  contains a version: the version at which the file was planned. New files can have been planned at a version below
  the sweep floor. A commit that names such files is refused. Then an append is planned again, a compaction is
  discarded, and an import starts again. So if a file is below the floor and the newest state does not name the file,
  no future state names it. Readers of older versions use files that those versions named. These older files are in
  the list of dropped files, and are deleted after file.delete.delay.ms (topic.dropped_files).
- **A file under staging/ is never named by a version.** A publish copies the file completely before its commit, and
  fails if the file is missing. A file in a list is needed to replay the batch, and remains until the list is deleted.
- **A temporary file** can belong to a put that is still running, or in HDFS to a file that is still being written. If
  the temporary file is deleted, either the writer fails, or the bytes already have their final name.
- **A deleted topic's id** is never used for another topic while the root has a record of the id. So no topic
  uses the files under this id.

If a sweep crashes, the next sweep deletes the remaining files. Two sweeps may run in parallel: they delete the same
files. A floor is committed only if there is a file to delete, so a sweep of an idle topic makes no new version.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from storage_engine.config import LONG_MAX, BrokerConfig
from storage_engine.log.filenames import planned_version
from storage_engine.storage import TEMPORARY, Folders, Storage, StoredFile
from storage_engine.topic.append.staged_list import STAGED_LISTS, pending_lists
from storage_engine.topic.append.staged_run import staged_version
from storage_engine.topic.broker_settings import BROKER_SETTINGS
from storage_engine.topic.chain.documents import ROOT_FOLDER
from storage_engine.topic.chain.history_reader import HistoryReader
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.transaction_files import TRANSACTIONS
from storage_engine.topic.imported_ids import IMPORTED_IDS
from storage_engine.topic.ingest_reports import INGEST_REPORTS
from storage_engine.topic.view_record import VIEW_RECORDS

_OF_ROOT = (TRANSACTIONS, IMPORTED_IDS, VIEW_RECORDS, BROKER_SETTINGS, INGEST_REPORTS, ROOT_FOLDER, STAGED_LISTS)
"""The folders that all topics share. The sweep of each topic deletes temporary files there."""


@dataclass(frozen=True)
class Swept:
    """The result of a sweep for a topic.

    state: the state after the sweep.
    files, bytes: the number and size of the deleted files, including staged and temporary files.
    """

    state: TopicState
    files: int = 0
    bytes: int = 0


def sweep_topic(storage: Storage, chain: StateChain, broker: BrokerConfig) -> Swept:
    """Delete the files of a topic that no version names or will name. The topic may be deleted. After an error, the
    files that were deleted before the error remain deleted.

    Raises:
        UnknownTopicError: there is no chain.
        CorruptionError: the state, its history or a list of staged runs is damaged.
        StorageError: the storage refused or failed.
    """
    due_ms = chain.clock.now_ms() - broker.sweep_delay_ms
    state = chain.newest()
    floor = max(state.sweep_floor, HistoryReader(storage, chain).written_before(due_ms))
    if next(_unnamed(storage, state, floor), None) is not None:
        state = _raise_floor(chain, floor)
    files = list(_unnamed(storage, state, state.sweep_floor))
    for file in files:
        storage.delete(file.key)
    if (folders := storage.folders) is not None:
        own = [f"{parent}/{topic_id}" for topic_id in _topic_ids(state) for parent in ("data", "staging")]
        for folder in (f"meta/{state.topic}", *own, *_OF_ROOT):
            files += _delete_temporaries(storage, folders, folder, due_ms)
        _remove_staging_folders(storage, folders, state)
    state = _forget_former(storage, chain, state, floor)
    return Swept(state, len(files), sum(file.size for file in files))


def unnamed_files(storage: Storage, state: TopicState) -> Iterator[StoredFile]:
    """The files under data/ and staging/ of a topic that its state does not name, of any age. These are files that a
    later sweep will delete, and files of appends and cleaning that are in progress."""
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
    """The files that were planned or staged before version `floor` and are named neither by the state nor by a list."""
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


def _delete_temporaries(storage: Storage, folders: Folders, folder: str, due_ms: int) -> Iterator[StoredFile]:
    for entry in folders.entries(folder):
        key = f"{folder}/{entry.name}"
        modified_ms = entry.modified_ms
        if entry.is_folder:
            yield from _delete_temporaries(storage, folders, key, due_ms)
        elif entry.name.startswith(TEMPORARY) and modified_ms <= due_ms:
            storage.delete(key)
            yield StoredFile(key, entry.size, modified_ms)


def _remove_staging_folders(storage: Storage, folders: Folders, state: TopicState) -> None:
    """Remove the empty staging folders of versions below the floor."""
    for topic_id in _topic_ids(state):
        for entry in folders.entries(f"staging/{topic_id}"):
            folder = f"staging/{topic_id}/{entry.name}"
            is_old = entry.is_folder and entry.name.isdecimal() and int(entry.name) < state.sweep_floor
            if is_old and next(storage.list(f"{folder}/"), None) is None:
                folders.remove_folder(folder)


def _forget_former(storage: Storage, chain: StateChain, state: TopicState, floor: int) -> TopicState:
    """Remove the entries of deleted topics if the topics have no files and were deleted before the floor. Only a
    process that has been paused since that deletion could still write files for these topics.
    """
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
