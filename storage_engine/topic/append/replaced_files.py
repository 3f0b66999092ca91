"""Deletes the old files of segments after a writer has written these segments again into new files
(topic.append.new_files_publisher).

Readers can still use the old files. So the old files are deleted only after file.delete.delay.ms, like every dropped
file. If only the scheduled maintenance deleted the old files, thousands of them would remain until the next
maintenance. So writers delete old files:

    begin        before its first append, a writer begins to delete files that are listed as dropped, whoever dropped
                 them. A process that appends only once does not live long enough to delete the files that it replaced
                 itself, so it deletes files that earlier processes replaced.
    committed    after each commit, a writer begins to delete the files that it has replaced itself.

The deletions run in threads, so no commit waits for them. The next commit removes the segments whose files are all
deleted from the state's list of dropped files. A process that appends only once has the time from `begin` to its commit.
Deletions have as many threads as puts, so normally all deletions end in this time. Then the append removes at least as
many segments from the list as it adds. If the storage deletes files more slowly than it writes files, maintenance removes
the rest.

If the process dies, or if a deletion fails, the segment remains in the list, and a later writer or maintenance deletes
its files. Deleting a file twice does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice

from storage_engine.errors import StorageError
from storage_engine.log.filenames import SEGMENT_SUFFIXES, data_key
from storage_engine.storage import Storage
from storage_engine.topic.append.append_plan import AppendPlan
from storage_engine.topic.chain.topic_state import DroppedFile

_THREADS = 32
"""So many files are deleted at once. A NewFilesPublisher writes as many files at once."""
_LEFTOVERS = 8
"""So many old segments are deleted before the first append, in addition to two for each partition. One append drops at
most one segment of each partition."""


class ReplacedFiles:
    """The segments that one writer has replaced. Only the writer's thread may use this object."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._threads = ThreadPoolExecutor(_THREADS)
        self._has_begun = False
        self._waiting: list[DroppedFile] = []
        self._deleted: set[tuple[DroppedFile, str]] = set()  # segments and suffixes; the threads add to this set

    def begin(self, dropped: Sequence[DroppedFile], now_ms: int, delay_ms: int, partitions: int) -> None:
        """Begin to delete some of the segments that were dropped at least `delay_ms` ago, the oldest first. Only the
        first call of a writer does this.

        On a storage whose files can grow, this deletes nothing: appends drop no files there, and maintenance is enough.

        Args:
            dropped: the list of dropped files in a state of the topic.
            partitions: the number of partitions to which the caller appends.
        """
        if self._has_begun or self._storage.growing is not None:
            return
        self._has_begun = True
        due = (each for each in dropped if now_ms - each.dropped_ms >= delay_ms)
        self._begin_to_delete(islice(due, _LEFTOVERS + 2 * partitions))

    def committed(self, plan: AppendPlan, dropped: Sequence[DroppedFile], now_ms: int, delay_ms: int) -> None:
        """Begin to delete the segments that the writer replaced at least `delay_ms` ago. Call this after each commit.

        Args:
            plan: the plan that was committed.
            dropped: the state's list of dropped files.
        """
        names = {(part.partition, each.replaces) for part in plan.partitions for each in part.appends if each.replaces}
        if not (names or self._waiting or self._deleted):
            return
        self._waiting += (each for each in dropped if (each.partition, each.name) in names)
        listed = set(dropped)
        self._deleted.difference_update([file for file in self._deleted.copy() if file[0] not in listed])
        due = [each for each in self._waiting if now_ms - each.dropped_ms >= delay_ms]
        self._waiting = [each for each in self._waiting if now_ms - each.dropped_ms < delay_ms]
        self._begin_to_delete(due)

    def _begin_to_delete(self, due: Iterable[DroppedFile]) -> None:
        with suppress(RuntimeError):  # no thread can be started; the segments remain in the list
            for each in due:
                for suffix in SEGMENT_SUFFIXES:
                    self._threads.submit(self._delete, each, suffix)

    def _delete(self, dropped: DroppedFile, suffix: str) -> None:
        with suppress(StorageError):
            self._storage.delete(data_key(dropped.topic_id, dropped.partition, dropped.name, suffix))
            self._deleted.add((dropped, suffix))

    def without_deleted(self, dropped: tuple[DroppedFile, ...]) -> tuple[DroppedFile, ...]:
        """A state's list of dropped files, without the segments whose files are all deleted."""
        deleted = self._deleted.copy()
        return tuple(each for each in dropped if not all((each, suffix) in deleted for suffix in SEGMENT_SUFFIXES))

    def close(self) -> None:
        """Wait for the deletions that run. The others do not run any more, so their segments remain in the list."""
        self._threads.shutdown(cancel_futures=True)
