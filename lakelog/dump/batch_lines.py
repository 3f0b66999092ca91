"""Formats the line of a batch of magic 2: its header, field by field, its position, and whether its CRC is correct.

    baseOffset: 0 lastOffset: 1 count: 2 ... position: 0 CreateTime: 1700000000042 size: 94 magic: 2 ...

The records are not read.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lakelog.dump.fields import codec_name, sequences, timestamp_types
from lakelog.dump.java_text import java_bool, optional_long
from lakelog.dump.lines import DumpOptions, json_line
from lakelog.dump.reading.dumped_file import DumpedFile
from lakelog.dump.reading.entries import LogEntries
from storage_engine.record.header import DELETE_HORIZON, TRANSACTIONAL

_FIELDS = (
    "base_offset", "last_offset", "count", "base_sequence", "last_sequence", "producer_id", "producer_epoch",
    "partition_leader_epoch", "is_transactional", "is_control", "delete_horizon_ms", "position", "timestamp_type",
    "max_timestamp", "size", "magic", "compresscodec", "crc", "isvalid",
)  # fmt: skip
_LINE = (
    "baseOffset: %d lastOffset: %d count: %d baseSequence: %d lastSequence: %d producerId: %d producerEpoch: %d"
    " partitionLeaderEpoch: %d isTransactional: %s isControl: %s deleteHorizonMs: %s position: %d %s: %d size: %d"
    " magic: %d compresscodec: %s crc: %d isvalid: %s\n"
)


def batch_lines(batches: LogEntries, valid: npt.NDArray[np.bool_], file: DumpedFile, wanted: DumpOptions) -> list[str]:
    """A line for each batch.

    Args:
        valid: for each batch, whether its CRC is correct.
    """
    table = batches.table
    deltas = table.last_offsets - table.base_offsets
    last_sequences = np.where(table.base_sequences == -1, -1, sequences(table.base_sequences, deltas))
    horizons = [
        timestamp if has_horizon else None
        for has_horizon, timestamp in zip(
            (table.attributes & DELETE_HORIZON).tolist(), table.base_timestamps.tolist(), strict=True
        )
    ]
    columns = [
        table.base_offsets, table.last_offsets, table.records_counts, table.base_sequences, last_sequences,
        table.producer_ids, table.producer_epochs, table.leader_epochs,
        (table.attributes & TRANSACTIONAL) != 0, table.is_control,
    ]  # fmt: skip
    rows = zip(
        *(column.tolist() for column in columns), horizons, (batches.position + table.positions).tolist(),
        timestamp_types(table), table.max_timestamps.tolist(), table.sizes.tolist(), table.magics.tolist(),
        map(codec_name, table.codecs.tolist()), table.crcs.tolist(), valid.tolist(), strict=True,
    )  # fmt: skip
    if wanted.jsonl:
        return [json_line(file, dict(zip(_FIELDS, row, strict=True))) for row in rows]
    return [
        _LINE % (*row[:8], *map(java_bool, row[8:10]), optional_long(row[10]), *row[11:18], java_bool(row[18]))
        for row in rows
    ]
