"""Compresses and decompresses the records of one batch with Kafka's four codecs.

compress_into and decompress_into write into the caller's memory, so that many batches can be written one after another
without copies. All functions are thread-safe.

    0 none    the records themselves
    1 gzip    RFC 1952
    2 snappy  the stream framing of snappy-java ("xerial"): a 16-byte head, then blocks of at most 32 KiB. A block is an
              int32 length (big-endian) and a raw snappy block. The bytes are the same as Kafka's
    3 lz4     the LZ4 frame format with independent blocks of at most 64 KiB and no checksums. Kafka's reader accepts
              only this form: a 7-byte head, then blocks, then four zeros. A block is an int32 size (little-endian; the
              highest bit is set if the block is not compressed) and the bytes
    4 zstd    a Zstandard frame. Kafka's frames do not state the size of their content. They end with an empty block,
              because of a flush. `compress_as_kafka` writes such frames, because the cleaner must produce the same
              bytes as Kafka: positions in an .index depend on sizes. `compress_into` omits the empty block, because
              this is faster

Three libraries and two kernels implement the codecs:

- kernels/snappy_kernels.py compresses with snappy. The module's docstring describes the framing and the blocks.
- kernels/lz4_kernels.py decompresses most LZ4 frames for readers.
- zlib, from Python's standard library, compresses with gzip.
- If a zstd frame states the size of its content, the library zstandard is used, because it can reuse its contexts. For
  a batch of 16 KiB, the reuse saves a fifth of the time.
- The library cramjam does everything else.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from enum import IntEnum

import cramjam
import zstandard

from storage_engine.errors import ConfigError
from storage_engine.record.kernels.lz4_kernels import BLOCK_BYTES, HEAD, STORED
from storage_engine.record.kernels.snappy_kernels import HEAD as XERIAL_HEAD
from storage_engine.record.kernels.snappy_kernels import MAGIC_BYTES, compress_with_snappy


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of(cls, compression_type: str) -> Codec:
        """Return the codec of a value of compression.type. `uncompressed` and `none` are the same."""
        name = compression_type.upper().replace("UNCOMPRESSED", "NONE")
        if name not in cls.__members__:
            raise ConfigError(
                "compression.type",
                f"found {compression_type!r}",
                "Choose uncompressed, gzip, snappy, lz4 or zstd.",
            )
        return cls[name]


LZ4_OF_MAGIC_0 = 8
"""A codec for decompression only: lz4 with a wrong checksum in its head, as in wrappers of magic 0."""

_GZIP_WINDOW = zlib.MAX_WBITS + 16  # 16: zlib writes gzip's head and tail
_GZIP_SYSTEM_POSITION, _GZIP_UNKNOWN_SYSTEM = 9, 255  # in the head; Java writes 255
_ZSTD_DEFAULT = 3
_LZ4_FAST = 9  # Kafka's default level, which means the fast compressor; other levels mean LZ4 HC

_LZ4_HAS_SIZE = 1 << 3  # a flag in the head

_BIG_INT, _LITTLE_INT = struct.Struct(">I"), struct.Struct("<I")

MOST_BYTES = 2**31 - 1
"""Larger batches are refused: neither an Arrow column nor a Kafka reader could hold their records."""

_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
_ZSTD_BLOCK = 128 * 1024
_ZSTD_COPIED = 1024**2
"""Above this size, the copy that zstandard makes costs more time and memory than the reuse of its contexts saves."""
_ZSTD_RLE, _ZSTD_COMPRESSED = 1, 2

_MOST_EXPANSION = {Codec.NONE: 1, Codec.GZIP: 1032, Codec.SNAPPY: 22, Codec.LZ4: 255, LZ4_OF_MAGIC_0: 255}
"""How many bytes one compressed byte can decompress to. For zstd (32 thousand), the block headers give a closer
bound.
"""

Bytes = bytes | memoryview


def compress(codec: Codec, data: Bytes) -> bytes:
    """Compress one block of records at Kafka's default level. The result has as many bytes as Kafka's."""
    out = memoryview(bytearray(compress_bound(len(data))))
    return bytes(out[: compress_as_kafka(codec, memoryview(data), out)])


def compress_as_kafka(codec: Codec, data: memoryview, out: memoryview) -> int:
    """Like compress_into, but the result has as many bytes as Kafka's."""
    if codec is not Codec.ZSTD:
        return compress_into(codec, data, out)
    stream = cramjam.zstd.Compressor(level=_ZSTD_DEFAULT)
    stream.compress(bytes(data))
    size = 0
    for piece in (bytes(stream.flush()), bytes(stream.finish())):
        out[size : size + len(piece)] = piece
        size += len(piece)
    return size


def compress_bound(size: int) -> int:
    """Return a size in bytes that no codec exceeds for a block of this size."""
    return size + size // 6 + 1024


