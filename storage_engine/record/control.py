"""Control records: what a broker writes into a log between the records of producers.

A control batch holds one record. Its key says what it is; readers are never given it (Kafka's ControlRecordType and
EndTransactionMarker):

    key    offset size field
                0    2 version            0
                2    2 type               0 abort, 1 commit; others belong to a cluster's own metadata log

    value of a transaction's marker
                0    2 version            0
                2    4 coordinator_epoch

Big-endian. Later versions may append fields, which are passed over.
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
    """What a control record is; any other number is none that a log of ours can hold."""

    ABORT = 0
    COMMIT = 1


class TransactionMarker(NamedTuple):
    """The end of a transaction on one partition. coordinator_epoch: of the coordinator that wrote it."""

    control_type: ControlType
    coordinator_epoch: int


def encode_marker(marker: TransactionMarker) -> tuple[bytes, bytes]:
    """Key and value of the marker's record."""
    return _KEY.pack(_VERSION, marker.control_type), _MARKER.pack(_VERSION, marker.coordinator_epoch)


def control_type(key: bytes | None, file: str, position: int) -> int:
    """The type that a control record's key names, which need not be one of ControlType.

    Args:
        file, position: the batch, for an error.

    Raises:
        CorruptionError: the key is too short, or of a version below 0.
    """
    if key is None or len(key) < _KEY.size:
        found = "none" if key is None else f"{len(key)} bytes"
        raise CorruptionError(file, position, f"a control record with a key of {_KEY.size} bytes", found)
    version, kind = _KEY.unpack_from(key)
    if version < _VERSION:
        raise CorruptionError(file, position, f"a control record of version {_VERSION}", str(version))
    return int(kind)


def decode_marker(key: bytes | None, value: bytes | None, file: str, position: int) -> TransactionMarker | None:
    """The marker that a control record is; None for a control record of another type.

    Raises:
        CorruptionError: key or value are too short, or of a version below 0.
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
    """The marker and its timestamp of each control batch among these, by the batch's position in data.

    A control batch without records is left of a transaction that was compacted away; it says nothing, and is not among
    them. Neither is one whose record is no marker.

    Args:
        data: uint8, the bytes that table was scanned from. file: what to name in an error. file_position: where in it
            data begins.

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
            raise CorruptionError(file, file_position + position, f"a control record up to offset {last}", "none")
        marker = decode_marker(keys[row].as_py(), values[row].as_py(), file, file_position + position)
        if marker is not None:
            found[position] = marker, timestamps[row].as_py()
    return found
