"""Reads the entries of a .log in order (Kafka's FileLogInputStream): batches, or messages of magic 0 and 1.

    offset size field
         0    8 base_offset
         8    4 batch_length   bytes after this field
        16    1 magic          2: see record.header for the other fields; 0 and 1: see record.legacy_records

Only the length of an entry is trusted: the length determines where the next entry begins, whatever the other fields
contain. So an entry is printed even if all its other fields are wrong. If an entry is cut off, it is the last entry.
After an impossible length, the start of the next entry is unknown. The module record.batch also reads headers, but
refuses damaged headers. This module must print damaged headers, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lakelog.dump.reading.dumped_file import storage_of
from storage_engine.errors import CorruptionError
from storage_engine.record.batch import BatchTable, ByteArray
from storage_engine.record.header import (
    BATCH_HEADER,
    HEADER_BYTES,
    HEADER_BYTES_UP_TO_MAGIC,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    SHORTEST,
)
from storage_engine.storage import Storage

_READ_BYTES = 4 * 1024**2
SHORTEST_LENGTH = min(SHORTEST)
"""The smallest length that Kafka accepts, for any magic."""


class LogFile(NamedTuple):
    """A .log file, with its size at the time when it was opened."""

    storage: Storage
    key: str
    size: int

    @classmethod
    def of(cls, path: Path) -> LogFile:
        """The file at a path.

        Raises:
            NotFoundError, StorageError: the file cannot be read.
        """
        storage, key = storage_of(path)
        storage.read(key, 0, 0)  # raises an error of lakelog.errors if the file cannot be opened
        return cls(storage, key, path.stat().st_size)

    @property
    def name(self) -> str:
        return f"{self.storage.uri}/{self.key}"

    def read(self, position: int, length: int) -> bytes:
        return self.storage.read(self.key, position, length)


class LogEntries(NamedTuple):
    """Neighbouring entries of a .log: batches, or messages of magic 0 and 1.

    log_name: the file, for errors.
    data: uint8; it begins with the first entry and can extend beyond the last.
    position: the position of data in the file.
    table: the fields of the headers, unchecked. For a message of magic 0 or 1 only position, size, offsets and magic
        are meaningful.
    """

    log_name: str
    data: ByteArray
    position: int
    table: BatchTable

    @classmethod
    def of(cls, log: LogFile, position: int, data: bytes, starts: list[int], end: int) -> LogEntries:
        """The entries in data.

        Args:
            log: the file.
            position: the position of data in the file.
            starts: where in data each entry begins.
            end: where in data the last entry ends.
        """
        # If an entry is shorter than a header, the bytes after the entry are used, as in Kafka. At the file's end,
        # zeros are used.
        padded = np.frombuffer(data + bytes(HEADER_BYTES), np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(padded, HEADER_BYTES)
        headers = windows[starts].reshape(-1).view(BATCH_HEADER)
        fields = {name: headers[name].astype(np.int64) for name in BATCH_HEADER.names or ()}
        positions = np.array(starts, np.int64)
        # The offset of a message is also its last offset. A compressed message has the offset of the last message in it.
        deltas = np.where(fields["magic"] < MAGIC, 0, fields["last_offset_delta"])
        table = BatchTable(
            positions=positions,
            sizes=np.diff(positions, append=end),
            base_offsets=fields["base_offset"],
            last_offsets=fields["base_offset"] + deltas,
            leader_epochs=fields["partition_leader_epoch"],
            attributes=fields["attributes"],
            base_timestamps=fields["base_timestamp"],
            max_timestamps=fields["max_timestamp"],
            producer_ids=fields["producer_id"],
            producer_epochs=fields["producer_epoch"],
            base_sequences=fields["base_sequence"],
            records_counts=fields["records_count"],
            crcs=fields["crc"],
            magics=fields["magic"],
        )
        return cls(log.name, padded, position, table)

    def part(self, rows: slice) -> LogEntries:
        return self._replace(table=self.table.select(rows))

    @property
    def end(self) -> int:
        """The position in the file after the last entry."""
        return self.position + self.table.end


def read_entries(log: LogFile) -> Iterator[LogEntries]:
    """All entries, up to one that is cut off.

    Raises:
        CorruptionError: an entry has an impossible length.
    """
    position = 0
    wanted = _READ_BYTES
    while log.size - position > HEADER_BYTES_UP_TO_MAGIC:
        available = min(wanted, log.size - position)
        data = log.read(position, available + HEADER_BYTES)
        starts, end = _whole_entries(data, available)
        if starts:
            yield LogEntries.of(log, position, data, starts, end)
            position += end
            wanted = _READ_BYTES
            continue
        size = _entry_size(log, position, data)
        if size > log.size - position:
            return
        # The entry is larger than the bytes that were read, so the next round reads more. It also reads a few
        # bytes after the entry. They are fewer than the bytes of the smallest entry that Kafka accepts.
        wanted = size + HEADER_BYTES_UP_TO_MAGIC


def entry_at(log: LogFile, position: int) -> LogEntries | None:
    """The header of the entry at a position; None if the log ends there or the entry is cut off.

    Raises:
        CorruptionError: the entry has an impossible length.
    """
    if log.size - position <= HEADER_BYTES_UP_TO_MAGIC:
        return None
    data = log.read(position, HEADER_BYTES)
    size = _entry_size(log, position, data)
    return LogEntries.of(log, position, data, [0], size) if size <= log.size - position else None


def entry_length(data: bytes | memoryview, position: int = 0) -> int:
    """The number of bytes after the length field, according to the header at a position."""
    return int.from_bytes(data[position + LENGTH_POSITION : position + LOG_OVERHEAD], "big", signed=True)


def _whole_entries(data: bytes, available: int) -> tuple[list[int], int]:
    """Where each whole entry in the first `available` bytes begins, and where the last one ends."""
    starts = []
    position = 0
    while position + HEADER_BYTES_UP_TO_MAGIC < available:
        length = entry_length(data, position)
        end = position + LOG_OVERHEAD + length
        if length < SHORTEST_LENGTH or end > available:
            break
        starts.append(position)
        position = end
    return starts, position


def _entry_size(log: LogFile, position: int, data: bytes) -> int:
    """The size of an entry in bytes, according to its header. data begins with the header."""
    length = entry_length(data)
    if length < SHORTEST_LENGTH:
        raise CorruptionError(log.name, position, f"a batch length of at least {SHORTEST_LENGTH}", str(length))
    return LOG_OVERHEAD + length
