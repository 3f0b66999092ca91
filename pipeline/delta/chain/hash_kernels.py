"""Contains the compiled functions of row digests: MurmurHash3_x64_128 of many values, and the shortest form of decimals.

The hash is Austin Appleby's MurmurHash3 for 64-bit processors, with 128 bits. A value's hash is two little-endian
64-bit numbers, as in the reference implementation. The functions keep no state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from storage_engine.record.kernels.compiled import BYTES_IN, INT64_IN, INT64_OUT, VOID, inlined, kernel, load_64

UINT64_IN = types.Array(types.uint64, 1, "C", readonly=True)
UINT64_OUT = types.Array(types.uint64, 1, "C")
_C1 = np.uint64(0x87C37B91114253D5)
_C2 = np.uint64(0x4CF5AD432745937F)
_FIVE = np.uint64(5)
_ADD1, _ADD2 = np.uint64(0x52DCE729), np.uint64(0x38495AB5)
_MIX1, _MIX2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_TEN = np.uint64(10)
_LIMB = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@inlined
def _rotated(value: Any, bits: Any) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@inlined
def _mixed(value: Any) -> Any:
    value ^= value >> np.uint64(33)
    value *= _MIX1
    value ^= value >> np.uint64(33)
    value *= _MIX2
    return value ^ (value >> np.uint64(33))


@inlined
def _scrambled_1(word: Any) -> Any:
    return _rotated(word * _C1, 31) * _C2


@inlined
def _scrambled_2(word: Any) -> Any:
    return _rotated(word * _C2, 33) * _C1


@inlined
def _after_block(h1: Any, h2: Any, k1: Any, k2: Any) -> Any:
    """The state of the hash after 16 bytes."""
    h1 = (_rotated(h1 ^ _scrambled_1(k1), 27) + h2) * _FIVE + _ADD1
    h2 = (_rotated(h2 ^ _scrambled_2(k2), 31) + h1) * _FIVE + _ADD2
    return h1, h2


@inlined
def _finished(h1: Any, h2: Any, length: Any) -> Any:
    h1 ^= np.uint64(length)
    h2 ^= np.uint64(length)
    h1 += h2
    h2 += h1
    h1 = _mixed(h1)
    h2 = _mixed(h2)
    h1 += h2
    return h1, h2 + h1


@kernel(VOID, BYTES_IN, INT64_IN, types.uint64, UINT64_OUT)
def hash_values(data: Any, offsets: Any, seed: Any, out: Any) -> None:
    """Hash data[offsets[i]:offsets[i + 1]] into out[2 * i] and out[2 * i + 1], for each i.

    Args:
        seed: at most 32 bits.
    """
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        h1 = seed
        h2 = seed
        position = start
        while position + 16 <= end:
            h1, h2 = _after_block(h1, h2, np.uint64(load_64(data, position)), np.uint64(load_64(data, position + 8)))
            position += 16
        k1 = np.uint64(0)
        k2 = np.uint64(0)
        for place in range(position, end):
            shift = np.uint64(((place - position) & 7) * 8)
            if place - position < 8:
                k1 |= np.uint64(data[place]) << shift
            else:
                k2 |= np.uint64(data[place]) << shift
        h1, h2 = _finished(h1 ^ _scrambled_1(k1), h2 ^ _scrambled_2(k2), end - start)
        out[2 * row] = h1
        out[2 * row + 1] = h2


@kernel(VOID, UINT64_IN, types.int64, types.uint64, UINT64_OUT)
def hash_words(words: Any, width: Any, seed: Any, out: Any) -> None:
    """Hash values that all have the same number of words, one after another, as `hash_values` does.

    Args:
        width: the number of words of a value.
    """
    for row in range(len(out) // 2):
        h1 = seed
        h2 = seed
        start = row * width
        for number in range(start, start + width - 1, 2):
            h1, h2 = _after_block(h1, h2, words[number], words[number + 1])
        if width & 1:
            h1 ^= _scrambled_1(words[start + width - 1])
        h1, h2 = _finished(h1, h2, width * 8)
        out[2 * row] = h1
        out[2 * row + 1] = h2


@kernel(VOID, types.uint64, types.uint64, UINT64_IN, BYTES_IN, types.uint64, UINT64_OUT)
def add_fields(name_1: Any, name_2: Any, hashes: Any, is_null: Any, seed: Any, sums: Any) -> None:
    """Add the hashes of fields to the sums of their structs.

    Args:
        name_1, name_2: the hash of the name of the fields.
        hashes: of the values of the fields, two numbers for each field.
        is_null: 1 for each field that is left out; empty if no field is left out.
        sums: four numbers of 32 bits for each struct, the lowest first.
    """
    for row in range(len(hashes) // 2):
        if len(is_null) > 0 and is_null[row]:
            continue
        h1, h2 = _after_block(seed, seed, name_1, name_2)
        h1, h2 = _after_block(h1, h2, hashes[2 * row], hashes[2 * row + 1])
        h1, h2 = _finished(h1, h2, 32)
        sums[4 * row] += h1 & _LIMB
        sums[4 * row + 1] += h1 >> _HALF
        sums[4 * row + 2] += h2 & _LIMB
        sums[4 * row + 3] += h2 >> _HALF


@kernel(VOID, types.int64, UINT64_OUT, INT64_OUT)
def shorten_decimals(scale: Any, mantissas: Any, scales: Any) -> None:
    """Remove the zeros at the end of decimals, after the point.

    Args:
        scale: the number of digits after the point.
        mantissas: two's complement, the low and the high half of each decimal; changed in place.
        scales: gets the number of digits after the point that each decimal still has.
    """
    for row in range(len(scales)):
        low, high = mantissas[2 * row], mantissas[2 * row + 1]
        is_negative = (high >> np.uint64(63)) == np.uint64(1)
        if is_negative:
            low = ~low + np.uint64(1)
            high = ~high + np.uint64(1 if low == np.uint64(0) else 0)
        left = scale
        while left > 0:
            rest = np.uint64(0)
            limb3 = high >> _HALF
            quotient3 = limb3 // _TEN
            rest = limb3 - quotient3 * _TEN
            limb2 = (rest << _HALF) | (high & _LIMB)
            quotient2 = limb2 // _TEN
            rest = limb2 - quotient2 * _TEN
            limb1 = (rest << _HALF) | (low >> _HALF)
            quotient1 = limb1 // _TEN
            rest = limb1 - quotient1 * _TEN
            limb0 = (rest << _HALF) | (low & _LIMB)
            quotient0 = limb0 // _TEN
            if limb0 != quotient0 * _TEN:
                break
            high = (quotient3 << _HALF) | quotient2
            low = (quotient1 << _HALF) | quotient0
            left -= 1
        if is_negative:
            low = ~low + np.uint64(1)
            high = ~high + np.uint64(1 if low == np.uint64(0) else 0)
        mantissas[2 * row] = low
        mantissas[2 * row + 1] = high
        scales[row] = left
