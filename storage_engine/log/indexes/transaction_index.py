"""Reads and writes the .txnindex file (Kafka's TransactionIndex): the aborted transactions that ended in a segment.

    offset size field
         0    2 version             0
         2    8 producer_id
        10    8 first_offset        the offset of the transaction's first record
        18    8 last_offset         the offset of the marker that aborted it
        26    8 last_stable_offset  the first offset of the oldest transaction that is still open after the marker; if
                                    there is no such transaction, the offset after the marker

All numbers are big-endian, and last offsets strictly increase. The file exists only if it has entries. The file can
be rebuilt from the .log, and from the state of the producers at the segment's base offset. All functions are pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from storage_engine.errors import CorruptionError

ABORTED_ENTRY = struct.Struct(">hqqqq")
ABORTED_ENTRY_BYTES = ABORTED_ENTRY.size
assert ABORTED_ENTRY_BYTES == 34
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """An aborted transaction. Readers of committed records do not get its records. The fields are those of the file."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def touches(self, first_offset: int, end_offset: int) -> bool:
        """Whether the transaction can have records with first_offset <= offset < end_offset."""
        return self.first_offset < end_offset and self.last_offset >= first_offset


def encode_transaction_index(aborted: Iterable[AbortedTransaction]) -> bytes:
    """Return the bytes of the file. Without aborted transactions, there are no bytes, and no file is written."""
    return b"".join(ABORTED_ENTRY.pack(_VERSION, *each) for each in aborted)


def decode_transaction_index(data: bytes, file: str) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions in a file.

    Raises:
        CorruptionError: an entry is incomplete, or has another version or impossible offsets. Kafka also fails then.
    """
    aborted = []
    lowest = 0
    if len(data) % ABORTED_ENTRY_BYTES:
        whole = len(data) // ABORTED_ENTRY_BYTES * ABORTED_ENTRY_BYTES
        raise CorruptionError(file, whole, f"an entry of {ABORTED_ENTRY_BYTES} bytes", f"{len(data) - whole}")
    for position in range(0, len(data), ABORTED_ENTRY_BYTES):
        version, *fields = ABORTED_ENTRY.unpack_from(data, position)
        entry = AbortedTransaction(*fields)
        if version != _VERSION:
            raise CorruptionError(file, position, f"version {_VERSION}", str(version))
        if not (lowest <= entry.last_offset and 0 <= entry.first_offset <= entry.last_offset):
            raise CorruptionError(
                file, position, f"a last offset of at least {lowest}, and a first offset between 0 and the last offset",
                f"first offset {entry.first_offset}, last offset {entry.last_offset}",
            )  # fmt: skip
        lowest = entry.last_offset + 1
        aborted.append(entry)
    return tuple(aborted)
