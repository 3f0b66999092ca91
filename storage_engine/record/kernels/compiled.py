"""How a kernel is compiled: ahead of use, with a fixed signature, kept in numba's cache.

Every input array of a kernel is declared read-only, because Arrow's buffers are; numba accepts writable arrays in their
place, so each kernel is compiled once and for all. Where the cache lies is numba's business (NUMBA_CACHE_DIR, which the
set-up points into .venv); an installation without a writable folder compiles at each start and works all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)
INT32_IN = types.Array(types.int32, 1, "C", readonly=True)
INT64_IN = types.Array(types.int64, 1, "C", readonly=True)
BYTES_OUT = types.Array(types.uint8, 1, "C")
INT8_OUT = types.Array(types.int8, 1, "C")
INT32_OUT = types.Array(types.int32, 1, "C")
INT64_OUT = types.Array(types.int64, 1, "C")
INT64 = types.int64
VOID = types.void


BOUNDS_CHECKED = bool(numba.config.BOUNDSCHECK)  # type: ignore[attr-defined]
"""NUMBA_BOUNDSCHECK is set: kernels are compiled to look at every index. Only tests do that, with a cache of their own."""


_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
"""nogil: others run while a kernel does. _nrt: kernels are given all the memory that they work on, so arrays in them need
no reference counts; numba would count, atomically, at every call of a step that is inlined, and take three times as long.
"""


def integers(count: int) -> Any:
    """The type of a tuple of so many int64, for kernels that return several."""
    return types.UniTuple(types.int64, count)  # type: ignore[no-untyped-call]


def kernel(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile the decorated function for exactly these types; it releases the GIL while it runs."""

    def compile_it(function: Callable[..., Any]) -> Callable[..., Any]:
        return cast(Callable[..., Any], numba.njit(result(*arguments), **_OPTIONS)(function))

    return compile_it


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A step that several kernels share. Each gets its body: a call would pass what it returns through memory."""
    return cast(Callable[..., Any], numba.njit(**_OPTIONS, forceinline=True)(function))


TO_READ = (0, 3, 1)
"""To LLVM's prefetch: bytes to be read, to be kept in every cache, data."""
BLOCK = 32
"""Bytes that copy_block copies."""


def _copy(builder: Any, context: Any, signature: Any, arguments: Any, length: Any) -> None:
    target, source = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2))
    places = builder.gep(target.data, [arguments[1]]), builder.gep(source.data, [arguments[3]])
    cgutils.raw_memcpy(builder, *places, length, 1)  # type: ignore[no-untyped-call]


def _memcpy(typing_context: Any, out: Any, position: Any, data: Any, start: Any, length: Any) -> Any:
    """memcpy of so many bytes from data[start:] to out[position:]: several times a compiled loop over them.

    Nothing is checked: both ranges must lie inside their arrays and not overlap.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _copy(builder, context, signature, arguments, arguments[4])
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64), generate


def _copy_block(typing_context: Any, out: Any, position: Any, data: Any, start: Any) -> Any:
    """Copy BLOCK bytes, which is an instruction or two where memcpy is a call. As unchecked as _memcpy."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _copy(builder, context, signature, arguments, ir.Constant(ir.IntType(64), BLOCK))
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64), generate


def _loading(bits: int) -> Callable[..., Any]:
    """The typing function of an intrinsic that reads an integer of so many bits, lowest byte first."""

    def load(typing_context: Any, data: Any, position: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            place = builder.gep(array.data, [arguments[1]])
            pointer = builder.bitcast(place, ir.IntType(bits).as_pointer())
            return (
                builder.zext(builder.load(pointer, align=1), ir.IntType(64))
                if bits < 64
                else builder.load(pointer, align=1)
            )

        return types.int64(data, types.int64), generate

    return load


def _prefetch(typing_context: Any, data: Any, position: Any) -> Any:
    """The typing function of an intrinsic that asks for the memory of an element which will be looked at soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        kinds = [place.type, *[ir.IntType(32)] * 3]
        ask_for = builder.module.declare_intrinsic("llvm.prefetch.p0", fnty=ir.FunctionType(ir.VoidType(), kinds))
        builder.call(ask_for, [place, *(ir.IntType(32)(number) for number in TO_READ)])
        return context.get_dummy_value()

    return types.void(data, types.int64), generate


memcpy: Any = intrinsic(_memcpy)
"""In a kernel: memcpy(out, position, data, start, length)."""
copy_block: Any = intrinsic(_copy_block)
"""In a kernel: copy_block(out, position, data, start)."""
prefetch: Any = intrinsic(_prefetch)
"""In a kernel: prefetch(data, position). No position is wrong: where there is no memory nothing happens."""
load_32: Any = intrinsic(_loading(32))
"""In a kernel: load_32(data, position), four bytes as an unsigned little-endian integer. As unchecked as _memcpy."""
load_64: Any = intrinsic(_loading(64))
"""In a kernel: load_64(data, position), eight bytes as a little-endian integer. As unchecked as _memcpy."""
