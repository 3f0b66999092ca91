"""What the numbers in a header stand for, where lines of batches and of their records say it alike.

A codec and a timestamp type have names. A producer's sequence numbers are Java's ints that begin again at 0 behind the
largest (DefaultRecordBatch.incrementSequence), so that the last of a batch may be below the first.
"""

from __future__ import annotations

import numpy as np

from storage_engine.record.batch import BatchTable, Int64Array
from storage_engine.record.columns import TIMESTAMP_TYPE_NAMES
from storage_engine.record.compression import Codec

LARGEST_INT = 2**31 - 1
_CODECS = {codec.value: codec.name.lower() for codec in Codec}


def codec_name(codec: int) -> str:
    """Its name, also where Kafka has none."""
    return _CODECS.get(codec, f"unknown ({codec})")


def timestamp_types(table: BatchTable) -> list[str]:
    """The name of each batch's."""
    return [TIMESTAMP_TYPE_NAMES[kind] for kind in table.is_log_append_time.astype(int).tolist()]


def sequences(bases: Int64Array, deltas: Int64Array) -> Int64Array:
    """Sequence numbers so far behind the first of a batch, in Java's ints even where a damaged delta leaves them."""
    ends = (LARGEST_INT - deltas).astype(np.int32)
    return np.where(bases > ends, deltas - (LARGEST_INT - bases) - 1, bases + deltas).astype(np.int32).astype(np.int64)
