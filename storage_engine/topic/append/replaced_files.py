"""Deletes the files of segments that a writer has written again (topic.append.new_files_publisher).

Readers may still use the old files, so they are deleted only after file.delete.delay.ms, like every dropped file. If
only the scheduled maintenance deleted them, hundreds of old files would wait for it. So the writer deletes the files
that it has replaced itself. A thread does this after a commit, so no commit waits. The next commit removes the deleted
segments from the state's list of dropped files.

If the process dies, or if a deletion fails, the segment remains in the list, and maintenance deletes its files. Deleting
a file twice does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from storage_engine.errors import StorageError
from storage_engine.log.filenames import INDEX, LOG, TIME_INDEX, data_key
from storage_engine.storage import Storage
from storage_engine.topic.chain.topic_state import DroppedFile

_THREADS = 4


class ReplacedFiles:
    """The segments that one writer has replaced. Only the writer's thread may use this object."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._threads = ThreadPoolExecutor(_THREADS)
        self._waiting: list[DroppedFile] = []
        self._deleted: set[DroppedFile] = set()  # the threads add to this set

    def add(self, dropped: Iterable[DroppedFile]) -> None:
        """Take segments that a commit has dropped."""
        self._waiting += dropped

    def delete_due(self, now_ms: int, delay_ms: int) -> None:
        """Begin to delete the segments that were dropped at least `delay_ms` ago."""
        due = [each for each in self._waiting if now_ms - each.dropped_ms >= delay_ms]
        self._waiting = [each for each in self._waiting if now_ms - each.dropped_ms < delay_ms]
        for each in due:
            self._threads.submit(self._delete, each)

    def _delete(self, dropped: DroppedFile) -> None:
        with suppress(StorageError):
            for suffix in (LOG, INDEX, TIME_INDEX):
                self._storage.delete(data_key(dropped.topic_id, dropped.partition, dropped.name, suffix))
            self._deleted.add(dropped)

    def without_deleted(self, dropped: tuple[DroppedFile, ...]) -> tuple[DroppedFile, ...]:
        """A state's list of dropped files, without the segments whose files are deleted."""
        deleted = self._deleted.copy()
        return tuple(each for each in dropped if each not in deleted) if deleted else dropped

    def forget(self, dropped: Iterable[DroppedFile]) -> None:
        """Forget deleted segments that the newest state no longer lists."""
        self._deleted.intersection_update(dropped)

    def close(self) -> None:
        """Wait for the deletions that have begun."""
        self._threads.shutdown()
