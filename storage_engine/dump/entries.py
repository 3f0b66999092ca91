"""What stands in a .log, one behind the other (Kafka's FileLogInputStream): batches, or messages of magic 0 and 1.

    offset size field
         0    8 base_offset
         8    4 batch_length   bytes after this field
        16    1 magic          2: record.batch draws the rest; 0 and 1: record.legacy does

Only the length is believed: it says where the next entry begins, whatever the rest looks like. So an entry is shown even
where nothing in it is right. Behind one that is cut off there are no more, and a length that no entry can have leaves
nothing to go on from. record.batch reads headers, too, but rightly refuses what would only be shown here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from storage_engine.dump.dumped_file import storage_of
from storage_engine.errors import CorruptionError
from storage_engine.record.batch import (
    BATCH_HEADER,
    HEADER_BYTES,
    HEADER_BYTES_UP_TO_MAGIC,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    SHORTEST,
    BatchTable,
    ByteArray,
)
from storage_engine.storage.posix import PosixStorage

_READ_BYTES = 4 * 1024**2
SHORTEST_LENGTH = min(SHORTEST)
"""The smallest length that Kafka takes for one, whatever the magic."""


class OpenLog(NamedTuple):
    """A .log file with the size that it had when it was looked at first."""

    storage: PosixStorage
    key: str
    size: int

    @classmethod
    def of(cls, path: Path) -> OpenLog:
        """The file at a path.

        Raises:
            NotFoundError, StorageError: it cannot be read.
        """
        storage, key = storage_of(path)
        storage.read(key, 0, 0)  # says in our words why it cannot be opened
        return cls(storage, key, path.stat().st_size)

    @property
    def name(self) -> str:
        return str(self.storage.path(self.key))

    def read(self, position: int, length: int) -> bytes:
        return self.storage.read(self.key, position, length)


class Entries(NamedTuple):
    """Neighbouring entries of a .log: batches, or messages of magic 0 and 1.

    data: uint8; begins with the first entry and goes on behind the last. position: of data in the file. table: what the
    headers say, unchecked; of a message of magic 0 or 1 only position, size, offsets and magic mean anything.
    """

    log_name: str
    data: ByteArray
    position: int
    table: BatchTable

    @classmethod
    def of(cls, log: OpenLog, position: int, data: bytes, starts: list[int], end: int) -> Entries:
        """Those that begin at these places in data, the last up to `end`; position is that of data in the file."""
        # What a short entry lacks of a header is taken from what follows, as Kafka does; at the file's end from zeros.
        padded = np.frombuffer(data + bytes(HEADER_BYTES), np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(padded, HEADER_BYTES)
        headers = windows[starts].reshape(-1).view(BATCH_HEADER)
        fields = {name: headers[name].astype(np.int64) for name in BATCH_HEADER.names or ()}
        positions = np.array(starts, np.int64)
        # A message's own offset is its last, which in a compressed one is that of the last inside.
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

    def part(self, rows: slice) -> Entries:
        return self._replace(table=self.table.select(rows))

    @property
    def end(self) -> int:
        """Position behind the last one in the file."""
        return self.position + self.table.end


def read_entries(log: OpenLog) -> Iterator[Entries]:
    """All entries, up to one that is cut off.

    Raises:
        CorruptionError: a length that no entry can have.
    """
    position = 0
    wanted = _READ_BYTES
    while log.size - position > HEADER_BYTES_UP_TO_MAGIC:
        available = min(wanted, log.size - position)
        data = log.read(position, available + HEADER_BYTES)
        starts, end = _whole_entries(data, available)
        if starts:
            yield Entries.of(log, position, data, starts, end)
            position += end
            wanted = _READ_BYTES
            continue
        size = _entry_size(log, position, data)
        if size > log.size - position:
            return
        # It is larger than what was read. Kafka never takes an entry shorter than this.
        wanted = size + HEADER_BYTES_UP_TO_MAGIC


def entry_at(log: OpenLog, position: int) -> Entries | None:
    """The header of the entry at a position, None where the log ends or that entry is cut off.

    Raises:
        CorruptionError: a length that no entry can have.
    """
    if log.size - position <= HEADER_BYTES_UP_TO_MAGIC:
        return None
    data = log.read(position, HEADER_BYTES)
    size = _entry_size(log, position, data)
    return Entries.of(log, position, data, [0], size) if size <= log.size - position else None


def entry_length(data: bytes, position: int = 0) -> int:
    """What the header at a position says how many bytes follow its length."""
    return int.from_bytes(data[position + LENGTH_POSITION : position + LOG_OVERHEAD], "big", signed=True)


def _whole_entries(data: bytes, available: int) -> tuple[list[int], int]:
    """Where whole entries in the first bytes begin, and where the last one ends."""
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


def _entry_size(log: OpenLog, position: int, data: bytes) -> int:
    """What an entry's header says how many bytes it takes; data begins with it."""
    length = entry_length(data)
    if length < SHORTEST_LENGTH:
        raise CorruptionError(log.name, position, f"a batch length of at least {SHORTEST_LENGTH}", str(length))
    return LOG_OVERHEAD + length
