"""Decompresses the records of batches into one buffer, so that one kernel call can decode many batches.

A section is the decompressed records of one batch. Only one thread at a time may use one Room.
"""

from __future__ import annotations

import numpy as np

from storage_engine.errors import BatchTooLargeError, CorruptionError
from storage_engine.record.batch import ByteArray, Int64Array
from storage_engine.record.batch_limit import KEY, VARIABLE, most_batch_bytes
from storage_engine.record.compression import MOST_BYTES, Codec, decompress_bound, decompress_into
from storage_engine.record.kernels.columns import Sections
from storage_engine.record.kernels.lz4_kernels import BLOCK_BYTES, decompress_frames
from storage_engine.record.record_columns import new_array

GROUP_BYTES = 2 * 1024**2
"""Batches of about this size are processed together, so that they stay in the processor's cache from step to step."""
_EXPANSION = 4
"""Memory is first allocated for this ratio of decompressed to compressed size."""
_LEAST_ROOM = 64 * 1024
"""At least this many bytes are first allocated for a batch, because memory then grows in large steps."""
_SMALL_ROOM = 4 * 1024**2
"""In bytes. For a batch that needs more, the whole limit is allocated. The system only uses pages that are written."""
ROW_BYTES = 67
"""Bytes of columns that a record takes in addition to its key and value."""
_LARGEST_BLOCK = 8 * 1024**2
"""In bytes. A block is larger only if one group needs more."""


def too_large(file: str, position: int) -> BatchTooLargeError:
    """Return the error for a compressed batch that exceeds the memory limit."""
    most = most_batch_bytes()
    return BatchTooLargeError(
        file, position, f"a batch of at most {most} bytes after decompression", "a larger batch",
        f"To read the batch, raise {KEY}. Use `lakelog broker alter` (for all runs), the section `broker` of the settings"
        f" file, or the environment variable {VARIABLE}.",
    )  # fmt: skip


class Room:
    """Memory for decompressed batches. The batches are written into large blocks, one group after another.

    A block is overwritten only after begin_again. So arrays that point into it stay valid until then.

    data: the block of the current group.
    start: the position of the group in the block.
    """

    def __init__(self) -> None:
        self.data: ByteArray = new_array(0, np.uint8)
        self._view = self.data.data
        self.start = 0

    def after(self, used: int, wanted: int) -> memoryview:
        """Return the free memory after the bytes that the group uses: at least `wanted` bytes, at most MOST_BYTES.

        If the block is too small, the group is copied to a new block.
        """
        if self.start + used + wanted > len(self.data):
            size = max(min(2 * len(self.data), _LARGEST_BLOCK), 2 * used + wanted, GROUP_BYTES)
            # Arrow's pool would keep the memory of a huge batch; np.empty returns it to the system.
            larger: ByteArray = np.empty(size, np.uint8) if size > 4 * _LARGEST_BLOCK else new_array(size, np.uint8)
            larger[:used] = self.data[self.start : self.start + used]
            self.data, self._view, self.start = larger, larger.data, 0
        return self._view[self.start + used :][:MOST_BYTES]

    def clear(self) -> None:
        """Free the block."""
        self.data = new_array(0, np.uint8)
        self._view = self.data.data
        self.start = 0

    def begin_again(self) -> None:
        """Allow the next group to overwrite all groups so far."""
        self.start = 0

    def end_group(self, used: int) -> None:
        """End the group: the next group begins after the bytes that this group uses."""
        self.start += used


def uncompressed(
    stored: Sections,
    codecs: Int64Array,
    positions: Int64Array,
    file: str,
    room: Room,
    most_bytes: int | None = None,
) -> Sections:
    """Decompress sections into `room`. If no section is compressed, `stored` is returned.

    Args:
        stored: the sections as they are in the file.
        codecs: the codec of each section, as decompress_into takes it.
        positions: the positions of the batches in the file, for an error.
        most_bytes: if the result would take more bytes, only the first sections are decompressed, but at least one
            section.

    Raises:
        CorruptionError: a codec is unknown, or the bytes are damaged.
        BatchTooLargeError: one batch exceeds the memory limit, or all of them together exceed twice the limit.
    """
    if not codecs.any():
        return stored
    most = most_batch_bytes()
    view = stored.data.data
    bounds = np.zeros(len(codecs) + 1, np.int64)
    section = used = 0
    while section < len(codecs):
        codec = int(codecs[section])
        if codec == Codec.LZ4:
            done = decompress_frames(
                stored.data, stored.starts, stored.ends, codecs, codec, room.data, room.start, most - BLOCK_BYTES,
                2 * most if most_bytes is None else min(most_bytes, 2 * most), section, bounds,
            )  # fmt: skip
            if done > section:
                section, used = done, int(bounds[done])
                continue
        records = view[int(stored.starts[section]) : int(stored.ends[section])]
        position = int(positions[section])
        try:
            free = room.after(used, min(max(_EXPANSION * len(records), _LEAST_ROOM), most))[:most]
            while (size := decompress_into(codec, records, free)) is None:
                if len(free) == most:
                    del free
                    room.clear()  # frees the memory, because the traceback of the error keeps all local variables alive
                    raise too_large(file, position)
                wanted = _EXPANSION * len(free) if len(free) < _SMALL_ROOM else most
                free = room.after(used, min(wanted, most, decompress_bound(codec, records)))[:most]
        except ValueError as error:
            raise CorruptionError(file, position, "records of a known codec", str(error)) from error
        if most_bytes is not None and used and used + size > most_bytes:
            break
        if codec and used + size > 2 * most:
            raise too_large(file, position)
        used += size
        section += 1
        bounds[section] = used
    found = bounds[: section + 1] + room.start
    room.end_group(used)
    return Sections(room.data, found[:-1], found[1:])
