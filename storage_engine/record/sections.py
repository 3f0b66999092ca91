"""The records of batches, uncompressed and laid behind one another, so that one kernel call can decode many."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from storage_engine.errors import BatchTooLargeError, CorruptionError
from storage_engine.record.batch import ByteArray, Int64Array
from storage_engine.record.batch_limit import KEY, VARIABLE, most_batch_bytes
from storage_engine.record.columns import new_array
from storage_engine.record.compression import MOST_BYTES, decompress_bound, decompress_into

GROUP_BYTES = 2 * 1024**2
"""Batches of about this size go through together: what one step leaves is in the cache for the next."""
_EXPANSION = 4
"""How many times its compressed size a batch's records are first given room for."""
_LEAST_ROOM = 64 * 1024
"""Bytes that any batch is first given room for, so that room grows by what there is of it."""
_SMALL_ROOM = 4 * 1024**2
"""Bytes; what does not fit into so much gets all that it may have at once. Memory is taken as it is written to."""
ROW_BYTES = 67
"""What a record takes in columns, beside its key and value."""
_LARGEST_BLOCK = 8 * 1024**2
"""Bytes; a block is larger only where a group is."""


def too_large(file: str, position: int) -> BatchTooLargeError:
    """The error for the compressed batch at this position of a file."""
    most = most_batch_bytes()
    return BatchTooLargeError(
        file, position, f"a batch that unfolds to at most {most} bytes", "one that takes more",
        f"Where it is to be read all the same, raise {KEY} in the section broker of the settings, for all runs by"
        f" `lakelog broker alter`, or {VARIABLE} in the environment.",
    )  # fmt: skip


class Sections(NamedTuple):
    """Uncompressed records of some batches: bytes, and where each batch's begin and end in them."""

    data: ByteArray
    starts: Int64Array
    ends: Int64Array

    @property
    def size(self) -> int:
        return int((self.ends - self.starts).sum())


class Room:
    """Memory that batches are uncompressed into, group behind group, in blocks that are used again only if one asks.

    data: the block of the present group. start: where in it the group begins.
    """

    def __init__(self) -> None:
        self.data: ByteArray = new_array(0, np.uint8)
        self._view = self.data.data
        self.start = 0

    def after(self, used: int, wanted: int) -> memoryview:
        """What is free behind the bytes that the group uses, at least as much as wanted and at most what a batch may hold.

        Where the block ends before that, the group moves to a new one.
        """
        if self.start + used + wanted > len(self.data):
            size = max(min(2 * len(self.data), _LARGEST_BLOCK), 2 * used + wanted, GROUP_BYTES)
            # Arrow's pool would keep what a huge batch has filled; the system's memory is given back at once.
            larger: ByteArray = np.empty(size, np.uint8) if size > 4 * _LARGEST_BLOCK else new_array(size, np.uint8)
            larger[:used] = self.data[self.start : self.start + used]
            self.data, self._view, self.start = larger, larger.data, 0
        return self._view[self.start + used :][:MOST_BYTES]

    def clear(self) -> None:
        """Give up the block, too."""
        self.data = new_array(0, np.uint8)
        self._view = self.data.data
        self.start = 0

    def begin_again(self) -> None:
        """All groups so far are not needed any more: the next ones take their place."""
        self.start = 0

    def end_group(self, used: int) -> None:
        """The next group begins behind the bytes that this one uses."""
        self.start += used


def uncompressed(
    stored: Sections,
    codecs: Int64Array,
    positions: Int64Array,
    file: str,
    room: Room,
    most_bytes: int | None = None,
) -> Sections:
    """The sections of the first batches: of all, or up to where they take most_bytes, but always of one.

    Args:
        stored: the same as they lie. codecs: of each, as compression.decompress_into takes them.
        positions: of the batches in the file, for an error.

    Raises:
        CorruptionError: a codec is unknown or does not fit.
        BatchTooLargeError: a batch unfolds to more than a batch may; or, without most_bytes, all of them to twice that.
    """
    if not codecs.any():
        return stored
    most = most_batch_bytes()
    view = stored.data.data
    used = 0
    bounds = [0]
    columns = (positions, stored.starts, stored.ends, codecs)
    for position, start, end, codec in zip(*(column.tolist() for column in columns), strict=True):
        try:
            free = room.after(used, min(max(_EXPANSION * (end - start), _LEAST_ROOM), most))[:most]
            while (size := decompress_into(codec, view[start:end], free)) is None:
                if len(free) == most:
                    del free
                    room.clear()  # before an error that may live for long, with all that its calls had in hand
                    raise too_large(file, position)
                wanted = _EXPANSION * len(free) if len(free) < _SMALL_ROOM else most
                free = room.after(used, min(wanted, most, decompress_bound(codec, view[start:end])))[:most]
        except ValueError as error:
            raise CorruptionError(file, position, "records of a known codec", str(error)) from error
        if most_bytes is not None and used and used + size > most_bytes:
            break
        if codec and used + size > 2 * most:
            raise too_large(file, position)
        used += size
        bounds.append(used)
    found = np.array(bounds, np.int64) + room.start
    room.end_group(used)
    return Sections(room.data, found[:-1], found[1:])
