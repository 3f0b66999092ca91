"""Checks the view, log/, against the states and the files under data/.

A problem in the view loses no data: settling (topic.kafka) writes the whole view again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from storage_engine.errors import CorruptionError, LogError
from storage_engine.log.checkpoint import (
    LEADER_EPOCHS,
    LOCK,
    META_PROPERTIES,
    PARTITION_METADATA,
    decode_meta_properties,
    encode_leader_epochs,
    encode_partition_metadata,
)
from storage_engine.log.filenames import INDEX, LOG, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX, data_folder, offset_name
from storage_engine.log.indexes.transaction_index import encode_transaction_index
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.producers.producer_snapshot import encode_snapshot
from storage_engine.log.segment_reader import READ_BYTES
from storage_engine.storage import FolderEntry, Storage
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.kafka.view import checkpoints
from storage_engine.topic.kafka.view_folder import view_folder
from storage_engine.topic.readers.reader import segment_file
from storage_engine.topic.topics import Topics
from storage_engine.topic.view_record import NOT_OURS, OURS, VIEW, foreign_files_in_view
from storage_engine.verify.directory.directory_check import CHECKPOINTS
from storage_engine.verify.findings import Finding, Kind, of_error
from storage_engine.verify.index_check import IndexChecks
from storage_engine.verify.producer_check import check_snapshot
from storage_engine.verify.segment_check import CheckedSegment

_NONE, _STRAY, _FOLDER = "none", "an entry that no state names", "a folder"
_SETTLE = "`lakelog topics settle` repairs the view, and so does --repair"


def shown_stem(state: TopicState, number: int, segment: Segment) -> str:
    """The storage key at which the view shows a segment, without a suffix."""
    return f"{view_folder(state.topic, number)}/{offset_name(segment.base_offset)}"


def has_wrong_bytes(finding: Finding) -> bool:
    """Whether the file belongs in the view but does not have the expected bytes."""
    return finding.kind is Kind.VIEW and finding.found not in (_NONE, _STRAY, _FOLDER)


def wrong_shown_indexes(checked: CheckedSegment, stored: IndexChecks, shown: IndexChecks) -> Iterator[Finding]:
    """Check the view's indexes of a segment: they must fit the .log and have every entry that the indexes under data/
    have, except a closing entry of an earlier time.
    """
    files = checked.files
    wrong = shown.findings(files.size, checked.end_offset, checked.damages)
    if not wrong and not any(finding.kind is Kind.INDEX for finding in checked.findings):
        wrong += shown.lacking(stored, files.size)
    for finding in wrong:
        yield replace(finding, kind=Kind.VIEW, meaning=_SETTLE)


def is_shown(storage: Storage) -> bool:
    """Whether log/ exists and is the view of this root. check_beside_folders reports problems of the view as a whole.

    Raises:
        LogError: log/ cannot be read.
    """
    view = storage.view
    return view is not None and bool(view.entries(VIEW)) and foreign_files_in_view(storage, view) is None


def check_view_folder(
    topics: Topics,
    state: TopicState,
    number: int,
    segments: Iterable[CheckedSegment],
    *,
    exact: bool,
) -> Iterator[Finding]:
    """Check one partition's folder in the view, except its indexes.

    Args:
        state: of a topic in a root whose view is_shown.
        segments: the results of checking data/, oldest first, each with the producers at its base offset.
        exact: whether all of the partition's batches could be read.
    """
    storage, view = topics.storage, topics.storage.view
    if view is None:
        return
    part = state.partitions[number]
    folder = view_folder(state.topic, number)
    try:
        entries = view.entries(folder)
    except LogError as error:
        yield _unreadable_in_view(storage.uri, folder, error)
        return
    there = {entry.name: entry for entry in entries if not entry.is_folder}
    folders = {entry.name for entry in entries if entry.is_folder}
    stored = {entry.name: entry for entry in view.entries(data_folder(state.topic_id, number))}
    known = {segment.files.base_offset: segment.producers for segment in segments}
    for segment in part.segments:
        if shown := there.get(offset_name(segment.base_offset) + LOG):
            yield from _check_shown_log(storage, state, number, segment, shown, stored)
    small = _small_files(state.topic_id, part)
    snapshots = {offset_name(segment.base_offset) + SNAPSHOT: segment.base_offset for segment in part.segments[1:]}
    expected = small.keys() | snapshots.keys()
    for segment in part.segments:
        expected |= {offset_name(segment.base_offset) + suffix for suffix in (LOG, INDEX, TIME_INDEX)}
    for name in sorted(there.keys() & (small.keys() | snapshots.keys())):
        try:
            data = storage.read(f"{folder}/{name}")
        except LogError as error:
            yield _unreadable_in_view(storage.uri, f"{folder}/{name}", error)
            continue
        if name in snapshots and snapshots[name] in known:
            offset = snapshots[name]
            wrong, _ = check_snapshot(data, f"{storage.uri}/{folder}/{name}", offset, known[offset], exact=exact)
            yield from (replace(finding, kind=Kind.VIEW, meaning=_SETTLE) for finding in wrong)
        if name in small and data != small[name]:
            position = _first_difference(small[name], data)
            yield _view_finding(storage.uri, f"{folder}/{name}", "the state's content", "another byte", position)
    for name in sorted(expected ^ there.keys() | folders):
        wanted = "a file" if name in expected else "nothing of this name"
        found = _FOLDER if name in folders else _NONE if name in expected else _STRAY
        yield _view_finding(storage.uri, f"{folder}/{name}", wanted, found)


def _small_files(topic_id: str, part: PartitionState) -> dict[str, bytes]:
    """The files of a partition's folder that depend on the state alone, by name."""
    small = {
        LEADER_EPOCHS: encode_leader_epochs(part.leader_epochs),
        PARTITION_METADATA: encode_partition_metadata(topic_id),
    }
    for segment in part.segments:
        if segment.aborted:
            small[offset_name(segment.base_offset) + TRANSACTION_INDEX] = encode_transaction_index(segment.aborted)
    if not part.segments:
        small |= {offset_name(part.log_start_offset) + suffix: b"" for suffix in (LOG, INDEX, TIME_INDEX)}
    if part.producers or (part.segments and part.high_watermark > part.segments[0].base_offset):
        small[offset_name(part.high_watermark) + SNAPSHOT] = encode_snapshot(part.producers)
    return small


