"""Makes the view. The view is the folder log/ of a root: a Kafka log directory that is derived from the states of all
topics. Updating the view is called settling. People and Kafka's tools read the view. No other job reads the view
instead of the states.

    log/
      orders-0/                         one folder per partition
        00000000000000052110.log        the committed bytes: a hard link to data/<topic id>/0/<name>.log, or a copy
        00000000000000052110.index      as Kafka leaves it in a closed log
        00000000000000052110.timeindex  the same
        00000000000000052110.txnindex   if the segment has markers of aborted transactions
        00000000000000052110.snapshot   the producers at this offset; for each segment except the first, and for the end
        leader-epoch-checkpoint  partition.metadata
      recovery-point-offset-checkpoint  replication-offset-checkpoint
      log-start-offset-checkpoint       cleaner-offset-checkpoint
      meta.properties                   created once
      .lock                             locked by Lakelog's jobs (shared), so that a broker refuses to start here

Settling makes log/ equal to the states, and changes only the files that differ. A .log is a hard link if the file
under data/ has no bytes beyond its committed size. If the file has more bytes, the .log is a copy of the committed
bytes. A linked file grows when an ingest appends, so log/ is equal to the states only until the next append.
topic.kafka.shown_segment and topic.kafka.snapshots describe how settling recognises files that are up to date.

After a crash each file is complete, but some files can belong to an older state, and temporary files can remain. The
next settling makes log/ equal to the states again. Several processes may settle in parallel, even while ingests run.
At the end, each process checks whether the states have changed since it began. If the states have changed, the
process updates log/ again. If one process deletes a temporary file of another process, the other process tries again.
A storage without links (second names of files) has no view.

Settling deletes unknown files from log/, so it first makes sure that log/ is the view of this root
(topic.view_record). If log/ contains later offsets of a topic than the topic's state, the state has lost versions
(topic.witnesses). In this case, settling does not change the folders of this topic in log/.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from storage_engine.errors import (
    AlreadyExistsError,
    CorruptionError,
    LogError,
    NotFoundError,
    StorageAccessError,
    StorageError,
    StorageFullError,
)
from storage_engine.log.checkpoint import (
    FIRST_DIRTY_OFFSETS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOCK,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    MetaProperties,
    decode_meta_properties,
    decode_offsets,
    encode_leader_epochs,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
)
from storage_engine.log.filenames import INDEX, LOG, TIME_INDEX, TRANSACTION_INDEX, data_folder, offset_name
from storage_engine.log.indexes.transaction_index import encode_transaction_index
from storage_engine.log.partition_state import PartitionState
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.storage import FolderEntry, Folders, Storage, View
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.kafka.shown_segment import show_indexes, show_log
from storage_engine.topic.kafka.snapshots import settle_snapshots
from storage_engine.topic.kafka.view_folder import hold_lock, is_shown, view_folder
from storage_engine.topic.readers.reader import segment_file
from storage_engine.topic.topics import Topics, is_root
from storage_engine.topic.view_record import VIEW
from storage_engine.topic.witnesses import shown_offsets
from storage_engine.topic_id import new_topic_id

_Offsets = dict[tuple[str, int], int]
"""Topic and partition to offset."""
_PASSES = 3
"""Settling begins again at most this often because states have changed meanwhile."""
_MOST_PASSES = 12
"""Settling begins again at most this often after errors. Another process that settles at the same time may delete files
that this process has just made.
"""


def settle_committed(topics: Topics, names: Iterable[str], warn: Callable[[str], None]) -> None:
    """Settle the view after a commit to these topics.

    The commit is valid even if the view cannot be settled. So an error is only a warning, and the next settling
    corrects the view.
    """
    try:
        settle(topics, names)
    except LogError as error:
        warn(f"the change is committed, but log/ does not show the change yet: {error}")


def settle(topics: Topics, names: Iterable[str] | None = None, progress: Progress = NO_PROGRESS) -> None:
    """Make the view equal to the newest states. Any process may call this at any time.

    Args:
        names: the topics whose partitions are settled; all by default. Checkpoints and unknown files are always settled
            for all topics.
        progress: receives the bytes of the segments that are settled.

    Raises:
        CorruptionError, NotFoundError: a topic's state cannot be read, or a file is missing or does not have the bytes
            that the state names. All other files were settled.
        StateError: log/ is not the view of this root.
        StorageError: the storage refused, or a Kafka broker runs on the view.
    """
    storage, view = topics.storage, topics.storage.view
    if view is None or not is_root(storage):
        return  # without a root, log/ is not a view
    wanted = None if names is None else set(names)
    chains: dict[str, StateChain] = {}
    problems: list[LogError] = []
    with hold_lock(storage):
        for number in range(1, _MOST_PASSES + 1):
            # This listing must come before the states. So the folder of a topic that is created meanwhile is not
            # deleted.
            there = view.entries(VIEW)
            found, unreadable = topics.states(shown_offsets(storage), chains)
            for error in unreadable.values():
                if not isinstance(error, CorruptionError | StorageAccessError):
                    raise error
            # The files of an unreadable topic remain in the view, because they may be the last record of lost versions.
            states = {state.topic: state for state in found}
            problems = [error for name, error in unreadable.items() if wanted is None or name in wanted]
            problems += _settle_once(topics, view, states, unreadable.keys(), wanted, there, progress)
            if any(_may_be_transient(problem) for problem in problems):
                continue
            if number >= _PASSES or all(chains[name].newest().id == state.id for name, state in states.items()):
                break
    if problems:
        raise problems[0]


def _may_be_transient(problem: LogError) -> bool:
    lasting = (StorageFullError, StorageAccessError)
    return isinstance(problem, StorageError) and not isinstance(problem, lasting)


def _settle_once(
    topics: Topics,
    view: View,
    states: Mapping[str, TopicState],
    unreadable: Collection[str],
    wanted: set[str] | None,
    there: Sequence[FolderEntry],
    progress: Progress,
) -> Iterator[LogError]:
    """Settle the view once; yield the errors.

    Args:
        states: the states of all topics.
        unreadable: topics whose states cannot be read. Their files in the view are not changed.
        wanted: the topics whose partitions are settled; None for all.
        there: the present entries of log/.
    """
    storage = topics.storage
    looked_at = {name: state for name, state in states.items() if wanted is None or name in wanted}
    progress.expect(size=sum(part.size for state in looked_at.values() for part in state.partitions))
    folders = {view_folder(name, number) for name, state in states.items() for number in range(len(state.partitions))}
    small = {
        name: encode_offsets(offsets | _offsets_in_view(storage, name, unreadable))
        for name, offsets in _offsets_shown(states.values()).items()
    }
    for entry in there:
        if entry.is_folder and entry.name.rpartition("-")[0] in unreadable:
            continue
        key = f"{VIEW}/{entry.name}"
        expected = key in folders if entry.is_folder else entry.name in (*small, META_PROPERTIES, LOCK)
        if not expected:
            try:
                _remove(storage, view, key, entry)
            except StorageError as error:
                yield error
    known = {entry.name: entry for entry in there}
    try:
        _ensure_meta_properties(storage)
        # Checkpoints are written before the folders: when a new topic's partition.metadata appears, the checkpoints
        # must have no offsets of a deleted topic of the same name (topic.witnesses).
        for file, data in small.items():
            if not is_shown(storage, f"{VIEW}/{file}", data, known.get(file)):
                storage.replace(f"{VIEW}/{file}", data)
    except LogError as error:
        yield error
    for state in looked_at.values():
        interval_bytes = topics.config(state).index_interval_bytes
        shown: set[int] = set()
        try:
            shown = _show_empty(view, state, known.keys())
        except LogError as error:
            yield error
        for number in range(len(state.partitions)):
            if number in shown:
                continue
            try:
                _settle_partition(storage, view, state, number, interval_bytes, progress)
            except LogError as error:
                yield error


def checkpoints(states: Iterable[TopicState]) -> dict[str, bytes]:
    """Kafka's four checkpoints of these topics, by file name.

    All committed bytes are durable, so the recovery point is the log end offset.
    """
    return {name: encode_offsets(offsets) for name, offsets in _offsets_shown(states).items()}


def _offsets_shown(states: Iterable[TopicState]) -> dict[str, _Offsets]:
    """The offsets in the checkpoints, by file name."""
    ends: _Offsets = {}
    starts: _Offsets = {}
    dirty: _Offsets = {}
    for state in states:
        for number, part in enumerate(state.partitions):
            where = state.topic, number
            ends[where] = part.high_watermark
            if part.segments and part.log_start_offset > part.segments[0].base_offset:
                starts[where] = part.log_start_offset
            if part.first_dirty_offset is not None:
                dirty[where] = part.first_dirty_offset
    return {RECOVERY_POINTS: ends, HIGH_WATERMARKS: ends, LOG_STARTS: starts, FIRST_DIRTY_OFFSETS: dirty}


def _offsets_in_view(storage: Storage, name: str, topics: Collection[str]) -> _Offsets:
    """The offsets of these topics in a checkpoint of the view."""
    key = f"{VIEW}/{name}"
    try:
        shown = decode_offsets(storage.read(key), key) if topics else {}
    except (NotFoundError, CorruptionError):
        return {}
    return {where: offset for where, offset in shown.items() if where[0] in topics}


def _ensure_meta_properties(storage: Storage) -> None:
    key = f"{VIEW}/{META_PROPERTIES}"
    fresh = encode_meta_properties(MetaProperties(cluster_id=new_topic_id(), directory_id=new_topic_id()))
    try:
        decode_meta_properties(storage.read(key), key)
    except NotFoundError:
        try:
            storage.put_new(key, fresh)
        except AlreadyExistsError:
            return  # another process that settles has put a complete file
    except CorruptionError:
        storage.replace(key, fresh)


def _show_empty(view: View, state: TopicState, known: Collection[str]) -> set[int]:
    """Create the folders of empty partitions that have no folder yet; return these partitions.

    A topic may have thousands of them with equal files, so equal folders are made in one call.
    """
    alike: dict[tuple[tuple[str, bytes], ...], list[int]] = {}
    for number, part in enumerate(state.partitions):
        if not (part.segments or part.producers or f"{state.topic}-{number}" in known):
            alike.setdefault(tuple(_small_files(state, part).items()), []).append(number)
    shown: set[int] = set()
    for files, numbers in alike.items():
        folders = [view_folder(state.topic, number) for number in numbers]
        there = set(view.show_folders(dict(files), folders))
        shown |= {number for number in numbers if view_folder(state.topic, number) not in there}
    return shown


def _settle_partition(
    storage: Storage, view: View, state: TopicState, number: int, index_interval_bytes: int, progress: Progress
) -> None:
    folder = view_folder(state.topic, number)
    part = state.partitions[number]
    there = {entry.name: entry for entry in view.entries(folder)}
    for entry in [entry for entry in there.values() if entry.is_folder]:
        _remove(storage, view, f"{folder}/{entry.name}", there.pop(entry.name))
    stored = {entry.name: entry for entry in view.entries(data_folder(state.topic_id, number))}
    for segment in part.segments:
        shown = f"{folder}/{offset_name(segment.base_offset)}"
        file = segment_file(state.topic_id, number, segment)
        show_log(storage, view, file, segment, stored.get(segment.name + LOG), shown, there)
        show_indexes(storage, view, file, segment, index_interval_bytes, shown, there)
        progress.advance(size=segment.size)
    snapshots = settle_snapshots(storage, view, state, number, folder, there)
    small = _small_files(state, part)
    for name, data in small.items():
        # These files are not synced one by one. Settling compares their bytes. If a power cut has emptied a file, the
        # file is written again.
        if not is_shown(storage, f"{folder}/{name}", data, there.get(name)):
            view.show_bytes(data, f"{folder}/{name}")
    expected = small.keys() | {
        offset_name(segment.base_offset) + suffix for segment in part.segments for suffix in (LOG, INDEX, TIME_INDEX)
    }
    for name in there.keys() - expected - snapshots:
        storage.delete(f"{folder}/{name}")


def _small_files(state: TopicState, part: PartitionState) -> dict[str, bytes]:
    """The files that depend only on the state, by name."""
    files = {
        PARTITION_METADATA: encode_partition_metadata(state.topic_id),
        LEADER_EPOCHS: encode_leader_epochs(part.leader_epochs),
    }
    if not part.segments:
        files |= {offset_name(part.log_start_offset) + suffix: b"" for suffix in (LOG, INDEX, TIME_INDEX)}
    return files | {
        offset_name(segment.base_offset) + TRANSACTION_INDEX: encode_transaction_index(segment.aborted)
        for segment in part.segments
        if segment.aborted
    }


def _remove(storage: Storage, folders: Folders, key: str, entry: FolderEntry) -> None:
    if entry.is_folder:
        folders.remove_folder(key)
    else:
        storage.delete(key)
