"""The view: log/ as a Kafka log directory and nothing else, derived from the state and never an authority.

    log/
      orders-0/                         one folder per partition
        00000000000000052110.log        the committed bytes: a hard link to data/<topic id>/0/<name>.log, or a copy
        00000000000000052110.index      as Kafka leaves them in a log that was closed
        00000000000000052110.timeindex
        00000000000000052110.txnindex   where transactions were aborted whose markers are in the segment
        00000000000000052110.snapshot   the producers there; also at the log end offset, not for the first segment
        leader-epoch-checkpoint  partition.metadata
      recovery-point-offset-checkpoint  replication-offset-checkpoint
      log-start-offset-checkpoint       cleaner-offset-checkpoint
      meta.properties                   made once and kept
      .lock                             held shared by our jobs, so that a broker started here refuses

Settling makes it so, and touches only what differs. A .log is linked where the file has no bytes beyond its committed
size; a file that an uncommitted publish has grown is copied up to there. The link goes on growing with its file while
an ingest runs: what log/ shows is exact when settled, and then while nobody appends.

**How a settled file is known again** without a list of what was settled: by its time of change. The milliseconds are
the segment's own, which Kafka looks at; the digits below are a hash of the segment's name, its committed size and the
size of the file itself. A file that was made from something else, was written to or was cut off has another time and
is made again. Where a file system keeps no such digits, each settle makes these files again.

A snapshot is what was known at its offset when the log was rolled there, and stays that: derived from what compaction
leaves it would be another. So its digits are a hash of the topic's id, its offset and its size, and one that is there is
kept as long as a segment begins at its offset; one that came with an import is shown as it came. The last one is the
state's own.

After a crash anywhere each file is whole, some are of the state before, and temporary names may be left; settling again
makes it exact. Several processes may settle at once, beside running ingests: each looks, once it is through, whether
the state is still the one that it showed, and else goes on; one may remove the other's temporary file, which then tries
again. Storages that cannot link have no view.

Settling deletes what does not belong there, so it first makes sure that log/ is its own (topic.view_record). Where log/
shows more of a topic than the topic's state, the state has lost versions: what log/ shows of the topic then stays.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import numpy as np

from storage_engine.checkpoint import (
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
from storage_engine.errors import (
    AlreadyExistsError,
    CorruptionError,
    LogError,
    NotFoundError,
    StorageAccessError,
    StorageError,
    StorageFullError,
    UsageError,
)
from storage_engine.log.derived_indexes import derived_indexes, grow_to_end
from storage_engine.log.filenames import INDEX, LOG, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX, data_folder, offset_name
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.offset_index import decode_offset_index
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.producer_snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from storage_engine.log.producer_state import Producers
from storage_engine.log.segment_reader import SegmentFile, read_chunks
from storage_engine.log.time_index import decode_time_index
from storage_engine.log.transaction_index import encode_transaction_index
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.record.batch import NO_TIMESTAMP
from storage_engine.storage import FolderEntry, Storage, ViewableStorage
from storage_engine.topic.reader import segment_file
from storage_engine.topic.state import TopicState
from storage_engine.topic.state_chain import StateChain
from storage_engine.topic.topics import Topics, is_root, new_topic_id
from storage_engine.topic.view_record import VIEW, claim_view
from storage_engine.topic.witnesses import Shown, lost_chain, newest_state, shown_offsets

_Offsets = dict[tuple[str, int], int]
"""Topic and partition to offset."""
_PASSES = 3
"""How often one settle goes over states that change under it before it leaves that to the next."""
_MOST_PASSES = 12
"""How often at most, where files vanish under it: another settle removes what looks like a stray to it."""


def view_folder(topic: str, partition: int) -> str:
    """Where a partition is shown."""
    return f"{VIEW}/{topic}-{partition}"


def refuse_view(directory: Path) -> None:
    """Keep work that changes a plain Kafka directory in place, or takes its files away, off the view of a root: a .log
    there is a second name of the root's own file.

    Raises:
        UsageError: the directory is a view.
    """
    real = directory.resolve()
    if real.name == VIEW and (real.parent / "meta").is_dir():
        raise UsageError(
            str(directory), "is the view of a root, whose files are the root's own",
            f"Use --root {real.parent} instead, or a copy that `lakelog topics export` makes.",
        )  # fmt: skip


def hold_lock(storage: Storage) -> AbstractContextManager[None]:
    """Keep Kafka brokers off the view while the block runs; nothing of ours depends on it.

    Raises:
        StateError: log/ is not ours.
        StorageError: a broker runs there.
    """
    if not isinstance(storage, ViewableStorage):
        return nullcontext()
    claim_view(storage)
    return storage.hold_shared(f"{VIEW}/{LOCK}")


def settle(topics: Topics, names: Iterable[str] | None = None, progress: Progress = NO_PROGRESS) -> None:
    """Make the view show the newest states exactly. Idempotent; any process may do it at any time.

    Args:
        names: the topics whose partitions are looked at, all by default. Checkpoints and strays always concern all.
        progress: is told the bytes of the segments that are shown.

    Raises:
        CorruptionError, NotFoundError: a topic's state cannot be read, or a file has not the bytes that it names; all
            else was settled.
        StateError: log/ is not ours.
        StorageError: the storage refused, or a Kafka broker runs on the view.
    """
    storage = topics.storage
    if not isinstance(storage, ViewableStorage) or not is_root(storage):
        return  # no root, and whatever lies in log/ is not its view
    wanted = None if names is None else set(names)
    chains: dict[str, StateChain] = {}
    problems: list[LogError] = []
    with hold_lock(storage):
        for number in range(1, _MOST_PASSES + 1):
            # Before the states: so the folder of a topic that is created just now is never taken for a stray.
            there = storage.entries(VIEW)
            shown = shown_offsets(storage)
            states, unreadable = _newest_states(topics, chains, shown)
            problems = [error for name, error in unreadable.items() if wanted is None or name in wanted]
            problems += _settle_once(storage, topics, states, unreadable.keys(), wanted, there, progress)
            if any(_may_be_transient(problem) for problem in problems):
                continue
            if number >= _PASSES or all(chains[name].newest().id == state.id for name, state in states.items()):
                break
    if problems:
        raise problems[0]


def _may_be_transient(problem: LogError) -> bool:
    lasting = (StorageFullError, StorageAccessError)
    return isinstance(problem, StorageError) and not isinstance(problem, lasting)


def _newest_states(
    topics: Topics, chains: dict[str, StateChain], shown: Shown
) -> tuple[dict[str, TopicState], dict[str, LogError]]:
    """Those of all topics that are not deleted, and why others cannot be read."""
    states: dict[str, TopicState] = {}
    unreadable: dict[str, LogError] = {}
    for name in topics.names(with_deleted=True):
        try:
            state = newest_state(topics.storage, chains.setdefault(name, topics.chain(name)), shown)
        except (CorruptionError, StorageAccessError) as error:
            unreadable[name] = error  # what the view shows of it stays: it may be the last witness of what is lost
            continue
        if state is not None and not state.deleted:
            states[name] = state
    return states, unreadable | {error.file.removeprefix("meta/"): error for error in lost_chains(topics, shown)}


def lost_chains(topics: Topics, shown: Shown) -> Iterator[CorruptionError]:
    """What is wrong with each topic that the view shows and that has no version at all."""
    for name in sorted(shown.topics):
        if lost := lost_chain(topics.storage, topics.chain(name)):
            yield lost


def _settle_once(
    storage: ViewableStorage,
    topics: Topics,
    states: Mapping[str, TopicState],
    unreadable: Collection[str],
    wanted: set[str] | None,
    there: Sequence[FolderEntry],
    progress: Progress,
) -> Iterator[LogError]:
    """Go over everything once; yields what could not be settled.

    Args:
        unreadable: topics whose states cannot be read; what is shown of them stays.
    """
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
                _remove(storage, key, entry)
            except StorageError as error:
                yield error
    known = {entry.name: entry for entry in there}
    try:
        _ensure_meta_properties(storage)
        # Before the folders: with a partition.metadata of a new topic no offset of a former one may be on record.
        for file, data in small.items():
            if not _is_shown(storage, f"{VIEW}/{file}", data, known.get(file)):
                storage.replace(f"{VIEW}/{file}", data)
    except LogError as error:
        yield error
    for state in looked_at.values():
        interval_bytes = topics.config(state).index_interval_bytes
        shown: set[int] = set()
        try:
            shown = _show_empty(storage, state, known.keys())
        except LogError as error:
            yield error
        for number in range(len(state.partitions)):
            if number in shown:
                continue
            try:
                _settle_partition(storage, state, number, interval_bytes, progress)
            except LogError as error:
                yield error


def checkpoints(states: Iterable[TopicState]) -> dict[str, bytes]:
    """Kafka's four checkpoints of these topics, by file name.

    All that is committed is durable, so the recovery point is the log's end.
    """
    return {name: encode_offsets(offsets) for name, offsets in _offsets_shown(states).items()}


def _offsets_shown(states: Iterable[TopicState]) -> dict[str, _Offsets]:
    """What stands in the checkpoints, by file name."""
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


def _offsets_in_view(storage: ViewableStorage, name: str, topics: Collection[str]) -> _Offsets:
    """What a checkpoint says of these topics now."""
    key = f"{VIEW}/{name}"
    try:
        shown = decode_offsets(storage.read(key), key) if topics else {}
    except (NotFoundError, CorruptionError):
        return {}
    return {where: offset for where, offset in shown.items() if where[0] in topics}


def _ensure_meta_properties(storage: ViewableStorage) -> None:
    key = f"{VIEW}/{META_PROPERTIES}"
    fresh = encode_meta_properties(MetaProperties(cluster_id=new_topic_id(), directory_id=new_topic_id()))
    try:
        decode_meta_properties(storage.read(key), key)
    except NotFoundError:
        try:
            storage.put_new(key, fresh)
        except AlreadyExistsError:
            return  # another settle's, whole like ours
    except CorruptionError:
        storage.replace(key, fresh)


def _show_empty(storage: ViewableStorage, state: TopicState, known: Collection[str]) -> set[int]:
    """Show the partitions that have nothing yet and no folder, all files of each at once; returns which were shown.

    A topic may be created with thousands of them, and their files have the same bytes.
    """
    alike: dict[tuple[tuple[str, bytes], ...], list[int]] = {}
    for number, part in enumerate(state.partitions):
        if not (part.segments or part.producers or f"{state.topic}-{number}" in known):
            alike.setdefault(tuple(_small_files(state, part).items()), []).append(number)
    shown: set[int] = set()
    for files, numbers in alike.items():
        folders = [view_folder(state.topic, number) for number in numbers]
        there = set(storage.show_folders(dict(files), folders))
        shown |= {number for number in numbers if view_folder(state.topic, number) not in there}
    return shown


def _settle_partition(
    storage: ViewableStorage, state: TopicState, number: int, index_interval_bytes: int, progress: Progress
) -> None:
    folder = view_folder(state.topic, number)
    part = state.partitions[number]
    there = {entry.name: entry for entry in storage.entries(folder)}
    for entry in [entry for entry in there.values() if entry.is_folder]:
        _remove(storage, f"{folder}/{entry.name}", there.pop(entry.name))
    stored = {entry.name: entry for entry in storage.entries(data_folder(state.topic_id, number))}
    for segment in part.segments:
        shown = f"{folder}/{offset_name(segment.base_offset)}"
        file = segment_file(state.topic_id, number, segment)
        _settle_log(storage, file, segment, stored.get(segment.name + LOG), shown, there)
        _settle_indexes(storage, file, segment, index_interval_bytes, shown, there)
        progress.advance(size=segment.size)
    snapshots = _settle_snapshots(storage, state, number, folder, there)
    small = _small_files(state, part)
    for name, data in small.items():
        # Thousands of files are not worth a sync each: their bytes are compared, and what a power cut emptied is shown again.
        if not _is_shown(storage, f"{folder}/{name}", data, there.get(name)):
            storage.show_bytes(data, f"{folder}/{name}")
    expected = small.keys() | {
        offset_name(segment.base_offset) + suffix for segment in part.segments for suffix in (LOG, INDEX, TIME_INDEX)
    }
    for name in there.keys() - expected - snapshots:
        storage.delete(f"{folder}/{name}")


def _small_files(state: TopicState, part: PartitionState) -> dict[str, bytes]:
    """Files whose bytes follow from the state alone."""
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


def _settle_snapshots(
    storage: ViewableStorage, state: TopicState, number: int, folder: str, there: Mapping[str, FolderEntry]
) -> set[str]:
    """Show the producers at each roll and at the end; returns the names of what is shown.

    What lies between two rolls is read only once, and only where the partition knows producers.
    """
    part = state.partitions[number]
    names: set[str] = set()
    producers: Producers | None = Producers()
    """Those at the end of the segment before; None where they are as shown there."""
    for before, segment in itertools.pairwise(part.segments):
        name = offset_name(segment.base_offset) + SNAPSHOT
        names.add(name)
        entry = there.get(name)
        if entry is not None and _is_snapshot(state, segment.base_offset, entry):
            producers = None
            continue
        if part.producers:
            if producers is None:
                producers = _shown_producers(storage, state, number, folder, before)
            _replay(storage, state, number, before, producers)
        data = encode_snapshot(producers.entries() if part.producers and producers else ())
        # Thousands of snapshots are not worth a sync each: one that a power cut emptied has another time.
        storage.show_bytes(data, f"{folder}/{name}", _snapshot_ns(state, before, segment.base_offset, len(data)))
    last = part.active_segment
    if part.producers or (last is not None and part.high_watermark > part.segments[0].base_offset):
        name = offset_name(part.high_watermark) + SNAPSHOT
        if name in names:  # of the roll to a segment that is still empty
            return names
        names.add(name)
        data = encode_snapshot(part.producers)
        if not _is_shown(storage, f"{folder}/{name}", data, there.get(name)):
            time = _snapshot_ns(state, last, part.high_watermark, len(data)) if last is not None else None
            storage.show_bytes(data, f"{folder}/{name}", time)
    return names


def show_snapshots(
    topics: Topics, state: TopicState, number: int, snapshots: Mapping[int, Sequence[ProducerEntry]]
) -> None:
    """Show what another log tells of a partition's producers at the rolls, by offset, before settling would derive it.

    Raises:
        StateError: log/ is not ours.
        StorageError: the storage refused, or a Kafka broker runs on the view.
    """
    storage = topics.storage
    if not isinstance(storage, ViewableStorage):
        return
    folder = view_folder(state.topic, number)
    with hold_lock(storage):
        for before, segment in itertools.pairwise(state.partitions[number].segments):
            offset = segment.base_offset
            if (entries := snapshots.get(offset)) is not None:
                data = encode_snapshot(entries)
                time = _snapshot_ns(state, before, offset, len(data))
                storage.show_bytes(data, f"{folder}/{offset_name(offset)}{SNAPSHOT}", time)


def shown_snapshots(storage: Storage, state: TopicState, number: int) -> dict[int, tuple[ProducerEntry, ...]]:
    """A partition's producers at its rolls, by offset, as far as the view has them. They are of when the log was rolled:
    behind a compaction they cannot be derived, as the first records of a transaction may have gone."""
    if not isinstance(storage, ViewableStorage):
        return {}
    folder = view_folder(state.topic, number)
    there = {entry.name: entry for entry in storage.entries(folder)}
    found = {}
    for segment in state.partitions[number].segments[1:]:
        name = offset_name(segment.base_offset) + SNAPSHOT
        if name in there and _is_snapshot(state, segment.base_offset, there[name]):
            with suppress(CorruptionError, NotFoundError):
                found[segment.base_offset] = decode_snapshot(storage.read(f"{folder}/{name}"), name)
    return found


def _snapshot_ns(state: TopicState, before: Segment, offset: int, size: int) -> int:
    """The time of change of the snapshot at an offset: the segment's that ends there, to the millisecond."""
    return before.modified_ms * 1_000_000 + _snapshot_digits(state, offset, size)


