"""Reads Confluent's wire format: the bytes that Confluent's serializers write before a value.

    magic    1 byte, 0
    id       4 bytes, big-endian: the id of the schema with which the value was written
    indexes  only in Protobuf: the place of the message in its file (`message_indexes`)
    value    the rest, in plain Avro or Protobuf

In JSON, the bytes of this format and of plain values look different. In Avro and Protobuf, a plain value can begin with
any byte. So a setting, not the value, says which of the two formats a topic has.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.decoder import UndecodableError, value_bytes

_MAGIC = 0
ID_LENGTH = 5
"""The number of bytes of the magic byte and the id."""
_MOST_ID = 2**31 - 1
_MOST_INDEXES = 64
"""A message that is nested more deeply than this does not exist."""


def schema_id(value: bytes) -> int:
    """The id at the start of a value.

    Raises:
        UndecodableError: the value does not begin with the magic byte and an id.
    """
    if len(value) < ID_LENGTH or value[0] != _MAGIC:
        raise UndecodableError("no_schema_id: the value does not begin with the byte 0 and an id of 4 bytes")
    number = int.from_bytes(value[1:ID_LENGTH], "big")
    if number > _MOST_ID:
        raise UndecodableError("no_schema_id: the 4 bytes after the byte 0 are no id, because ids are below 2^31")
    return number


def rows_by_id(values: pa.BinaryArray) -> dict[int, npt.NDArray[np.int64]]:
    """The rows of the values that begin with an id, by this id, in ascending order."""
    data, starts, ends = value_bytes(values)
    rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False) & (ends - starts >= ID_LENGTH))
    first = data[starts[rows][:, None] + np.arange(ID_LENGTH)].astype(np.int64)
    ids = first[:, 1:] @ (1 << np.arange(24, -1, -8))
    has_id = (first[:, 0] == _MAGIC) & (ids <= _MOST_ID)
    rows, ids = rows[has_id], ids[has_id]
    order = np.argsort(ids, kind="stable")
    found, places = np.unique(ids[order], return_index=True)
    return dict(zip(found.tolist(), np.split(rows[order], places[1:]), strict=True)) if len(found) else {}


def after_id(value: bytes) -> bytes:
    """The rest of a value that begins with an id."""
    return value[ID_LENGTH:]


def message_indexes(rest: bytes) -> tuple[tuple[int, ...], bytes]:
    """The place of a Protobuf message in its file, and the bytes after it.

    (1, 0) is the first message inside the second message of the file. In the bytes, the number of indexes comes first.
    All numbers are zigzag varints. The place (0,) is written as a single byte 0.

    Raises:
        UndecodableError: the bytes do not begin with a place.
    """
    count, at = _varint(rest, 0)
    if count == 0:
        return (0,), rest[at:]
    if not 0 < count <= _MOST_INDEXES:
        raise UndecodableError("no_message_indexes: the id is not followed by the place of a message")
    found = []
    for _ in range(count):
        index, at = _varint(rest, at)
        found.append(index)
    return tuple(found), rest[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
    raise UndecodableError("no_message_indexes: the id is not followed by the place of a message")
