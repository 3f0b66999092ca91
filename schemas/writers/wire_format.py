"""Reads Confluent's wire format: the bytes that Confluent's serializers write before a value, or into a header.

    magic    1 byte: 0 or 1
    id       after the magic byte 0: 4 bytes, big-endian, the id of the schema with which the value was written
             after the magic byte 1: 16 bytes, the GUID of this schema
    indexes  only in Protobuf: the place of the message in its file (`message_indexes`)
    value    the rest, in plain Avro or Protobuf

If the record has the header `__value_schema_id`, the header has the bytes before the value, and the record's value has
only the rest. For keys, this is the header `__key_schema_id`. The last header of this name counts. A header that is null
counts as missing. `with_ids_of_headers` puts the bytes of the header before the value, so the other functions need not
know about headers.

In JSON, the bytes of this format and of plain values look different. In Avro and Protobuf, a plain value can begin with
any byte. So a setting, not the value, says which of the two formats a topic has.
"""

from __future__ import annotations

from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.decoder import UndecodableError
from schemas.writers.writer_schemas import SchemaId

KEY_HEADER = "__key_schema_id"
VALUE_HEADER = "__value_schema_id"
ID_LENGTHS = {0: 5, 1: 17}
"""By magic byte, the number of bytes of the magic byte and the id."""
_NO_ID = b"\xff"
"""Stands before the value if the header has no id."""
_MOST_ID = 2**31 - 1
_MOST_INDEXES = 64
"""A message that is nested more deeply than this does not exist."""


def schema_id(value: bytes) -> SchemaId:
    """The id at the start of a value.

    Raises:
        UndecodableError: the value does not begin with a magic byte and an id.
    """
    length = ID_LENGTHS.get(value[0]) if value else None
    if length is None or len(value) < length:
        raise UndecodableError("no_schema_id: neither a header nor the first bytes of the value are the id of a schema")
    found = value[1:length]
    if value[0]:
        return UUID(bytes=found)
    number = int.from_bytes(found, "big")
    if number > _MOST_ID:
        raise UndecodableError("no_schema_id: the 4 bytes after the byte 0 are no id, because ids are below 2^31")
    return number


def id_length(value: bytes) -> int:
    """The number of bytes of the magic byte and the id at the start of a value. `schema_id` must have found the id."""
    return ID_LENGTHS[value[0]]


def json_text(value: bytes) -> bytes:
    """A value in JSON, without an id before it. A text in JSON begins with no magic byte."""
    return value[ID_LENGTHS[value[0]] :] if value[:1] in (b"\0", b"\1") else value


def rows_by_id(values: pa.BinaryArray) -> dict[bytes, npt.NDArray[np.int64]]:
    """The rows of the values that begin with an id, in ascending order, by the magic byte and this id."""
    is_guid = pc.starts_with(values, b"\1")
    starts = pc.if_else(is_guid, *(pc.binary_slice(values, 0, ID_LENGTHS[magic]) for magic in (1, 0)))
    encoded = starts.dictionary_encode()
    numbers = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.argsort(numbers, kind="stable")
    found, places = np.unique(numbers[order], return_index=True)
    rows = dict(zip(found.tolist(), np.split(order, places[1:]), strict=True)) if len(found) else {}
    return {
        start: rows[number]
        for number, start in enumerate(encoded.dictionary.to_pylist())
        if start is not None and _has_id(start)
    }


def _has_id(value: bytes) -> bool:
    try:
        schema_id(value)
    except UndecodableError:
        return False
    return True


def with_ids_of_headers(
    values: pa.BinaryArray, headers: pa.ListArray, name: str, *, has_indexes: bool
) -> pa.BinaryArray:
    """The values. If a record has a header with an id, the bytes of this header come before the record's value.

    Args:
        headers: the headers of the records, as lists of structs of key and value.
        name: the name of the header.
        has_indexes: whether the place of a Protobuf message follows the id.
    """
    pairs = headers.flatten()
    named = np.flatnonzero(pc.equal(pairs.field(0), name).fill_null(False).to_numpy(zero_copy_only=False))
    if not len(named):
        return values
    last = np.full(len(values), -1, np.int64)
    last[pc.list_parent_indices(headers).to_numpy()[named]] = named
    ids = pairs.field(1).cast(pa.binary()).take(pa.array(last, mask=last < 0)).dictionary_encode()
    before = pa.array([_before_value(each, has_indexes) for each in ids.dictionary.to_pylist()], pa.binary())
    return pc.binary_join_element_wise(before.take(ids.indices).fill_null(b""), values, b"")


def _before_value(header: bytes, has_indexes: bool) -> bytes:
    """What a header says, without bytes after it. Only the byte _NO_ID if the header has no id."""
    try:
        schema_id(header)
        rest = header[id_length(header) :]
        after = message_indexes(rest)[1] if has_indexes else rest
    except UndecodableError:
        return _NO_ID
    return header.removesuffix(after)


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
