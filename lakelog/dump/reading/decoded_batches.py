"""Decodes the records of damaged and undamaged batches, up to the first record that cannot be decoded.

Batches with a correct CRC are decoded many at a time, as in the engine. A batch with a wrong CRC can still have
readable records. A batch with a correct CRC can have unreadable records, if the program that wrote the batch had a
defect. Batches of these two kinds are decoded one by one, record by record. Decoding ends at the first record that
cannot be decoded, as in Kafka's tool.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakelog.dump.reading.entries import LogEntries
from storage_engine.errors import CorruptionError
from storage_engine.record.batch import Int64Array
from storage_engine.record.crc import batch_crcs
from storage_engine.record.decoding import ANY_OFFSET, decode_parts, decode_until_damage
from storage_engine.record.header import HEADER_BYTES
from storage_engine.record.record_columns import RECORDS, with_binary

_PART_BYTES = 4 * 1024**2


class DecodedBatches(NamedTuple):
    """Neighbouring batches with their records.

    counts: the number of records of each batch, int64.
    records: the records with the columns of columns.RECORDS, but as binary instead of views.
    error: why the next record cannot be decoded; None if there is no such error.
    """

    counts: Int64Array
    records: pa.RecordBatch
    error: CorruptionError | None = None

    @property
    def offsets(self) -> Int64Array:
        return np.asarray(self.records["offset"])


def intact(batches: LogEntries) -> npt.NDArray[np.bool_]:
    """Whether the CRC of each batch is correct."""
    table = batches.table
    computed = batch_crcs(batches.data[table.positions[0] :], table.sizes)
    valid: npt.NDArray[np.bool_] = (table.sizes >= HEADER_BYTES) & (computed == table.crcs)
    return valid


def decode_up_to_damage(batches: LogEntries, valid: npt.NDArray[np.bool_]) -> Iterator[DecodedBatches]:
    """Decode all batches, some at a time, up to a record that cannot be decoded. Then the last item has the error.

    Args:
        valid: for each batch, whether its CRC is correct.
    """
    table, log_name = batches.table, batches.log_name
    believed = valid & (table.records_counts >= 0)
    first = 0
    while first < len(table):
        same = np.flatnonzero(believed[first:] != believed[first])
        end = first + int(same[0]) if len(same) else len(table)
        if believed[first]:
            run = table.select(slice(first, end))
            ends = np.cumsum(run.records_counts)
            done = 0
            try:
                for records in decode_parts(
                    batches.data, run, log_name, batches.position, ANY_OFFSET, control=True, part_bytes=_PART_BYTES
                ):
                    before = int(ends[done - 1]) if done else 0
                    until = int(np.searchsorted(ends, before + records.num_rows, side="right"))
                    yield DecodedBatches(run.records_counts[done:until], with_binary(records))
                    done = until
            except CorruptionError:
                end = first + done  # the rest is decoded one by one
                believed[end:] = False
            else:
                if done < len(run):
                    yield DecodedBatches(
                        run.records_counts[done:], with_binary(pa.RecordBatch.from_pylist([], RECORDS))
                    )
            first = end
            continue
        one = table.select(slice(first, first + 1))
        records, error = decode_until_damage(batches.data, one, log_name, batches.position)
        yield DecodedBatches(np.array([records.num_rows]), with_binary(records), error)
        if error is not None:
            return
        first += 1
