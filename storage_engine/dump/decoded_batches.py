"""The records of batches, however damaged: as many as can be decoded, and what is wrong with the next.

Batches whose CRC is right are decoded many at a time, as the engine reads them. One whose CRC is wrong may still hold
records, and one whose CRC is right may hold none that can be read (its writer was wrong): those go one by one, record by
record, and the first that cannot be decoded is the end, as in Kafka's tool.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.dump.entries import Entries
from storage_engine.errors import CorruptionError
from storage_engine.record.batch import HEADER_BYTES, Int64Array, batch_crcs
from storage_engine.record.columns import RECORDS, with_binary
from storage_engine.record.decoding import ANY_OFFSET, decode_parts, decode_until_damage

_PART_BYTES = 4 * 1024**2


class DecodedBatches(NamedTuple):
    """Neighbouring batches with their records: columns.RECORDS, but not as views. counts: int64, records of each batch."""

    counts: Int64Array
    records: pa.RecordBatch
    error: CorruptionError | None = None

    @property
    def offsets(self) -> Int64Array:
        return np.asarray(self.records["offset"])


def intact(batches: Entries) -> npt.NDArray[np.bool_]:
    """Whether the bytes of each batch are those that its CRC was computed of."""
    table = batches.table
    computed = batch_crcs(batches.data[table.positions[0] :], table.sizes)
    valid: npt.NDArray[np.bool_] = (table.sizes >= HEADER_BYTES) & (computed == table.crcs)
    return valid


def decode_whatever_holds(batches: Entries, valid: npt.NDArray[np.bool_]) -> Iterator[DecodedBatches]:
    """All batches, some at a time; where a record cannot be decoded the last has an error, and what came before it.

    Args:
        valid: which are intact.
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
                end = first + done  # what is left goes one by one
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
