"""Contains the compiled functions of row digests: MurmurHash3_x64_128 of many values, and the shortest form of decimals.

The hash is Austin Appleby's MurmurHash3 for 64-bit processors, with 128 bits. A value's hash is two little-endian
64-bit numbers, as in the reference implementation. The functions keep no state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from storage_engine.record.kernels.compiled import BYTES_IN, INT64_IN, INT64_OUT, VOID, inlined, kernel, load_64

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


@kernel(VOID, BYTES_IN, INT64_IN, types.uint64, UINT64_OUT)
def hash_values(data: Any, offsets: Any, seed: Any, out: Any) -> None:
    """Hash data[offsets[i]:offsets[i + 1]] into out[2 * i] and out[2 * i + 1], for each i.

    Args:
        seed: at most 32 bits.
    """
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        length = end - start
        h1 = seed
        h2 = seed
        position = start
        while position + 16 <= end:
            k1 = np.uint64(load_64(data, position))
            k2 = np.uint64(load_64(data, position + 8))
            h1 ^= _rotated(k1 * _C1, 31) * _C2
            h1 = (_rotated(h1, 27) + h2) * _FIVE + _ADD1
            h2 ^= _rotated(k2 * _C2, 33) * _C1
            h2 = (_rotated(h2, 31) + h1) * _FIVE + _ADD2
            position += 16
        k1 = np.uint64(0)
        k2 = np.uint64(0)
        for place in range(position, end):
            shift = np.uint64(((place - position) & 7) * 8)
            if place - position < 8:
                k1 |= np.uint64(data[place]) << shift
            else:
                k2 |= np.uint64(data[place]) << shift
        h2 ^= _rotated(k2 * _C2, 33) * _C1
        h1 ^= _rotated(k1 * _C1, 31) * _C2
        h1 ^= np.uint64(length)
        h2 ^= np.uint64(length)
        h1 += h2
        h2 += h1
        h1 = _mixed(h1)
        h2 = _mixed(h2)
        h1 += h2
        h2 += h1
        out[2 * row] = h1
        out[2 * row + 1] = h2


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
