"""Reads and writes the .snapshot file (Kafka's ProducerStateManager): the state of each producer up to an offset.

    offset size field
         0    2 version  1
         2    4 crc      CRC-32C of byte 6 to the end
         6    4 entries
        10      entries, 46 bytes each:

         0    8 producer_id
         8    2 producer_epoch
        10    4 last_sequence        the last sequence of its last batch, -1: none
        14    8 last_offset          the last offset of its last batch, -1: none
        22    4 offset_delta         the last offset of its last batch minus the first
        26    8 timestamp            the timestamp of its last batch or marker
        34    4 coordinator_epoch    the epoch in its last marker, -1: none
        38    8 txn_first_offset     the first offset of its open transaction, -1: none

All numbers are big-endian. The file's name is an offset in 20 digits: the end offset of the batches that the file
covers. Entries are in the order of Kafka's hash map (producer_state). The file can be rebuilt from the .log files.
When Kafka loads a log, Kafka reads the newest snapshot, and then only the batches after the snapshot. All functions
are pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from storage_engine.errors import CorruptionError

_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
HEADER_BYTES = _HEADER.size
ENTRY_BYTES = _ENTRY.size
assert (HEADER_BYTES, ENTRY_BYTES) == (10, 46)
_VERSION = 1
_CRC_START = 6
_REMEDY = "The file can be rebuilt from the .log files."


class ProducerEntry(NamedTuple):
    """The state of one producer. The fields are those of the file."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the bytes of the file, with the entries in the given order."""
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = b"".join(packed)
    unsealed = _HEADER.pack(_VERSION, 0, len(packed)) + body
    return _HEADER.pack(_VERSION, crc32c(unsealed[_CRC_START:]), len(packed)) + body


EMPTY_SNAPSHOT = encode_snapshot(())
"""The snapshot that Kafka writes for a log without idempotent producers."""


def decode_snapshot(data: bytes, file: str) -> tuple[ProducerEntry, ...]:
    """Return the entries of a file, in its order.

    Raises:
        CorruptionError: version, CRC or length is wrong.
    """
    if len(data) < HEADER_BYTES:
        raise CorruptionError(file, 0, f"at least {HEADER_BYTES} bytes", str(len(data)), _REMEDY)
    version, crc, entries = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise CorruptionError(file, 0, f"version {_VERSION}", str(version), _REMEDY)
    actual = crc32c(data[_CRC_START:])
    if crc != actual:
        raise CorruptionError(file, 2, f"CRC {actual:#010x} of the bytes after the CRC field", f"{crc:#010x}", _REMEDY)
    size = HEADER_BYTES + entries * ENTRY_BYTES
    if entries < 0 or len(data) != size:
        raise CorruptionError(file, _CRC_START, f"{size} bytes for {entries} producers", str(len(data)), _REMEDY)
    return tuple(ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(data[HEADER_BYTES:]))