def _check_shown_log(
    storage: Storage,
    state: TopicState,
    number: int,
    segment: Segment,
    shown: FolderEntry,
    stored: Mapping[str, FolderEntry],
) -> Iterator[Finding]:
    """Check a .log in the view: a second name of the file under data/, or a copy of its committed bytes."""
    data = stored.get(segment.name + LOG)
    if data is None or shown.file_id == data.file_id:
        return
    key = f"{view_folder(state.topic, number)}/{shown.name}"
    file = segment_file(state.topic_id, number, segment)
    try:
        if shown.size != segment.size or not _same_bytes(storage, file.key, key, segment.size):
            yield _view_finding(storage.uri, key, "the committed bytes", "other bytes")
    except LogError as error:
        if file.key not in error.place:  # otherwise the check of data/ has reported this
            yield _unreadable_in_view(storage.uri, key, error)


def _first_difference(one: bytes, other: bytes) -> int:
    pairs = zip(one, other, strict=False)
    return next((position for position, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _same_bytes(storage: Storage, one: str, other: str, size: int) -> bool:
    return all(
        storage.read(one, start, min(READ_BYTES, size - start))
        == storage.read(other, start, min(READ_BYTES, size - start))
        for start in range(0, size, READ_BYTES)
    )


def check_beside_folders(
    topics: Topics, states: Iterable[TopicState], unreadable: Collection[str]
) -> Iterator[Finding]:
    """Check the checkpoints of the view, and the files beside the partitions' folders.

    Args:
        unreadable: the topics whose states cannot be read. These topics were reported already, and their parts of the
            view are not checked.
    """
    storage, view = topics.storage, topics.storage.view
    if view is None:
        return
    try:
        entries = view.entries(VIEW)
    except LogError as error:
        yield of_error(error, Kind.VIEW)
        return
    there = {entry.name for entry in entries if not entry.is_folder}
    shown = {entry.name for entry in entries if entry.is_folder}
    if not entries:
        yield replace(_view_finding(storage.uri, VIEW, "a view", _NONE), is_note=True)
        return
    if foreign := foreign_files_in_view(storage, view):
        yield Finding(Kind.VIEW, f"{storage.uri}/{VIEW}", 0, OURS, foreign, NOT_OURS)
        return
    folders = {f"{state.topic}-{number}" for state in states for number in range(len(state.partitions))}
    files = {*CHECKPOINTS, META_PROPERTIES, LOCK}
    for entry in entries:
        if entry.is_folder and entry.name.rpartition("-")[0] in unreadable:
            continue
        if entry.name not in (folders if entry.is_folder else files):
            yield _view_finding(storage.uri, f"{VIEW}/{entry.name}", "nothing of this name", _STRAY)
    for name in sorted(folders - shown | files - {LOCK} - there):
        yield _view_finding(storage.uri, f"{VIEW}/{name}", "a file" if name in files else "a folder", _NONE)
    contents = checkpoints(states)
    for name in sorted(there & {*contents, META_PROPERTIES}):
        key = f"{VIEW}/{name}"
        try:
            data = storage.read(key)
            if name == META_PROPERTIES:
                decode_meta_properties(data, f"{storage.uri}/{key}")
        except CorruptionError as error:
            yield of_error(error, Kind.VIEW, _SETTLE)
        except LogError as error:
            yield _unreadable_in_view(storage.uri, key, error)
        else:
            if name in contents and not unreadable and data != contents[name]:
                yield _view_finding(storage.uri, key, "the offsets of the states", "other offsets")


def _unreadable_in_view(uri: str, key: str, error: LogError) -> Finding:
    """The finding for an unreadable file in the view. No data is lost with this file, because settling makes the file
    again.
    """
    return _view_finding(uri, key, "a file that can be read", error.problem)


def _view_finding(uri: str, key: str, expected: str, found: str, position: int = 0) -> Finding:
    return Finding(Kind.VIEW, f"{uri}/{key}", position, expected, found, _SETTLE)
