"""What one compressed batch may unfold to: so many bytes of memory, whatever it claims and however well it shrinks.

33 kB of zstd can stand for two gigabytes, and a megabyte of records without keys and values for ten times its size in
columns. So a batch is given room up to a bound, and is refused with a typed error beyond it. The bound is the broker's
key batch.max.uncompressed.bytes. It is one for the process, as the memory is: whoever has read the settings sets it, and a
process that has none, such as a worker of Spark's, takes it from the environment.
"""

from __future__ import annotations

import os

KEY = "batch.max.uncompressed.bytes"
VARIABLE = "LAKELOG_BROKER_BATCH_MAX_UNCOMPRESSED_BYTES"
"""By which jobs know the same setting."""
DEFAULT = 256 * 1024**2

_chosen: list[int] = []


def choose_most_batch_bytes(most: int | None) -> None:
    """Set the bound of this process; None goes back to that of the environment, or the default."""
    _chosen[:] = [] if most is None else [most]


def most_batch_bytes() -> int:
    """The bound."""
    if _chosen:
        return _chosen[0]
    given = os.environ.get(VARIABLE, "")
    return int(given) if given.isdecimal() and int(given) > 0 else DEFAULT
