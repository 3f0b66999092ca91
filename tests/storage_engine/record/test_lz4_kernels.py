"""Tests that the kernel for LZ4 frames returns the same bytes as the library cramjam, also from damaged frames."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from storage_engine.record.compression import Codec, compress_bound, compress_into, decompress_into
from storage_engine.record.kernels.lz4_kernels import BLOCK_BYTES, decompress_frames

MOST = 1 << 24


def contents(chance: random.Random) -> Iterator[bytes]:
    """Bytes of many lengths, whose matches have all short distances and lengths, and some long ones."""
    for length in (0, 1, 4, 5, 11, 12, 13, 14, 15, 16, 17, 31, 32, 33, 63, 64, 65, BLOCK_BYTES, 3 * BLOCK_BYTES + 7):
        yield bytes(length)
        yield chance.randbytes(length)
        yield (b"price:1.25,name:abc;" * (length // 20 + 1))[:length]
    for distance in range(1, 70):
        pattern = chance.randbytes(distance)
        yield chance.randbytes(20) + pattern * chance.randrange(2, 600) + chance.randbytes(chance.randrange(40))
    for _ in range(150):
        pieces = [chance.randbytes(chance.randrange(1, 40)) for _ in range(chance.randrange(1, 30))]
        yield b"".join(chance.choice(pieces) for _ in range(chance.randrange(1, 3_000)))


def frame_of(content: bytes, level: int) -> bytes:
    out = memoryview(bytearray(compress_bound(len(content))))
    return bytes(out[: compress_into(Codec.LZ4, memoryview(content), out, level)])


def by_kernel(frames: list[bytes], room: int) -> list[bytes]:
    """The content of the first frames, as far as the kernel decompresses them. There are bytes between the frames."""
    data = np.frombuffer(b"".join(frame + b"\xff\x0f\x00" for frame in frames), np.uint8)
    ends = np.cumsum([len(frame) + 3 for frame in frames]) - 3
    starts = ends - [len(frame) for frame in frames]
    codecs = np.full(len(frames), Codec.LZ4, np.int64)
    out = np.full(5 + room, 0xEE, np.uint8)
    bounds = np.zeros(len(frames) + 1, np.int64)
    done = decompress_frames(data, starts, ends, codecs, int(Codec.LZ4), out, 5, MOST, MOST, 0, bounds)
    assert (out[:5] == 0xEE).all()
    return [out[5 + bounds[i] : 5 + bounds[i + 1]].tobytes() for i in range(done)]


@pytest.mark.parametrize("level", [9, 12], ids=["fast", "high compression"])
def test_the_content_of_many_frames(level: int) -> None:
    expected = list(contents(random.Random(level)))
    found = by_kernel([frame_of(content, level) for content in expected], MOST)
    assert len(found) == len(expected)
    assert found == expected


def test_the_kernel_stops_before_a_frame_that_does_not_fit() -> None:
    expected = [b"a" * 60_000, b"b" * 60_000]
    frames = [frame_of(content, 9) for content in expected]
    needed = BLOCK_BYTES + 32  # a block and its slack
    assert by_kernel(frames, needed - 1) == []
    assert by_kernel(frames, needed + 60_000 - 1) == expected[:1]
    assert by_kernel(frames, needed + 60_000) == expected


def test_damaged_frames() -> None:
    chance = random.Random(5)
    whole = [frame_of(content, 9) for content in contents(chance) if len(content) < 4_000]
    decompressed = 0
    for _ in range(6_000):
        damaged = bytearray(chance.choice(whole))
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        if chance.random() < 0.2:
            del damaged[chance.randrange(len(damaged)) :]
        frame = bytes(damaged)
        for content in by_kernel([frame], 2 * BLOCK_BYTES):
            out = memoryview(bytearray(4 * BLOCK_BYTES))
            size = decompress_into(Codec.LZ4, memoryview(frame), out)
            assert size is not None
            assert bytes(out[:size]) == content
            decompressed += 1
    assert decompressed > 100  # damage of literals cannot be noticed