def compress_into(codec: Codec, data: memoryview, out: memoryview, level: int | None = None) -> int:
    """Compress one block of records at a level of compression.<codec>.level (None: Kafka's default).

    Args:
        out: gets the bytes; has space for compress_bound(len(data)).

    Returns:
        The number of bytes written.
    """
    match codec:
        case Codec.NONE:
            out[: len(data)] = data
            return len(data)
        case Codec.GZIP:
            return _compress_gzip(data, out, zlib.Z_DEFAULT_COMPRESSION if level is None else level)
        case Codec.SNAPPY:
            return compress_with_snappy(data, out)
        case Codec.LZ4:
            return _compress_lz4(data, out, _LZ4_FAST if level is None else level)
        case Codec.ZSTD:
            return _compress_zstd(data, out, _ZSTD_DEFAULT if level is None else level)


def decompress_bound(codec: int, data: memoryview) -> int:
    """Return an upper bound of the decompressed size in bytes, at most MOST_BYTES.

    Raises:
        ValueError: the codec is zstd, and the bytes are not zstd frames.
    """
    bound = _zstd_bound(data) if codec == Codec.ZSTD else _MOST_EXPANSION[codec] * len(data)
    return min(MOST_BYTES, bound + BLOCK_BYTES)


def decompress_into(codec: int, data: memoryview, out: memoryview) -> int | None:
    """Decompress one block of records to the start of `out`.

    Args:
        codec: bits 0 to 2 of a batch's attributes, with any value, or LZ4_OF_MAGIC_0.

    Returns:
        The number of bytes written; None if `out` may be too small. A size of decompress_bound is always enough. So
        callers can start with little memory, and never allocate more than this bound for damaged bytes.

    Raises:
        ValueError: the codec is unknown, the bytes are damaged, or they decompress to more than MOST_BYTES. The caller
            knows the place and names it.
    """
    decompressor = _DECOMPRESSORS.get(codec)
    if decompressor is None:
        raise ValueError(f"codec {codec}")
    size, reason = None, None
    try:
        size = decompressor(data, out)
    except cramjam.DecompressionError as error:
        reason = error.with_traceback(None)  # the traceback keeps `out` until the next garbage collection
    if size is None and len(out) >= (most := decompress_bound(codec, data)):
        raise ValueError(
            f"{_name(codec)} bytes that are damaged, or that decompress to more than {most} bytes"
        ) from reason
    return size


def _name(codec: int) -> str:
    return Codec(Codec.LZ4 if codec == LZ4_OF_MAGIC_0 else codec).name.lower()


def _copy(data: memoryview, out: memoryview) -> int | None:
    if len(data) > len(out):
        return None
    out[: len(data)] = data
    return len(data)


def _compress_gzip(data: memoryview, out: memoryview, level: int) -> int:
    # zlib, as in Java: for the same size it takes little more than half of cramjam's time.
    compressor = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW)
    position = 0
    for piece in (compressor.compress(data), compressor.flush()):
        out[position : position + len(piece)] = piece
        position += len(piece)
    out[_GZIP_SYSTEM_POSITION] = _GZIP_UNKNOWN_SYSTEM
    return position


def _compress_lz4(data: memoryview, out: memoryview, level: int) -> int:
    out[: len(HEAD)] = HEAD
    position = len(HEAD)
    for start in range(0, len(data), BLOCK_BYTES):
        block = data[start : start + BLOCK_BYTES]
        room = out[position + 4 :]
        size = (
            cramjam.lz4.compress_block_into(block, room, store_size=False)
            if level == _LZ4_FAST
            else cramjam.lz4.compress_block_into(
                block, room, mode="high_compression", compression=level, store_size=False
            )
        )
        stored = size
        if size >= len(block):
            size, stored = len(block), len(block) | STORED
            room[:size] = block
        _LITTLE_INT.pack_into(out, position, stored)
        position += 4 + size
    out[position : position + 4] = bytes(4)
    return position + 4


def _decompress_lz4(data: memoryview, out: memoryview) -> int | None:
    if data[: len(HEAD)] != HEAD:  # a form that Kafka does not write
        return int(cramjam.lz4.decompress_into(data, out))
    return _decompress_lz4_blocks(data, out)


def _decompress_lz4_of_magic_0(data: memoryview, out: memoryview) -> int | None:
    """Decompress LZ4 whose head has a wrong checksum: clients of magic 0 included the magic number in the checksum.

    Kafka's reader ignores this checksum. Forms that Kafka does not write are decompressed by cramjam, which needs the
    correct checksum.
    """
    if data[: len(HEAD) - 1] == HEAD[:-1]:
        return _decompress_lz4_blocks(data, out)
    descriptor = data[4:14] if len(data) > 4 and data[4] & _LZ4_HAS_SIZE else data[4:6]
    checksum = (_short_xxh32(descriptor) >> 8) & 0xFF
    end = 4 + len(descriptor)
    right = b"".join((data[:end], bytes([checksum]), data[end + 1 :]))
    return int(cramjam.lz4.decompress_into(right, out))


