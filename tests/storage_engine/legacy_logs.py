"""Encodes messages of magic 0 and 1 for tests. Lakelog itself reads these messages but never writes them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from storage_engine.record.batch import BatchTable, ByteArray, scan_batches
from storage_engine.record.compression import Codec, compress
from storage_engine.record.decoding import decode_batches

LOG_APPEND_TIME = 1 << 3

Decoded = tuple[int, int, int, bytes | None, bytes | None]
"""(offset, timestamp, timestamp type, key, value)."""


class Message(NamedTuple):
    """One message, as it stands in a log or in a wrapper."""

    offset: int
    key: bytes | None
    value: bytes | None
    magic: int = 1
    timestamp: int = 1_700_000_000_000
    attributes: int = 0

    def encode(self) -> bytes:
        body = struct.pack(">BB", self.magic, self.attributes)
        if self.magic:
            body += struct.pack(">q", self.timestamp)
        for field in (self.key, self.value):
            body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
        return struct.pack(">qiI", self.offset, len(body) + 4, zlib.crc32(body)) + body


def wrap(
    messages: Sequence[Message] | bytes,
    offset: int,
    codec: int = Codec.GZIP,
    magic: int = 1,
    timestamp: int = 1_700_000_000_000,
    attributes: int = 0,
) -> bytes:
    """A wrapper of these messages, or of what is no set of messages."""
    inner = messages if isinstance(messages, bytes) else b"".join(message.encode() for message in messages)
    value = compress(Codec(codec), inner) if codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4) else inner
    return Message(offset, None, value, magic, timestamp, attributes | codec).encode()


def sealed(entry: bytes | bytearray) -> bytes:
    """The entry with the CRC that belongs to it."""
    return bytes(entry[:12]) + zlib.crc32(entry[16:]).to_bytes(4, "big") + bytes(entry[16:])


def scanned(data: bytes) -> tuple[ByteArray, BatchTable]:
    """A log's bytes and the table of its headers."""
    array = np.frombuffer(data, np.uint8)
    return array, scan_batches(array, "f")


def decoded(data: bytes, first_offset: int = 0, end_offset: int = 2**62) -> list[Decoded]:
    """The records of a log."""
    array, table = scanned(data)
    records = decode_batches(array, table, "f", 0, first_offset, end_offset)
    records.validate(full=True)
    columns = ("offset", "timestamp", "timestamp_type", "key", "value")
    return list(zip(*(records[name].to_pylist() for name in columns), strict=True))