def _snapshot_digits(state: TopicState, offset: int, size: int) -> int:
    return zlib.crc32(f"{state.topic_id} {offset} {size}".encode()) % 1_000_000


def _is_snapshot(state: TopicState, offset: int, entry: FolderEntry) -> bool:
    """Whether this file is the snapshot at this offset, of whatever time."""
    return entry.modified_ns % 1_000_000 == _snapshot_digits(state, offset, entry.size)


def _shown_producers(
    storage: ViewableStorage, state: TopicState, number: int, folder: str, segment: Segment
) -> Producers:
    """The producers at a segment's base offset, from the snapshot that is shown there; where it is damaged from all
    segments before it."""
    key = f"{folder}/{offset_name(segment.base_offset)}{SNAPSHOT}"
    try:
        return Producers(decode_snapshot(storage.read(key), key))
    except (CorruptionError, NotFoundError):
        producers = Producers()
        for earlier in state.partitions[number].segments:
            if earlier.base_offset < segment.base_offset:
                _replay(storage, state, number, earlier, producers)
        return producers


def _replay(storage: Storage, state: TopicState, number: int, segment: Segment, producers: Producers) -> None:
    file = segment_file(state.topic_id, number, segment)
    for chunk in read_chunks(storage, file):
        producers.replay(chunk.data, chunk.table, file.key, chunk.position)


