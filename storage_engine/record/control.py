"""Encodes and decodes control records. A broker writes control records into a log between the records of producers.

A control batch has one record. The key of this record contains the type. Readers never get control records. The formats
are those of Kafka's ControlRecordType and EndTransactionMarker:

    key    offset size field
                0    2 version            0
                2    2 type               0 abort, 1 commit; other types are only in Kafka's metadata log

    value of a transaction marker
                0    2 version            0
                2    4 coordinator_epoch

All numbers are big-endian. Later versions of the formats can append fields; this module ignores these fields.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from storage_engine.errors import CorruptionError
from storage_engine.record.batch import BatchTable, ByteArray
from storage_engine.record.decoding import decode_batches

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")
_VERSION = 0


class ControlType(IntEnum):
    """The types of control records in a topic's log."""

    ABORT = 0
    COMMIT = 1


class SnapshotControlType(IntEnum):
    """The types of the first and the last control record in a snapshot of Kafka's metadata log."""

    HEADER = 3
    FOOTER = 4


class TransactionMarker(NamedTuple):
    """The end of a transaction on one partition.

    coordinator_epoch: the epoch of the coordinator that wrote the marker.
    """

    control_type: ControlType
    coordinator_epoch: int


def encode_marker(marker: TransactionMarker) -> tuple[bytes, bytes]:
    """Return key and value of the marker's record."""
    return _KEY.pack(_VERSION, marker.control_type), _MARKER.pack(_VERSION, marker.coordinator_epoch)


def control_type(key: bytes | None, file: str, position: int) -> int:
    """Return the type in a control record's key. The type may be a number that ControlType does not have.

    Args:
        file, position: the place of the batch, for an error.

    Raises:
        CorruptionError: the key is too short, or its version is negative.
    """
    if key is None or len(key) < _KEY.size:
        found = "none" if key is None else f"{len(key)} bytes"
        raise CorruptionError(file, position, f"a control record with a key of {_KEY.size} bytes", found)
    version, kind = _KEY.unpack_from(key)
    if version < _VERSION:
        raise CorruptionError(file, position, f"a control record of version {_VERSION}", str(version))
    return int(kind)


def decode_marker(key: bytes | None, value: bytes | None, file: str, position: int) -> TransactionMarker | None:
    """Decode a transaction marker; returns None for a control record of another type.

    Raises:
        CorruptionError: key or value is too short, or has a negative version.
    """
    kind = control_type(key, file, position)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if value is None or len(value) < _MARKER.size:
        found = "none" if value is None else f"{len(value)} bytes"
        raise CorruptionError(file, position, f"a marker with a value of {_MARKER.size} bytes", found)
    version, coordinator_epoch = _MARKER.unpack_from(value)
    if version < _VERSION:
        raise CorruptionError(file, position, f"a marker of version {_VERSION}", str(version))
    return TransactionMarker(ControlType(kind), coordinator_epoch)


def markers(
    data: ByteArray, table: BatchTable, file: str, file_position: int
) -> dict[int, tuple[TransactionMarker, int]]:
    """Return the marker and its timestamp for each control batch in the table, by the batch's position in `data`.

    Control batches without a marker are not in the result. There are two kinds: batches whose record has another type,
    and batches without records. Compaction leaves a batch without records after it has deleted a marker.

    Args:
        data: uint8, the bytes from which the table was scanned.
        file: the file to name in an error.
        file_position: the position of `data` in that file.

    Raises:
        CorruptionError: a control record is damaged.
    """
    control = table.select(table.is_control & (table.records_counts > 0))
    if not len(control):
        return {}
    records = decode_batches(data, control, file, file_position, control=True)
    offsets = records["offset"].to_numpy()
    first_rows = np.searchsorted(offsets, control.base_offsets)
    keys, values, timestamps = (records[name] for name in ("key", "value", "timestamp"))
    found = {}
    for position, row, last in zip(
        control.positions.tolist(), first_rows.tolist(), control.last_offsets.tolist(), strict=True
    ):
        if row == len(offsets) or offsets[row] > last:
            raise CorruptionError(
                file, file_position + position, f"a control record in the batch that ends at offset {last}", "none"
            )
        marker = decode_marker(keys[row].as_py(), values[row].as_py(), file, file_position + position)
        if marker is not None:
            found[position] = marker, timestamps[row].as_py()
    return found
