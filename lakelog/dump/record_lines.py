"""Formats the line of a record of magic 2, with its key and value if they are wanted.

    | offset: 1 CreateTime: 1700000000041 keySize: -1 valueSize: 5 sequence: -1 headerKeys: [] payload: hello

The line of a control record has the operation instead of a key and a value. The end of a transaction is printed as
endTxnMarker and coordinatorEpoch. Some types of control records occur only in the metadata log of a Kafka cluster. For
these records, the line contains the decoded message of the record. If the message cannot be decoded, the line has the
record's type as controlType. Any other control record is damage: the lines end before this record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakelog.dump.decoded_contents import control_text, json_contents, text_contents
from lakelog.dump.fields import sequences, timestamp_types
from lakelog.dump.java_text import java_texts
from lakelog.dump.lines import DumpOptions, base64_text, json_line
from lakelog.dump.reading.decoded_batches import DecodedBatches
from lakelog.dump.reading.dumped_file import DumpedFile
from lakelog.dump.reading.entries import LogEntries
from storage_engine.errors import CorruptionError
from storage_engine.record.batch import Int64Array
from storage_engine.record.control import control_type, decode_marker

_FIELDS = ("offset", "timestamp_type", "timestamp", "key_size", "value_size", "sequence", "header_keys")
_CONTROL_NAMES = {
    "end_txn_marker": "endTxnMarker",
    "coordinator_epoch": "coordinatorEpoch",
    "control_type": "controlType",
}
_CLUSTER_CONTROL_TYPES = {
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}
"""The control types that occur only in a cluster's own metadata log."""


def record_lines(
    batches: LogEntries, decoded: DecodedBatches, file: DumpedFile, wanted: DumpOptions
) -> tuple[list[str], CorruptionError | None]:
    """A line for each record of these batches, up to a damaged control record; and the error about this record."""
    records, offsets = decoded.records, decoded.offsets
    batch = batches.table.select(np.repeat(np.arange(len(decoded.counts)), decoded.counts))
    timestamps = np.where(batch.is_log_append_time, batch.max_timestamps, records["timestamp"])
    numbers = np.where(batch.base_sequences < 0, -1, sequences(batch.base_sequences, offsets - batch.base_offsets))
    header_keys = _header_keys(records["headers"])
    control, end, error = _control_fields(
        records, batch.is_control, batches.position + batch.positions, batches.log_name
    )  # fmt: skip
    rows = zip(
        offsets.tolist(), timestamp_types(batch), timestamps.tolist(), _sizes(records["key"]),
        _sizes(records["value"]), numbers.tolist(), header_keys, strict=True,
    )  # fmt: skip
    if wanted.jsonl:
        contents = _contents(records, header_keys, wanted) if wanted.contents else [{} for _ in range(len(offsets))]
        lines = [
            json_line(file, dict(zip(_FIELDS, fields, strict=True)) | control.get(row, content))
            for row, (fields, content) in enumerate(zip(rows, contents, strict=True))
        ]
        return lines[:end], error
    tails = [""] * len(offsets)
    if wanted.contents:
        tails = text_contents(records["key"], records["value"], offsets.tolist(), wanted)
    for row, fields in control.items():
        tails[row] = _control_tail(fields)
    if wanted.skip_metadata:
        lines = ["\n" if row in control or not tail else f"|{tail}\n" for row, tail in enumerate(tails)]
    else:
        lines = [
            f"| offset: {offset} {kind}: {timestamp} keySize: {key_size} valueSize: {value_size} sequence: {number}"
            f" headerKeys: [{','.join(names)}]{tail}\n"
            for (offset, kind, timestamp, key_size, value_size, number, names), tail in zip(rows, tails, strict=True)
        ]
    return lines[:end], error


def _sizes(column: pa.Array) -> list[int]:
    sizes: list[int] = pc.binary_length(column).fill_null(-1).to_pylist()
    return sizes


def _header_keys(headers: pa.Array) -> list[list[str]]:
    """The names of each record's headers."""
    flat = headers.flatten()
    if not len(flat):
        return [[] for _ in range(len(headers))]
    names = iter(java_texts(flat.field("key").cast(pa.binary())))
    return [[str(next(names)) for _ in range(count)] for count in headers.value_lengths().to_pylist()]


def _control_fields(
    records: pa.RecordBatch, is_control: npt.NDArray[np.bool_], places: Int64Array, log_name: str
) -> tuple[dict[int, dict[str, Any]], int, CorruptionError | None]:
    """The fields of each control record, by its row; the row before which the lines end; the error about that row."""
    found: dict[int, dict[str, Any]] = {}
    for row in np.flatnonzero(is_control).tolist():
        key, value = records["key"][row].as_py(), records["value"][row].as_py()
        try:
            marker = decode_marker(key, value, log_name, int(places[row]))
        except CorruptionError as error:
            return found, row, error
        if marker is not None:
            found[row] = {
                "end_txn_marker": marker.control_type.name,
                "coordinator_epoch": marker.coordinator_epoch,
            }
        else:
            kind = control_type(key, log_name, int(places[row]))
            found[row] = {"control_type": f"{_CLUSTER_CONTROL_TYPES.get(kind, 'UNKNOWN')}({kind})"}
            if (message := control_text(kind, value)) is not None:
                found[row]["control_message"] = message
    return found, len(is_control), None


def _control_tail(fields: dict[str, Any]) -> str:
    """The operation of a control record at the end of its line."""
    if "control_message" in fields:
        return f" {fields['control_message']}"
    return "".join(f" {_CONTROL_NAMES[name]}: {value}" for name, value in fields.items())


def _contents(records: pa.RecordBatch, header_keys: list[list[str]], wanted: DumpOptions) -> list[dict[str, Any]]:
    header_values = iter(records["headers"].flatten().field("value").to_pylist())
    rows = zip(records["key"].to_pylist(), records["value"].to_pylist(), header_keys, strict=True)
    return [
        json_contents(key, value, [[name, base64_text(next(header_values))] for name in names], wanted)
        for key, value, names in rows
    ]
