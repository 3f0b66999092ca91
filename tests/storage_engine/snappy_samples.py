"""Makes bytes to compress with snappy: text, digits, zeros, random bytes, and mixtures of repeats."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

MOST_BYTES = 200 * 1024
_WORDS = [b"sensor", b"temperature", b"pressure", b"berlin", b"ok", b"delayed", b"customer", b"paid"]


def samples(seed: int, count: int) -> Iterator[bytes]:
    """Every kind in every size up to 300, and then `count` samples of random kinds and sizes up to MOST_BYTES."""
    chance = random.Random(seed)
    contents = [kind(chance) for kind in _KINDS]
    for content in contents:
        for size in range(301):
            start = chance.randrange(MOST_BYTES)
            yield content[start : start + size]
    for _ in range(count):
        start = chance.randrange(MOST_BYTES)
        yield chance.choice(contents)[start : start + int(MOST_BYTES ** chance.random())]


def _text(chance: random.Random) -> bytes:
    parts: list[bytes] = []
    for _ in range(2 * MOST_BYTES // 14):
        parts += chance.choice(_WORDS), b"%d" % chance.randrange(10**9)
    return b",".join(parts)


def _letters(chance: random.Random) -> bytes:
    """Four letters in random order: many short matches, and candidates that do not match."""
    return bytes(chance.choices(b"abcd", k=2 * MOST_BYTES))


def _random(chance: random.Random) -> bytes:
    return chance.randbytes(2 * MOST_BYTES)


def _zeros(chance: random.Random) -> bytes:
    return bytes(2 * MOST_BYTES)


def _mixture(chance: random.Random) -> bytes:
    """Random bytes, short patterns that repeat, and copies of earlier bytes at all distances."""
    found = bytearray(chance.randbytes(100))
    while len(found) < 2 * MOST_BYTES:
        choice = chance.randrange(4)
        if choice == 0:
            found += chance.randbytes(int(500 ** chance.random()))
        elif choice == 1:
            found += chance.randbytes(chance.randrange(1, 9)) * chance.randrange(60)
        else:
            start = len(found) - chance.randrange(1, min(len(found), 40_000))
            found += found[start : start + chance.randrange(4, 200)]
    return bytes(found)


_KINDS: list[Callable[[random.Random], bytes]] = [_text, _letters, _random, _zeros, _mixture]
