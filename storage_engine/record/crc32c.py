"""CRC-32C (Castagnoli) of many batches in one call.

The library takes one piece of bytes a call, and for a batch of some kilobytes the call costs as much as the sum. So where
the processor has an instruction for it, a kernel goes over all batches by itself: in three streams at once, because each
result comes three cycles late; their sums are joined by what a run of zeros does to a sum (Gopal and others, "Fast CRC
Computation for iSCSI Polynomial Using CRC32 Instruction", Intel 2011). Elsewhere the library is called for each batch.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from storage_engine.record.compiled import (
    BOUNDS_CHECKED,
    BYTES_IN,
    INT64_IN,
    INT64_OUT,
    VOID,
    inlined,
    kernel,
    load_64,
)

ByteArray = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_LONG = 2048  # bytes of a stream, where there are that many, and of a shorter one behind these
_SHORT = 256


def _after(zeros: npt.NDArray[np.uint32], sums: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """What becomes of sums behind a run of zeros, which is given as what becomes of each single bit."""
    bits = (sums[..., np.newaxis] >> np.arange(32, dtype=np.uint32)) & 1
    found: npt.NDArray[np.uint32] = np.bitwise_xor.reduce(np.where(bits == 1, zeros, np.uint32(0)), axis=-1)
    return found


def _behind_zeros(count: int) -> npt.NDArray[np.uint32]:
    """Tables, uint32 of shape (4, 256): row n has what each value of a sum's byte n becomes behind `count` zero bytes.

    The count is a power of two.
    """
    zeros = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for _ in range(8):
        zeros = np.where(zeros & 1, (zeros >> 1) ^ np.uint32(_POLYNOMIAL), zeros >> 1)
    for _ in range(count.bit_length() - 1):
        zeros = _after(zeros, zeros)
    values = np.arange(256, dtype=np.uint32)
    return np.stack([_after(zeros, values << np.uint32(8 * row)) for row in range(4)])


_BEHIND_1, _BEHIND_SHORT, _BEHIND_LONG = (_behind_zeros(count) for count in (1, _SHORT, _LONG))

_INSTRUCTIONS = {
    "x86_64": ("crc32", "llvm.x86.sse42.crc32.64.64", 64),
    "aarch64": ("crc", "llvm.aarch64.crc32cx", 32),
}
"""By machine: the feature that its processor must have, LLVM's name for the sum of eight bytes, the bits of that sum."""


def _instruction() -> tuple[str, int] | None:
    feature, name, bits = _INSTRUCTIONS.get(platform.machine(), ("", "", 0))
    for_this_processor = numba.config.CPU_NAME is None and numba.config.CPU_FEATURES is None  # type: ignore[attr-defined]
    if BOUNDS_CHECKED or not for_this_processor or not llvm.get_host_cpu_features().get(feature, False):
        return None
    return name, bits


def _compiled(name: str, bits: int) -> Callable[[ByteArray, Int64Array, Int64Array, Int64Array], None]:
    """The kernel, by this instruction."""

    def typed(typing_context: Any, crc: Any, value: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
            kind = ir.IntType(bits)
            function = builder.module.declare_intrinsic(name, fnty=ir.FunctionType(kind, [kind, ir.IntType(64)]))
            crc = builder.trunc(arguments[0], kind) if bits < 64 else arguments[0]
            added = builder.call(function, [crc, arguments[1]])
            return builder.zext(added, ir.IntType(64)) if bits < 64 else added

        return types.int64(types.int64, types.int64), generate

    add_eight: Any = intrinsic(typed)

    @inlined
    def behind(tables: Any, crc: Any) -> Any:
        return np.int64(
            tables[0, crc & 0xFF]
            ^ tables[1, crc >> 8 & 0xFF]
            ^ tables[2, crc >> 16 & 0xFF]
            ^ tables[3, crc >> 24 & 0xFF]
        )

    @inlined
    def add_streams(data: Any, position: Any, end: Any, crc: Any, stream: Any, tables: Any) -> Any:
        while position + 3 * stream <= end:
            second = np.int64(0)
            third = np.int64(0)
            for at in range(position, position + stream, 8):
                crc = add_eight(crc, load_64(data, at))
                second = add_eight(second, load_64(data, at + stream))
                third = add_eight(third, load_64(data, at + 2 * stream))
            crc = behind(tables, behind(tables, crc) ^ second) ^ third
            position += 3 * stream
        return crc, position

    @kernel(VOID, BYTES_IN, INT64_IN, INT64_IN, INT64_OUT)
    def sum_all(data: Any, starts: Any, ends: Any, out: Any) -> None:
        for i in range(len(starts)):
            position = starts[i]
            end = ends[i]
            crc = np.int64(_ONES)
            crc, position = add_streams(data, position, end, crc, _LONG, _BEHIND_LONG)
            crc, position = add_streams(data, position, end, crc, _SHORT, _BEHIND_SHORT)
            while position + 8 <= end:
                crc = add_eight(crc, load_64(data, position))
                position += 8
            while position < end:
                crc = crc >> 8 ^ np.int64(_BEHIND_1[0, (crc ^ data[position]) & 0xFF])
                position += 1
            out[i] = crc ^ _ONES

    return sum_all


def _by_library(data: ByteArray, starts: Int64Array, ends: Int64Array, out: Int64Array) -> None:
    view = data.data
    out[:] = [crc32c(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


_FOUND = _instruction()
_sum_all = _compiled(*_FOUND) if _FOUND else _by_library


def crc32c_all(data: ByteArray, starts: Int64Array, ends: Int64Array) -> Int64Array:
    """The CRC-32C of each data[start:end], int64 of shape (ranges,).

    Args:
        data: uint8. starts, ends: int64, inside of it.
    """
    out = np.empty(len(starts), np.int64)
    _sum_all(data, starts, ends, out)
    return out
