"""The four codecs of Kafka's record batches, each between one block of records and its compressed bytes.

    0 none    as it is
    1 gzip    RFC 1952
    2 snappy  the stream framing of snappy-java ("xerial"): a 16-byte head, then blocks of at most 32 KiB, each an
              int32 length (big-endian) and a raw snappy block
    3 lz4     the LZ4 frame format with independent blocks of at most 64 KiB and no checksums, the only form that
              Kafka's reader takes: a 7-byte head, then blocks of an int32 size (little-endian, its highest bit set
              where the block is stored as it is) and the bytes, then four zeros
    4 zstd    a Zstandard frame as Kafka's stream leaves it: without the content's size, flushed before its end, so that
              its last block is empty

The codecs themselves are cramjam's. The head of the snappy framing is the bytes 82 53 4e 41 50 50 59 00, then two
int32: version 1, oldest compatible version 1.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import cramjam
import numpy as np

from storage_engine.errors import ConfigError


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of(cls, compression_type: str) -> Codec:
        """The codec that a value of compression.type names; `uncompressed` and `none` are the same."""
        name = compression_type.upper().replace("UNCOMPRESSED", "NONE")
        if name not in cls.__members__:
            raise ConfigError(
                "compression.type",
                f"found {compression_type!r}",
                "Kafka's codecs are uncompressed, gzip, snappy, lz4 and zstd.",
            )
        return cls[name]


_GZIP_DEFAULT = 6  # what zlib makes of -1, Kafka's default
_ZSTD_DEFAULT = 3
_LZ4_FAST = 9  # Kafka's default level means the fast compressor; any other the one for high compression

_XERIAL_HEAD = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_XERIAL_BLOCK = 32 * 1024

_LZ4_HEAD = bytes.fromhex("04224d18 60 40 82")  # magic, version 1 with independent blocks, 64-KiB blocks, checksum
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 1 << 31

MOST_BYTES = 2**31 - 1
"""What a batch may expand to: Kafka and Arrow count in 32 bits."""
_LIKELY_ROOM = 64 * 1024

Bytes = bytes | memoryview


def compress(codec: Codec, data: Bytes, level: int | None = None) -> bytes:
    """One block of records, compressed at a level of compression.<codec>.level, Kafka's default where it is None."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, _GZIP_DEFAULT if level in (None, -1) else level))
        case Codec.SNAPPY:
            return _compress_xerial(memoryview(data))
        case Codec.LZ4:
            return _compress_lz4(memoryview(data), _LZ4_FAST if level is None else level)
        case Codec.ZSTD:
            return _compress_zstd(data, _ZSTD_DEFAULT if level is None else level)


def decompress(codec: Codec, data: Bytes) -> bytes:
    """What compress was given.

    Raises:
        ValueError: the bytes are no such block. Callers know the place and name it.
    """
    try:
        match codec:
            case Codec.NONE:
                return bytes(data)
            case Codec.GZIP:
                return _decompress_into_room(cramjam.gzip.decompress_into, data)
            case Codec.SNAPPY:
                return _decompress_xerial(memoryview(data))
            case Codec.LZ4:
                return _decompress_into_room(cramjam.lz4.decompress_into, data)
            case Codec.ZSTD:
                return _decompress_into_room(cramjam.zstd.decompress_into, data)
    except cramjam.DecompressionError as error:
        raise ValueError(f"{codec.name.lower()} bytes that do not decompress to at most {MOST_BYTES}") from error


def _decompress_into_room(decompress_into: Callable[[Bytes, memoryview], int], data: Bytes) -> bytes:
    """Decompress without more room than MOST_BYTES, so that a few bytes that claim terabytes cost no memory.

    The operating system gives memory only for what is written. A batch seldom shrinks to less than a sixtieth: the room
    for that is tried first.
    """
    for room in (_LIKELY_ROOM + 64 * len(data), MOST_BYTES):
        out = np.empty(min(room, MOST_BYTES), np.uint8).data
        try:
            return bytes(out[: decompress_into(data, out)])
        except cramjam.DecompressionError:
            if room >= MOST_BYTES:
                raise
    raise AssertionError("the last room is the largest")


def _compress_zstd(data: Bytes, level: int) -> bytes:
    # Not in one call: compaction has to give Kafka's bytes, and the positions in an .index depend on their number.
    stream = cramjam.zstd.Compressor(level=level)
    stream.compress(bytes(data))
    return bytes(stream.flush()) + bytes(stream.finish())


def _compress_lz4(data: memoryview, level: int) -> bytes:
    framed = bytearray(_LZ4_HEAD)
    for start in range(0, len(data), _LZ4_BLOCK):
        block = data[start : start + _LZ4_BLOCK]
        compressed = bytes(
            cramjam.lz4.compress_block(block, store_size=False)
            if level == _LZ4_FAST
            else cramjam.lz4.compress_block(block, mode="high_compression", compression=level, store_size=False)
        )
        if len(compressed) < len(block):
            framed += len(compressed).to_bytes(4, "little") + compressed
        else:
            framed += (len(block) | _LZ4_STORED).to_bytes(4, "little") + block
    return bytes(framed + bytes(4))


def _compress_xerial(data: memoryview) -> bytes:
    framed = bytearray(_XERIAL_HEAD)
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        framed += len(block).to_bytes(4, "big") + block
    return bytes(framed)


def _decompress_xerial(data: memoryview) -> bytes:
    if bytes(data[:8]) != _XERIAL_HEAD[:8]:
        return bytes(cramjam.snappy.decompress_raw(data))  # some old clients wrote the raw form
    blocks = []
    position = len(_XERIAL_HEAD)
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if size > len(data) - position:
            raise ValueError("a snappy block that ends behind its batch")
        blocks.append(bytes(cramjam.snappy.decompress_raw(data[position : position + size])))
        position += size
    return b"".join(blocks)
