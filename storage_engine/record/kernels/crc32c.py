"""Computes the CRC-32C (Castagnoli) of many batches in one call. Kernels can also compute the CRC of a batch that they
process.

The library crc32c needs one call per batch, and for a batch of some kilobytes the call itself takes as long as the
computation. So if the processor has a CRC-32C instruction, kernels compute the CRC themselves, in one of two ways:

- By streams. The instruction gives its result only after three cycles, so the CRCs of three parts of the bytes are
  computed at the same time. Then the three results are joined. Tables give the effect of zero bytes on a CRC (Gopal and
  others, "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction", Intel 2011).
- By folding, if the processor has carry-less multiplication of 512 bits. The kernel replaces the bytes by fewer bytes
  with the same remainder. Folding is several times as fast as streams (Gopal and others, "Fast CRC Computation for
  Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009).

On other processors the library is called for each batch.
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
from numba.core import cgutils
from numba.extending import intrinsic

from storage_engine.record.kernels.compiled import (
    BOUNDS_CHECKED,
    BYTES_IN,
    INT64_IN,
    INT64_OUT,
    TO_READ,
    VOID,
    inlined,
    kernel,
    load_64,
)

ByteArray = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_LONG = 2048  # bytes of a stream; the rest is computed with shorter streams
_SHORT = 256
_VECTOR = 64  # bytes of one vector
_VECTORS = 4  # vectors are folded in each step, because a product takes several cycles
_AHEAD = 4096  # bytes are prefetched this far ahead, further than the processor does by itself


def _after(zeros: npt.NDArray[np.uint32], sums: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return CRCs after a run of zero bytes. `zeros[i]` is the CRC after the run if the CRC before has only bit i."""
    bits = (sums[..., np.newaxis] >> np.arange(32, dtype=np.uint32)) & 1
    found: npt.NDArray[np.uint32] = np.bitwise_xor.reduce(np.where(bits == 1, zeros, np.uint32(0)), axis=-1)
    return found


def _behind_zeros(count: int) -> npt.NDArray[np.uint32]:
    """Return the effect of `count` zero bytes on a CRC, uint32 of shape (4, 256). Row n has the effect for each value
    of the CRC's byte n.

    The count is a power of two.
    """
    zeros = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for _ in range(8):
        zeros = np.where(zeros & 1, (zeros >> 1) ^ np.uint32(_POLYNOMIAL), zeros >> 1)
    for _ in range(count.bit_length() - 1):
        zeros = _after(zeros, zeros)
    values = np.arange(256, dtype=np.uint32)
    return np.stack([_after(zeros, values << np.uint32(8 * row)) for row in range(4)])


def _power(exponent: int) -> int:
    """Return x to this power modulo the polynomial. The coefficients are in the order of a CRC: the highest bit is the
    coefficient of 1.
    """
    value = 1 << 31
    for _ in range(exponent):
        value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
    return value


def _folding(distance: int) -> list[int]:
    """Return two factors, one for each half of 16 bytes. Multiplication by the factor moves a half by a distance in
    bytes, and keeps the remainder.

    The lower half comes first in memory, so it moves 64 bits further. The product of two bit-reversed factors has one
    factor x too many, so 1 is subtracted from the exponent.
    """
    return [_power(8 * distance + more - 1) << 32 for more in (64, 0)]


_BEHIND_1, _BEHIND_SHORT, _BEHIND_LONG = (_behind_zeros(count) for count in (1, _SHORT, _LONG))

_STEP = _folding(_VECTORS * _VECTOR)
_NEXT = _folding(_VECTOR)

_INSTRUCTIONS = {
    "x86_64": ("crc32", "llvm.x86.sse42.crc32.64.64", 64),
    "aarch64": ("crc", "llvm.aarch64.crc32cx", 32),
}
"""By machine: the required processor feature, LLVM's name of the instruction for eight bytes, and the number of bits of
the instruction's result.
"""


_FEATURES = llvm.get_host_cpu_features()


def _instruction() -> tuple[str, int] | None:
    feature, name, bits = _INSTRUCTIONS.get(platform.machine(), ("", "", 0))
    for_this_processor = numba.config.CPU_NAME is None and numba.config.CPU_FEATURES is None  # type: ignore[attr-defined]
    if BOUNDS_CHECKED or not for_this_processor or not _FEATURES.get(feature, False):
        return None
    return name, bits


_FOUND = _instruction()
IN_KERNELS = _FOUND is not None
"""Whether the processor has the instruction. If not, no kernel may be compiled with a call of crc_of."""
FOLDS = IN_KERNELS and all(_FEATURES.get(feature, False) for feature in ("vpclmulqdq", "avx512f"))
"""Whether this processor can compute CRCs by folding."""


def _sum_of_eight(builder: Any, crc: Any, value: Any) -> Any:
    """Generate the CRC instruction."""
    name, bits = _FOUND or ("", 0)
    kind = ir.IntType(bits)
    function = builder.module.declare_intrinsic(name, fnty=ir.FunctionType(kind, [kind, ir.IntType(64)]))
    added = builder.call(function, [builder.trunc(crc, kind) if bits < 64 else crc, value])
    return builder.zext(added, ir.IntType(64)) if bits < 64 else added