def _short_xxh32(data: Bytes) -> int:
    """Return XXH32 with seed 0 of fewer than 16 bytes."""
    h = 374761393 + len(data)
    words = len(data) // 4 * 4
    for (word,) in _LITTLE_INT.iter_unpack(data[:words]):
        h = _rotated(h + word * 3266489917, 17) * 668265263
    for byte in data[words:]:
        h = _rotated(h + byte * 374761393, 11) * 2654435761
    h &= 0xFFFFFFFF
    h = (h ^ (h >> 15)) * 2246822519 & 0xFFFFFFFF
    h = (h ^ (h >> 13)) * 3266489917 & 0xFFFFFFFF
    return h ^ (h >> 16)


def _rotated(value: int, bits: int) -> int:
    value &= 0xFFFFFFFF
    return (value << bits | value >> (32 - bits)) & 0xFFFFFFFF


def _decompress_lz4_blocks(data: memoryview, out: memoryview) -> int | None:
    """Decompress the blocks after the head that Kafka writes."""
    position, end = len(HEAD), 0
    while True:
        if position + 4 > len(data):
            raise ValueError("lz4 bytes without an end mark")
        (size,) = _LITTLE_INT.unpack_from(data, position)
        position += 4
        if size == 0:
            return end
        stored = size & STORED
        block = data[position : position + (size & ~STORED)]
        position += len(block)
        if len(out) - end < BLOCK_BYTES and len(out) < MOST_BYTES:
            return None
        if stored:
            out[end : end + len(block)] = block
            end += len(block)
        else:
            end += cramjam.lz4.decompress_block_into(block, out[end:], output_len=BLOCK_BYTES)


def _decompress_xerial(data: memoryview, out: memoryview) -> int | None:
    if data[:MAGIC_BYTES] != XERIAL_HEAD[:MAGIC_BYTES]:
        return _decompress_snappy(data, out)  # some old clients wrote one raw block
    position, end = len(XERIAL_HEAD), 0
    while position < len(data):
        if position + 4 > len(data):
            raise ValueError("a snappy block without its size")
        (size,) = _BIG_INT.unpack_from(data, position)
        position += 4
        if size > len(data) - position:
            raise ValueError("a snappy block that reaches beyond the end of its batch")
        written = _decompress_snappy(data[position : position + size], out[end:])
        if written is None:
            return None
        position += size
        end += written
    return end


def _decompress_snappy(block: memoryview, out: memoryview) -> int | None:
    """Decompress one raw block; its first bytes have the decompressed size."""
    if cramjam.snappy.decompress_raw_len(block) > len(out):
        return None
    return int(cramjam.snappy.decompress_raw_into(block, out))


class _ZstdContexts(threading.local):
    """The zstd contexts of one thread, which are reused because they take time to create."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}


_ZSTD = _ZstdContexts()


def _compress_zstd(data: memoryview, out: memoryview, level: int) -> int:
    compressor = _ZSTD.compressors.get(level)
    if compressor is None:
        compressor = _ZSTD.compressors[level] = zstandard.ZstdCompressor(level=level)
    frame = compressor.compress(data)
    out[: len(frame)] = frame
    return len(frame)


def _decompress_zstd(data: memoryview, out: memoryview) -> int | None:
    try:
        claimed = zstandard.frame_content_size(data)  # -1: the frame does not have its size
        if claimed > MOST_BYTES:
            raise ValueError(f"a zstd frame of {claimed} bytes; the limit is {MOST_BYTES} bytes")
        if claimed > len(out):
            return None
        if 0 <= claimed <= _ZSTD_COPIED:
            content = _ZSTD.decompressor.decompress(data, allow_extra_data=False)
            out[: len(content)] = content
            return len(content)
    except zstandard.ZstdError:
        pass  # several frames or a damaged frame: cramjam decompresses them, or raises an error
    return int(cramjam.zstd.decompress_into(data, out))


def _zstd_bound(data: memoryview) -> int:
    """Return an upper bound of the decompressed size from the block headers (RFC 8878, section 3.1)."""
    bound = position = 0
    while data[position : position + 4] == _ZSTD_MAGIC and position + 5 <= len(data):
        descriptor = data[position + 4]
        single_segment = descriptor >> 5 & 1
        sizes = (single_segment, 2, 4, 8)[descriptor >> 6] + (0, 1, 2, 4)[descriptor & 3]
        position += 5 + (1 - single_segment) + sizes
        last = False
        while not last and position + 3 <= len(data):
            header = int.from_bytes(data[position : position + 3], "little")
            last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            bound += min(size, _ZSTD_BLOCK) if kind != _ZSTD_COMPRESSED else _ZSTD_BLOCK
            position += 3 + (1 if kind == _ZSTD_RLE else size)
        position += 4 * (descriptor >> 2 & 1)  # a checksum
    if position != len(data):
        raise ValueError("bytes that are not complete zstd frames")
    return bound


_DECOMPRESSORS: dict[int, Callable[[memoryview, memoryview], int | None]] = {
    Codec.NONE: _copy,
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.SNAPPY: _decompress_xerial,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
    LZ4_OF_MAGIC_0: _decompress_lz4_of_magic_0,
}
