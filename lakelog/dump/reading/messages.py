"""Reads the messages in an entry of magic 0 or 1: the entry itself, or the messages in the value of a wrapper (their
format is in record.legacy_records).

This module reads messages one at a time in Python. That is slow, but only old logs contain messages of magic 0 and 1.
The module record.legacy_records decodes these messages in columns, but only if every CRC and every offset is correct.
In this module, a message is returned unchanged, as in Kafka's DeepRecordsIterator.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lakelog.dump.reading.entries import SHORTEST_LENGTH, LogEntries, entry_length
from storage_engine.errors import CorruptionError
from storage_engine.record.compression import LZ4_OF_MAGIC_0, Codec
from storage_engine.record.header import CODEC_MASK, LOG_APPEND_TIME, LOG_OVERHEAD, NO_TIMESTAMP
from storage_engine.record.kernels.columns import Sections
from storage_engine.record.record_columns import CREATE_TIME, LOG_APPEND_TIME_TYPE, NO_TIMESTAMP_TYPE
from storage_engine.record.sections import Room, uncompressed


class LegacyMessage(NamedTuple):
    """An entry of magic 0 or 1, or a message inside such an entry."""

    offset: int
    data: bytes  # beginning with the CRC

    @classmethod
    def of(cls, entries: LogEntries, row: int) -> LegacyMessage:
        """The entry in this row. Messages inside the entry are not read."""
        table = entries.table
        start, size = int(table.positions[row]), int(table.sizes[row])
        return cls(int(table.base_offsets[row]), entries.data[start + LOG_OVERHEAD : start + size].tobytes())

    @property
    def crc(self) -> int:
        return int.from_bytes(self.data[:4], "big")

    @property
    def valid(self) -> bool:
        return zlib.crc32(self.data[4:]) == self.crc

    @property
    def magic(self) -> int:
        return int.from_bytes(self.data[4:5], "big", signed=True)

    @property
    def codec(self) -> int:
        return self.data[5] & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        if self.magic == 0:
            return NO_TIMESTAMP_TYPE
        return LOG_APPEND_TIME_TYPE if self.data[5] & LOG_APPEND_TIME else CREATE_TIME

    @property
    def timestamp(self) -> int:
        return NO_TIMESTAMP if self.magic == 0 else int.from_bytes(self.data[6:14], "big", signed=True)

    def key_and_value(self, log_name: str, position: int) -> tuple[bytes | None, bytes | None]:
        """The key and the value; None if there is none. The position is that of the entry, for errors.

        Raises:
            CorruptionError: the key or the value ends outside the message.
        """
        start = 6 if self.magic == 0 else 14
        found: list[bytes | None] = []
        for name in ("key", "value"):
            length = int.from_bytes(self.data[start : start + 4], "big", signed=True)
            start += 4
            if start > len(self.data) or length > len(self.data) - start:
                raise CorruptionError(log_name, position, f"a {name} within its message", "a length beyond its end")
            found.append(None if length < 0 else self.data[start : start + length])
            start += max(length, 0)
        return found[0], found[1]


def messages_in(entry: LegacyMessage, log_name: str, position: int) -> Iterator[LegacyMessage]:
    """The messages in a wrapper, with their offsets in the log. If the entry is not a wrapper, the entry itself.

    The messages are made one by one, because a wrapper of a few megabytes can have millions of them. All of them are
    checked before the first is returned.

    Raises:
        CorruptionError: the wrapper's value cannot be decompressed, is empty, or contains another wrapper.
    """
    if entry.codec == Codec.NONE:
        yield entry
        return
    data = _uncompressed(entry, log_name, position)
    last, is_nested = None, False
    for start, _ in _bounds(data, log_name, position):
        last = start
        is_nested = is_nested or bool(data[start + LOG_OVERHEAD + 5] & CODEC_MASK)
    if last is None or is_nested:
        found = "no message" if last is None else "a compressed message"
        raise CorruptionError(log_name, position, "uncompressed messages inside the compressed message", found)
    # Offsets in a wrapper of magic 1 are relative, unless an old librdkafka left 0 as the wrapper's own offset.
    last_offset = _offset(data, last)
    shift = entry.offset - last_offset if entry.magic == 1 and entry.offset else 0
    if shift < 0:
        raise CorruptionError(
            log_name,
            position,
            f"only offsets up to {entry.offset}, the compressed message's own offset",
            str(last_offset),
        )
    for start, end in _bounds(data, log_name, position):
        yield LegacyMessage(_offset(data, start) + shift, bytes(data[start + LOG_OVERHEAD : end]))


def _uncompressed(wrapper: LegacyMessage, log_name: str, position: int) -> memoryview:
    _, value = wrapper.key_and_value(log_name, position)
    codec = LZ4_OF_MAGIC_0 if wrapper.magic == 0 and wrapper.codec == Codec.LZ4 else wrapper.codec
    stored = np.frombuffer(value or b"", np.uint8)
    whole = Sections(stored, np.zeros(1, np.int64), np.array([len(stored)], np.int64))
    inner = uncompressed(whole, np.array([codec]), np.array([position]), log_name, Room())
    return inner.data[: int(inner.ends[0])].data


def _bounds(data: memoryview, log_name: str, position: int) -> Iterator[tuple[int, int]]:
    """Where each message in the decompressed value of a wrapper begins and ends."""
    start = 0
    while start + LOG_OVERHEAD <= len(data):
        length = entry_length(data, start)
        end = start + LOG_OVERHEAD + length
        if length < SHORTEST_LENGTH:
            raise CorruptionError(
                log_name, position, f"a message length of at least {SHORTEST_LENGTH}", str(length)
            )  # fmt: skip
        if end > len(data):
            return  # the last message is cut off; Kafka stops here, too
        yield start, end
        start = end


def _offset(data: memoryview, start: int) -> int:
    return int.from_bytes(data[start : start + 8], "big", signed=True)