def _settle_log(
    storage: ViewableStorage,
    file: SegmentFile,
    segment: Segment,
    stored: FolderEntry | None,
    shown: str,
    there: Mapping[str, FolderEntry],
) -> None:
    if stored is None:
        raise NotFoundError(file.key, "the state names it, and it is not there", "Restore the file from a backup.")
    if stored.size < segment.size and not storage.read(file.key, segment.size - 1, 1):
        # Read, because on NFS a size may be an old one until the file is opened.
        raise CorruptionError(
            file.key, stored.size, f"{segment.size} committed bytes", str(stored.size),
            "Restore the file from a backup.",
        )  # fmt: skip
    time = _settled_ns(segment, segment.size)
    entry = there.get(offset_name(segment.base_offset) + LOG)
    if stored.size == segment.size:
        if entry is not None and (entry.file_id, entry.modified_ns) == (stored.file_id, time):
            return
        try:
            storage.show(file.key, shown + LOG, time)
            return
        except NotFoundError:
            raise
        except StorageError:
            pass  # log/ on another file system, or another user's file: a copy does as well
    if entry is None or entry.file_id == stored.file_id or (entry.size, entry.modified_ns) != (segment.size, time):
        storage.show_copy(file.key, segment.size, shown + LOG, time)


def _settle_indexes(
    storage: ViewableStorage,
    file: SegmentFile,
    segment: Segment,
    index_interval_bytes: int,
    shown: str,
    there: Mapping[str, FolderEntry],
) -> None:
    entries = [there.get(offset_name(segment.base_offset) + suffix) for suffix in (INDEX, TIME_INDEX)]
    if all(entry is not None and entry.modified_ns == _settled_ns(segment, entry.size) for entry in entries):
        return
    closed = _closed_indexes(storage, file, segment, index_interval_bytes)
    indexes = {INDEX: closed.offset_index_bytes(), TIME_INDEX: closed.time_index_bytes()}
    for suffix, data in indexes.items():
        storage.show_bytes(data, shown + suffix, _settled_ns(segment, len(data)))


