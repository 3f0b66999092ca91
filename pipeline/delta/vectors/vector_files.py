"""Reads and writes deletion vectors: lists of the deleted rows of a table's data files.

    <table>/deletion_vector_<UUID>.bin      1 byte with the version, 1; then the vectors
    a vector                                its size, the bitmap (`pipeline.delta.vectors.bitmap`), and the CRC-32 of the
                                            bitmap. Size and CRC-32 are big-endian and have 4 bytes each.

A commit of Delta's log names a data file together with its vector (`pipeline.delta.vectors.table_files`). A file of
vectors never changes: if more rows are deleted, a new file has the new vector. A small vector can also be in the log
itself. Lakelog reads such vectors, but does not write them.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.delta.vectors.bitmap import Numbers, decode, encode
from storage_engine.errors import StorageError
from storage_engine.storage import Storage

_VERSION = b"\x01"
_IN_TABLE, _IN_LOG = "u", "i"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
"""The digits of Z85, which encodes 4 bytes as 5 digits."""
_UUID_DIGITS = 20


@dataclass(frozen=True)
class DeletionVector:
    """Where a deletion vector is, as Delta's log says it.

    kind: u: in a file of the table's folder; i: in the log; p: in a file with an absolute path.
    place: u: perhaps a folder, and the UUID in Z85; i: the bitmap in Z85; p: the path.
    offset: the position in the file; None: 0.
    size: the bytes of the bitmap.
    rows: the number of deleted rows.
    """

    kind: str
    place: str
    offset: int | None
    size: int
    rows: int

    @classmethod
    def from_action(cls, found: Mapping[str, Any]) -> DeletionVector:
        """From the field `deletionVector` of an action."""
        place = found["pathOrInlineDv"]
        return cls(found["storageType"], place, found.get("offset"), found["sizeInBytes"], found["cardinality"])

    @property
    def action(self) -> dict[str, Any]:
        """The field `deletionVector` of an action."""
        found: dict[str, Any] = {"storageType": self.kind, "pathOrInlineDv": self.place}
        if self.offset is not None:
            found["offset"] = self.offset
        return {**found, "sizeInBytes": self.size, "cardinality": self.rows}

    @property
    def is_outside(self) -> bool:
        """Whether the vector is neither in the table's folder nor in its log."""
        return self.kind not in (_IN_TABLE, _IN_LOG)

    @property
    def file(self) -> str | None:
        """The file in the table's folder that contains the vector; None if there is no such file."""
        if self.kind != _IN_TABLE:
            return None
        folder, digits = self.place[:-_UUID_DIGITS], self.place[-_UUID_DIGITS:]
        return (f"{folder}/" if folder else "") + _file_name(uuid.UUID(bytes=_from_z85(digits)))


def read_vector(storage: Storage, vector: DeletionVector | None) -> Numbers:
    """The numbers of the deleted rows, sorted; none if there is no vector.

    Args:
        storage: the storage that begins at the table.

    Raises:
        StorageError: the vector cannot be read.
    """
    if vector is None:
        return np.zeros(0, np.int64)
    file = None
    try:
        file = vector.file
        if file is None:
            return decode(_from_z85(vector.place)[: vector.size])
        found = storage.read(file, vector.offset or 0, vector.size + 8)
        size, crc = struct.unpack(">I", found[:4])[0], struct.unpack(">I", found[-4:])[0]
        if (size, crc) != (vector.size, zlib.crc32(found[4:-4])):
            raise ValueError("the size or the CRC-32 of the vector does not fit")
        return decode(found[4:-4])
    except (ValueError, struct.error) as error:
        raise StorageError(
            f"{storage.uri}/{file or '_delta_log'}",
            f"has a damaged deletion vector: {error}",
            "Restore the file from a backup, or restore the table to an older version.",
        ) from error


def write_vectors(storage: Storage, vectors: Sequence[Numbers]) -> list[DeletionVector]:
    """Write vectors into one new file.

    Args:
        vectors: the numbers of the deleted rows, sorted.
    """
    if not vectors:
        return []
    name = uuid.uuid4()
    content = bytearray(_VERSION)
    made = []
    for rows in vectors:
        bitmap = encode(rows)
        made.append(DeletionVector(_IN_TABLE, _to_z85(name.bytes), len(content), len(bitmap), len(rows)))
        content += struct.pack(">I", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap))
    storage.put_new(_file_name(name), bytes(content))
    return made


def _file_name(name: uuid.UUID) -> str:
    return f"deletion_vector_{name}.bin"


def _to_z85(data: bytes) -> str:
    """Z85 of some bytes, whose number is a multiple of 4."""
    digits = []
    for (number,) in struct.iter_unpack(">I", data):
        digits += [_DIGITS[number // 85**power % 85] for power in (4, 3, 2, 1, 0)]
    return "".join(digits)


def _from_z85(text: str) -> bytes:
    found = bytearray()
    for first in range(0, len(text), 5):
        number = 0
        for digit in text[first : first + 5]:
            number = 85 * number + _DIGITS.index(digit)
        if number >> 32:
            raise ValueError("a text is not Z85")
        found += number.to_bytes(4, "big")
    return bytes(found)