def _adding_eight(typing_context: Any, crc: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _sum_of_eight(builder, *arguments)

    return types.int64(types.int64, types.int64), generate


def _folding_steps(typing_context: Any, data: Any, start: Any, steps: Any, crc: Any) -> Any:
    """The typing function of an intrinsic that continues the CRC `crc` over at least one step of bytes. Nothing is
    checked.
    """
    word = ir.IntType(64)
    vector = ir.VectorType(word, _VECTOR // 8)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        multiply = builder.module.declare_intrinsic(
            "llvm.x86.pclmulqdq.512", fnty=ir.FunctionType(vector, [vector, vector, ir.IntType(8)])
        )

        ask_for = builder.module.declare_intrinsic(
            "llvm.prefetch.p0",
            fnty=ir.FunctionType(ir.VoidType(), [place.type, *[ir.IntType(32)] * len(TO_READ)]),
        )

        def load(step: Any, number: int) -> Any:
            at = builder.add(builder.mul(step, word(_VECTORS * _VECTOR)), word(number * _VECTOR))
            here = builder.gep(place, [at])
            builder.call(ask_for, [builder.gep(here, [word(_AHEAD)]), *map(ir.IntType(32), TO_READ)])
            return builder.load(builder.bitcast(here, vector.as_pointer()), align=1)

        def fold(folded: Any, by: list[int], following: Any) -> Any:
            factors = ir.Constant(vector, by * (_VECTOR // 16))
            for halves in (0x00, 0x11):  # lower half by lower half, then upper by upper
                following = builder.xor(following, builder.call(multiply, [folded, factors, ir.IntType(8)(halves)]))
            return following

        before = builder.insert_element(ir.Constant(vector, [0] * (_VECTOR // 8)), arguments[3], ir.IntType(32)(0))
        first = [load(word(0), number) for number in range(_VECTORS)]
        sums = [cgutils.alloca_once_value(builder, value) for value in first]  # type: ignore[no-untyped-call]
        builder.store(builder.xor(builder.load(sums[0]), before), sums[0])
        with cgutils.for_range(builder, arguments[2], start=word(1)) as loop:
            for number, held in enumerate(sums):
                builder.store(fold(builder.load(held), _STEP, load(loop.index, number)), held)
        folded = builder.load(sums[0])
        for held in sums[1:]:
            folded = fold(folded, _NEXT, builder.load(held))
        crc = word(0)
        for i in range(_VECTOR // 8):
            crc = _sum_of_eight(builder, crc, builder.extract_element(folded, ir.IntType(32)(i)))
        return crc

    return types.int64(data, types.int64, types.int64, types.int64), generate


_add_eight: Any = intrinsic(_adding_eight)
_fold_steps: Any = intrinsic(_folding_steps)


@inlined
def _behind(tables: Any, crc: Any) -> Any:
    return np.int64(
        tables[0, crc & 0xFF] ^ tables[1, crc >> 8 & 0xFF] ^ tables[2, crc >> 16 & 0xFF] ^ tables[3, crc >> 24 & 0xFF]
    )


@inlined
def _add_streams(data: Any, position: Any, end: Any, crc: Any, stream: Any, tables: Any) -> Any:
    while position + 3 * stream <= end:
        second = np.int64(0)
        third = np.int64(0)
        for at in range(position, position + stream, 8):
            crc = _add_eight(crc, load_64(data, at))
            second = _add_eight(second, load_64(data, at + stream))
            third = _add_eight(third, load_64(data, at + 2 * stream))
        crc = _behind(tables, _behind(tables, crc) ^ second) ^ third
        position += 3 * stream
    return crc, position


@inlined
def _add_rest(data: Any, position: Any, end: Any, crc: Any) -> Any:
    while position + 8 <= end:
        crc = _add_eight(crc, load_64(data, position))
        position += 8
    while position < end:
        crc = crc >> 8 ^ np.int64(_BEHIND_1[0, (crc ^ data[position]) & 0xFF])
        position += 1
    return crc ^ _ONES


@inlined
def crc_by_streams(data: Any, start: Any, end: Any) -> Any:
    crc = np.int64(_ONES)
    crc, position = _add_streams(data, start, end, crc, _LONG, _BEHIND_LONG)
    crc, position = _add_streams(data, position, end, crc, _SHORT, _BEHIND_SHORT)
    return _add_rest(data, position, end, crc)


@inlined
def crc_by_folding(data: Any, start: Any, end: Any) -> Any:
    crc = np.int64(_ONES)
    steps = (end - start) // (_VECTORS * _VECTOR)
    if steps > 0:
        crc = _fold_steps(data, start, steps, crc)
    return _add_rest(data, start + steps * (_VECTORS * _VECTOR), end, crc)


crc_of = crc_by_folding if FOLDS else crc_by_streams
"""In a kernel: crc_of(data, start, end), the CRC-32C of data[start:end]."""


def _by_instruction(data: Any, starts: Any, ends: Any, out: Any) -> None:
    for i in range(len(starts)):
        out[i] = crc_of(data, starts[i], ends[i])


def _by_library(data: ByteArray, starts: Int64Array, ends: Int64Array, out: Int64Array) -> None:
    view = data.data
    out[:] = [crc32c(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


_sum_all: Callable[[ByteArray, Int64Array, Int64Array, Int64Array], None] = (
    kernel(VOID, BYTES_IN, INT64_IN, INT64_IN, INT64_OUT)(_by_instruction) if IN_KERNELS else _by_library
)


def crc32c_all(data: ByteArray, starts: Int64Array, ends: Int64Array) -> Int64Array:
    """Return the CRC-32C of each data[start:end], int64 of shape (ranges,).

    Args:
        data: uint8.
        starts, ends: int64, positions in `data`.
    """
    out = np.empty(len(starts), np.int64)
    _sum_all(data, starts, ends, out)
    return out