def _settled_ns(segment: Segment, size: int) -> int:
    """The time of change by which a file of this size, made from this segment, is known again."""
    return segment.modified_ms * 1_000_000 + zlib.crc32(f"{segment.name} {segment.size} {size}".encode()) % 1_000_000


def _closed_indexes(storage: Storage, file: SegmentFile, segment: Segment, index_interval_bytes: int) -> GrowingSegment:
    """The indexes of a segment's committed bytes, as Kafka leaves them in a log that was closed.

    The files under data/ may lack the closing time entry, hold entries of bytes that were never committed, and have
    lost sectors in a power cut, which then are missing or zeros. Where all entries rise, none before the last was lost:
    they are taken if the last one's batch ends at its offset, and from there on the .log is read. Else, and where the
    outcome is not what the state knows about the segment, all of the .log is read.

    Raises:
        CorruptionError: the .log does not hold whole batches with rising offsets.
    """
    resumed = _resume_at_last_entry(storage, file, index_interval_bytes)
    if resumed is not None:
        grow_to_end(storage, file, resumed)
        largest = resumed.end_offset, resumed.largest_timestamp, resumed.largest_timestamp_offset
        if largest == (segment.end_offset, segment.largest_timestamp, segment.largest_timestamp_offset):
            return resumed
    return derived_indexes(storage, file, index_interval_bytes)


