"""Stores the limit on the memory that is used to decompress and decode one compressed batch.

A zstd frame of 33 kB can decompress to two gigabytes, and a megabyte of records without keys and values takes ten
megabytes as columns. So a batch that needs more memory than the limit is refused with BatchTooLargeError. The
broker's setting batch.max.uncompressed.bytes is the limit. The limit applies to the whole process. A program that has
read the settings sets the limit. A process that reads no settings, such as a Spark worker, takes the limit from the
environment.
"""

from __future__ import annotations

import os

KEY = "batch.max.uncompressed.bytes"
VARIABLE = "LAKELOG_BROKER_BATCH_MAX_UNCOMPRESSED_BYTES"
"""The environment variable of this setting. Jobs read the same variable."""
DEFAULT = 256 * 1024**2

_chosen: list[int] = []


def choose_most_batch_bytes(most: int | None) -> None:
    """Set the limit of this process. None restores the value of the environment, or the default."""
    _chosen[:] = [] if most is None else [most]


def most_batch_bytes() -> int:
    """Return the limit in bytes."""
    if _chosen:
        return _chosen[0]
    given = os.environ.get(VARIABLE, "")
    return int(given) if given.isdecimal() and int(given) > 0 else DEFAULT
