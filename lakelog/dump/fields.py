"""Converts the numbers of batch headers to the values that the dump prints.

Codecs and timestamp types are printed by name. A producer's sequence numbers are Java ints. After the largest int,
sequence numbers continue at 0 (DefaultRecordBatch.incrementSequence). So the last sequence number of a batch can be
below the first.
"""

from __future__ import annotations

import numpy as np

from storage_engine.record.batch import BatchTable, Int64Array
from storage_engine.record.compression import Codec
from storage_engine.record.record_columns import TIMESTAMP_TYPE_NAMES

LARGEST_INT = 2**31 - 1
_CODECS = {codec.value: codec.name.lower() for codec in Codec}


def codec_name(codec: int) -> str:
    """The name of a codec. A number that is not a codec of Kafka gets a name, too."""
    return _CODECS.get(codec, f"unknown ({codec})")


def timestamp_types(table: BatchTable) -> list[str]:
    """The name of each batch's timestamp type."""
    return [TIMESTAMP_TYPE_NAMES[kind] for kind in table.is_log_append_time.astype(int).tolist()]


def sequences(bases: Int64Array, deltas: Int64Array) -> Int64Array:
    """The first sequence number of each batch plus its delta. The sum wraps as Java's ints do, even for a damaged
    delta.
    """
    ends = (LARGEST_INT - deltas).astype(np.int32)
    return np.where(bases > ends, deltas - (LARGEST_INT - bases) - 1, bases + deltas).astype(np.int32).astype(np.int64)