def _resume_at_last_entry(storage: Storage, file: SegmentFile, index_interval_bytes: int) -> GrowingSegment | None:
    """The segment as it was when its last committed index entry was added; None where the indexes do not say."""
    try:
        offset_bytes, time_bytes = storage.read(file.stem + INDEX), storage.read(file.stem + TIME_INDEX)
    except NotFoundError:
        return None
    offsets, times = decode_offset_index(offset_bytes), decode_time_index(time_bytes)
    timestamps = times["timestamp"].astype(np.int64)
    if (offsets.nbytes, times.nbytes) != (len(offset_bytes), len(time_bytes)) or (np.diff(timestamps) <= 0).any():
        return None
    offsets = offsets[offsets["position"].astype(np.int64) < file.size]
    if not len(offsets) or int(offsets[0]["position"]) <= 0:
        return None
    relative_offset, position = (int(offsets[-1][field]) for field in ("relative_offset", "position"))
    # A time entry at or below that offset was there at that moment: one that came later tells of a later batch.
    times = times[times["relative_offset"].astype(np.int64) <= relative_offset]
    largest, largest_at = times[-1].tolist() if len(times) else (NO_TIMESTAMP, 0)
    try:
        chunk = next(read_chunks(storage, file, position), None)
    except CorruptionError:
        return None
    if (
        chunk is None
        or int(chunk.table.last_offsets[0]) != file.base_offset + relative_offset
        or int(chunk.table.max_timestamps[0]) > largest
    ):
        return None
    return GrowingSegment(
        file.base_offset,
        0,
        index_interval_bytes,
        size=position,
        end_offset=file.base_offset + relative_offset,
        largest_timestamp=largest,
        largest_timestamp_offset=file.base_offset + largest_at,
        offset_entries=offsets.tolist(),
        time_entries=times.tolist(),
    )


def _is_shown(storage: ViewableStorage, key: str, data: bytes, entry: FolderEntry | None) -> bool:
    if entry is None or entry.is_folder or entry.size != len(data):
        return False
    try:
        return storage.read(key) == data
    except NotFoundError:
        return False  # removed by another settle since


def _remove(storage: ViewableStorage, key: str, entry: FolderEntry) -> None:
    if entry.is_folder:
        storage.remove_folder(key)
    else:
        storage.delete(key)
