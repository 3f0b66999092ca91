"""Replaces segments by a rewritten segment in a plain Kafka log directory (LocalLog.replaceSegments).

    1. The new files are written with the suffix .cleaned, and synced.
    2. In the name of each new file, .swap replaces .cleaned. The .log is renamed last. Then the folder is synced.
       Without this sync, after a power cut, the old files could have the suffix .deleted while the new files still
       have .cleaned. Then loading would delete both.
    3. The files of the replaced segments are renamed to .deleted.
    4. The suffix .swap is removed, and the folder is synced.

If a crash comes before the end of step 2, a .cleaned file remains, and loading returns to the old segments. After step
2 every new file has the suffix .swap, and loading finishes the swap. A .deleted file may be deleted at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from storage_engine.cleaner.cleaner import CleanedPartition
from storage_engine.config import LONG_MAX
from storage_engine.log.filenames import (
    CLEANED,
    DELETED,
    INDEX_SUFFIXES,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    is_offset_name,
    offset_name,
)
from storage_engine.log.partition_state import Segment
from storage_engine.log.segment_reader import READ_BYTES
from storage_engine.record.batch import scan_until_damage
from storage_engine.storage import Directory

_NEW_FILES = (*INDEX_SUFFIXES, LOG)


def swap_in(storage: Directory, folder: str, new_base: int, old_bases: Iterable[int]) -> list[str]:
    """Replace the files of some segments by the .cleaned files of one segment, which are already durable.

    Returns:
        The keys of the .deleted files.
    """
    names = {entry.name for entry in storage.entries(folder)}
    new = [offset_name(new_base) + suffix for suffix in _NEW_FILES if offset_name(new_base) + suffix + CLEANED in names]
    for name in new:
        storage.rename(f"{folder}/{name}{CLEANED}", f"{folder}/{name}{SWAP}")
    storage.sync_names(folder)
    deleted = []
    for base in old_bases:
        suffixes = _NEW_FILES if base == new_base else (*_NEW_FILES, SNAPSHOT)
        deleted += put_aside(storage, folder, (offset_name(base) + suffix for suffix in suffixes), names)
    _strip(storage, folder, new)
    return deleted


def put_aside(storage: Directory, folder: str, files: Iterable[str], names: set[str]) -> list[str]:
    """Rename the given files to .deleted, if the folder has them. Returns their keys."""
    keys = [f"{folder}/{name}" for name in files if name in names]
    for key in keys:
        storage.rename(key, key + DELETED)
    return [key + DELETED for key in keys]


def put_segments_aside(storage: Directory, folder: str, segments: Iterable[Segment]) -> list[str]:
    """Rename all files of these segments to .deleted, durably. Returns their keys."""
    names = {entry.name for entry in storage.entries(folder)}
    keys: list[str] = []
    for segment in segments:
        files = (segment.name + suffix for suffix in (LOG, *INDEX_SUFFIXES, SNAPSHOT))
        keys += put_aside(storage, folder, files, names)
    storage.sync_names(folder)
    return keys


def swap_in_cleaned(storage: Directory, folder: str, cleaned: CleanedPartition) -> list[str]:
    """Replace segments by the compacted segments that were made from them, one group after another.

    Returns:
        The keys of the .deleted files.
    """
    deleted: list[str] = []
    ends = [segment.base_offset for segment in cleaned.segments[1:]] + [LONG_MAX]
    for segment, end in zip(cleaned.segments, ends, strict=True):
        for suffix in SEGMENT_SUFFIXES:
            key = cleaned.files.new_key(segment.name, suffix)
            storage.set_modified(key, segment.modified_ms * 1_000_000)
        old = [each.base_offset for each in cleaned.replaced if segment.base_offset <= each.base_offset < end]
        deleted += swap_in(storage, folder, segment.base_offset, old)
    return deleted


@dataclass(frozen=True)
class _ScheduledDeletion:
    """.deleted files, and the time at which they may be deleted."""

    due_ms: int
    keys: tuple[str, ...]


class DeletedFiles:
    """The .deleted files of an open log. Readers may use them until they are due (file.delete.delay.ms).

    The times are only in the memory of this process. Files that remain after a crash are deleted when the log is
    loaded. The class is not thread-safe.
    """

    def __init__(self, storage: Directory) -> None:
        self._storage = storage
        self._waiting: list[_ScheduledDeletion] = []

    def schedule(self, keys: Iterable[str], due_ms: int) -> None:
        """Schedule the deletion of files that have been renamed to .deleted."""
        self._waiting.append(_ScheduledDeletion(due_ms, tuple(keys)))

    def delete_due(self, now_ms: int) -> int:
        """Delete the files that are due. Returns their number."""
        due = [each for each in self._waiting if each.due_ms <= now_ms]
        for each in due:
            for key in each.keys:
                self._storage.delete(key)
            self._waiting.remove(each)
        return sum(len(each.keys) for each in due)


def _strip(storage: Directory, folder: str, names: Iterable[str]) -> None:
    for name in names:
        storage.rename(f"{folder}/{name}{SWAP}", f"{folder}/{name}")
    storage.sync_names(folder)


def settle_swaps(storage: Directory, folder: str) -> list[str]:
    """Undo or finish the swaps that a crash interrupted (LogLoader). Returns the names of the deleted files."""
    names = sorted(entry.name for entry in storage.entries(folder) if not entry.is_folder)
    cleaned = [name for name in names if name.endswith(CLEANED)]
    gone = [*cleaned, *(name for name in names if name.endswith(DELETED))]
    lowest_cleaned = min((_base(name) for name in cleaned), default=None)
    swaps = [name for name in names if name.endswith(SWAP)]
    if lowest_cleaned is not None:
        gone += [name for name in swaps if _base(name) >= lowest_cleaned]
    kept = [name.removesuffix(SWAP) for name in swaps if name not in gone]
    logs = [name for name in kept if name.endswith(LOG)]
    if logs:
        first = min(_base(name) for name in logs)
        end = max(_end_offset(storage, f"{folder}/{name}{SWAP}", _base(name)) for name in logs)
        stale = (name for name in names if name.endswith(_NEW_FILES))
        gone += [name for name in stale if is_offset_name(name[: name.index(".")]) and first <= _base(name) < end]
    for name in gone:
        storage.delete(f"{folder}/{name}")
    if kept:
        _strip(storage, folder, kept)
    return gone


def _base(name: str) -> int:
    digits = name.partition(".")[0]
    return int(digits) if is_offset_name(digits) else -1


def _end_offset(storage: Directory, key: str, base: int) -> int:
    """The offset after the last batch of a .log; its base offset if it has no batch."""
    end, position, wanted = base, 0, READ_BYTES
    while data := storage.read(key, position, wanted):
        table, problem = scan_until_damage(np.frombuffer(data, np.uint8), key, position)
        if len(table):
            end = int(table.last_offsets[-1]) + 1
            position += table.end
            wanted = READ_BYTES
        elif problem is not None or len(data) < wanted:
            break
        else:
            wanted *= 2
    return end
