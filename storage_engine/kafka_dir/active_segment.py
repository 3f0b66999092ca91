"""Writes the newest segment of a log in a plain Kafka directory. Only the files of this segment grow.

The indexes of this segment are preallocated to segment.index.bytes. If the topic sets `preallocate`, the .log is
preallocated to segment.bytes. All files are truncated to their contents when the segment is closed. GrowingSegment
computes every change of the files before a byte is written. Bytes beyond GrowingSegment's size are not part of the log.
After a crash, recovery cuts these bytes off.

The class is not thread-safe: the PartitionLog that owns the segment makes one call at a time. After an error, do not
write to the segment again: only loading the log again shows which bytes are on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing

from storage_engine.config.kafka_dir_keys import LogConfig
from storage_engine.log.filenames import INDEX, LOG, TIME_INDEX, TRANSACTION_INDEX, offset_name
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.indexes.offset_index import OFFSET_ENTRY
from storage_engine.log.indexes.time_index import TIME_ENTRY
from storage_engine.log.indexes.transaction_index import (
    ABORTED_ENTRY_BYTES,
    AbortedTransaction,
    encode_transaction_index,
)
from storage_engine.log.partition_state import Segment
from storage_engine.record.batch import BatchTable, ByteArray
from storage_engine.storage import Directory, DirectoryFile
from storage_engine.storage.bounded_files import BoundedFile


class ActiveSegment:
    """The files of one segment. They are open, unless the process has too many files open."""

    def __init__(
        self,
        storage: Directory,
        folder: str,
        growing: GrowingSegment,
        config: LogConfig,
        aborted: Sequence[AbortedTransaction] = (),
        modified_ms: int = 0,
    ) -> None:
        """Open the files of a segment, and create missing files.

        Args:
            growing: describes the contents of the files.
            aborted: the entries of the segment's .txnindex.
        """
        self.growing = growing
        self._storage = storage
        self._stem = f"{folder}/{offset_name(growing.base_offset)}"
        self._aborted = list(aborted)
        self._modified_ms = modified_ms
        self._transactions: DirectoryFile | None = None
        self._written_offsets, self._written_times = len(growing.offset_entries), len(growing.time_entries)
        with ExitStack() as opened:
            self._log, self._offsets, self._times = (
                opened.enter_context(closing(BoundedFile(storage, self._stem + suffix)))
                for suffix in (LOG, INDEX, TIME_INDEX)
            )
            self._preallocate_indexes(config)
            self._preallocated = config.preallocate
            if self._preallocated:
                self._log.truncate(max(config.segment_bytes, growing.size))
            opened.pop_all()

    def _trim_indexes(self) -> None:
        self._offsets.truncate(self._written_offsets * OFFSET_ENTRY.itemsize)
        self._times.truncate(self._written_times * TIME_ENTRY.itemsize)

    def _preallocate_indexes(self, config: LogConfig) -> None:
        for file, entry, written in (
            (self._offsets, OFFSET_ENTRY.itemsize, self._written_offsets),
            (self._times, TIME_ENTRY.itemsize, self._written_times),
        ):
            file.truncate(max(config.segment_index_bytes // entry, written) * entry)

    def segment(self) -> Segment:
        """Describes the segment for readers."""
        return self.growing.segment(offset_name(self.growing.base_offset), self._modified_ms, tuple(self._aborted))

    def append(self, data: ByteArray, table: BatchTable, now_ms: int) -> None:
        """Write batches that already have their offsets, and the index entries for them."""
        self._log.write_at(self.growing.size, [data.data])
        self.growing.append_all(table)
        self._modified_ms = now_ms
        self._write_entries()

    def _write_entries(self) -> None:
        growing = self.growing
        if len(growing.offset_entries) > self._written_offsets:
            entries = growing.offset_index_bytes(self._written_offsets)
            self._offsets.write_at(self._written_offsets * OFFSET_ENTRY.itemsize, [entries])
            self._written_offsets = len(growing.offset_entries)
        if len(growing.time_entries) > self._written_times:
            entries = growing.time_index_bytes(self._written_times)
            self._times.write_at(self._written_times * TIME_ENTRY.itemsize, [entries])
            self._written_times = len(growing.time_entries)

    def add_aborted(self, aborted: Sequence[AbortedTransaction]) -> None:
        """Add transactions to the .txnindex, after their abort markers were appended. The first transaction creates the
        file.
        """
        if not aborted:
            return
        file = self._transaction_index()
        file.write_at(len(self._aborted) * ABORTED_ENTRY_BYTES, [encode_transaction_index(aborted)])
        self._aborted += aborted

    def _transaction_index(self) -> DirectoryFile:
        if self._transactions is None:
            self._transactions = BoundedFile(self._storage, self._stem + TRANSACTION_INDEX)
        return self._transactions

    def sync(self) -> None:
        """Make all written bytes and the file names durable."""
        for file in (self._log, self._offsets, self._times, self._transactions):
            if file is not None:
                file.sync()

    def close(self) -> Segment:
        """Add the last time index entry, trim the files, sync and close them. Returns the closed segment."""
        self.growing.seal()
        self._write_entries()
        if self._preallocated:  # trimming changes the file's time, which decides the age of records without timestamps
            self._log.truncate(self.growing.size)
        self._trim_indexes()
        self.sync()
        self.abandon()
        return self.segment()

    def abandon(self) -> None:
        """Close the files without trimming or syncing them."""
        for file in (self._log, self._offsets, self._times, self._transactions):
            if file is not None:
                file.close()
