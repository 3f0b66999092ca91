"""Compiles kernels. A kernel is a function with fixed types, which numba compiles to machine code at the first call.

Compiled kernels are stored in numba's cache. The first call of a kernel in a process loads the kernel from this
cache, in a few milliseconds (`_KernelCache`). scripts/setup.sh sets the cache's folder, NUMBA_CACHE_DIR, to a folder in
.venv. Many processes call no kernel, for example the processes in which Spark plans a read. Without a writable cache
folder, each process compiles the kernels that it calls. Input arrays are declared read-only, because Arrow's buffers are
read-only. A kernel with read-only inputs also accepts writable arrays, so one signature per kernel is enough. Kernels
keep no state and are thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import update_wrapper
from typing import Any, cast

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.caching import FunctionCache
from numba.core.datamodel.models import TupleModel
from numba.core.datamodel.registry import register_default
from numba.core.runtime.nrt import rtsys
from numba.core.typeconv.castgraph import Conversion
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
"""Whether kernels check every array index (NUMBA_BOUNDSCHECK). Only tests set this, with a separate cache."""


_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
"""nogil: other threads run while a kernel runs. _nrt: False switches numba's reference counts off. Reference counts are
not needed, because callers own all memory of a kernel. Counting at each inlined call would make kernels three times as
slow.
"""


def integers(count: int) -> Any:
    """Return the type of a tuple of int64, for kernels that return several numbers."""
    return types.UniTuple(types.int64, count)  # type: ignore[no-untyped-call]


class _ColumnsType(types.NamedTuple):
    """The numba type of a named tuple of arrays and numbers. Numba's own type accepts neither plain tuples nor writable
    arrays where read-only arrays are declared.
    """

    def can_convert_from(self, typing_context: Any, other: Any) -> Any:
        fits = isinstance(other, types.BaseTuple) and len(other) == len(self)
        fits = fits and all(typing_context.can_convert(*pair) is not None for pair in zip(other, self, strict=True))
        return Conversion.safe if fits else None


register_default(_ColumnsType)(TupleModel)


def columns(kind: type[tuple[Any, ...]], *fields: Any) -> Any:
    """Return the numba type of a named tuple that a kernel takes as an argument, from the types of its fields."""
    return _ColumnsType(fields, kind)  # type: ignore[no-untyped-call]


class _KernelCache(FunctionCache):
    """Numba's cache of compiled functions, without what only a compiler needs.

    Numba loads its typing rules before it loads a function from the cache, which takes longer than to append or to read
    1,000 records. A function that is compiled already needs numba's runtime only. If the function is not in the cache,
    the compiler loads the typing rules itself.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]


_kernels: list[_Kernel] = []


class _Kernel:
    """A kernel that is compiled at its first call."""

    def __init__(self, function: Callable[..., Any], signature: Any) -> None:
        self._function = function
        self._signature = signature
        self._compiled: Callable[..., Any] | None = None
        update_wrapper(self, function)
        _kernels.append(self)

    def __call__(self, *arguments: Any) -> Any:
        return (self._compiled or self.load())(*arguments)

    def load(self) -> Callable[..., Any]:
        """The compiled function. It is in numba's cache afterwards, if the cache can be written. Several threads may call
        this method at once."""
        compiled = numba.njit(**_OPTIONS | {"cache": False})(self._function)
        with suppress(RuntimeError):  # numba finds no folder that this user may write to
            cache = _KernelCache(self._function)  # type: ignore[no-untyped-call]
            compiled._cache = cache  # noqa: SLF001 - numba has no public way to set it
        compiled.compile(self._signature)
        compiled.disable_compile()
        self._compiled = compiled
        return cast(Callable[..., Any], compiled)


def kernel(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile the decorated function for these types, at its first call. It releases the GIL while it runs."""
    return lambda function: _Kernel(function, result(*arguments))


def load_kernels() -> int:
    """Load or compile the kernels of all modules that were imported, and return their number. A process that forks
    workers calls this function first, so that the workers share the kernels."""
    for each in _kernels:
        each.load()
    return len(_kernels)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that kernels call. It is inlined, because a call would return tuples through memory."""
    return cast(Callable[..., Any], numba.njit(**_OPTIONS, forceinline=True)(function))


TO_READ = (0, 3, 1)
"""Arguments of LLVM's prefetch: for reading, into all caches, data."""
BLOCK = 32
"""The number of bytes that copy_block copies."""


def _copy(builder: Any, context: Any, signature: Any, arguments: Any, length: Any) -> None:
    target, source = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2))
    places = builder.gep(target.data, [arguments[1]]), builder.gep(source.data, [arguments[3]])
    cgutils.raw_memcpy(builder, *places, length, 1)  # type: ignore[no-untyped-call]


def _memcpy(typing_context: Any, out: Any, position: Any, data: Any, start: Any, length: Any) -> Any:
    """The typing function of memcpy from data[start:] to out[position:], which is several times as fast as a loop.

    Nothing is checked: both ranges must be inside their arrays, and must not overlap.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _copy(builder, context, signature, arguments, arguments[4])
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64), generate


def _copying(length: int) -> Callable[..., Any]:
    """Return the typing function of a copy of this number of bytes, which takes one or two instructions. Nothing is
    checked.
    """

    def copy(typing_context: Any, out: Any, position: Any, data: Any, start: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _copy(builder, context, signature, arguments, ir.Constant(ir.IntType(64), length))
            return context.get_dummy_value()

        return types.void(out, types.int64, data, types.int64), generate

    return copy


def _loading(bits: int) -> Callable[..., Any]:
    """Return the typing function of an intrinsic that reads a little-endian integer of this number of bits."""

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


def _store_32(typing_context: Any, out: Any, position: Any, value: Any) -> Any:
    """The typing function of an intrinsic that writes the lowest four bytes of an integer, the lowest byte first."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        four_bytes = ir.IntType(32)
        pointer = builder.bitcast(place, four_bytes.as_pointer())
        builder.store(builder.trunc(arguments[2], four_bytes), pointer, align=1)
        return context.get_dummy_value()

    return types.void(out, types.int64, types.int64), generate


def _trailing_zeros(typing_context: Any, value: Any) -> Any:
    """The typing function of an intrinsic that counts the zero bits below the lowest bit that is 1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), generate


def _prefetch(typing_context: Any, data: Any, position: Any) -> Any:
    """The typing function of an intrinsic that loads an array element into the cache before it is read."""

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
copy_2: Any = intrinsic(_copying(2))
copy_16: Any = intrinsic(_copying(16))
copy_block: Any = intrinsic(_copying(BLOCK))
"""In a kernel: copy_block(out, position, data, start); copy_2 and copy_16 copy 2 and 16 bytes."""
prefetch: Any = intrinsic(_prefetch)
"""In a kernel: prefetch(data, position). A position outside the array has no effect."""
load_32: Any = intrinsic(_loading(32))
"""In a kernel: load_32(data, position), four bytes as an unsigned little-endian integer. Nothing is checked."""
load_64: Any = intrinsic(_loading(64))
"""In a kernel: load_64(data, position), eight bytes as a little-endian integer. Nothing is checked."""
store_32: Any = intrinsic(_store_32)
"""In a kernel: store_32(out, position, value), the lowest four bytes of an integer, little-endian. Nothing is checked."""
trailing_zeros: Any = intrinsic(_trailing_zeros)
"""In a kernel: trailing_zeros(value), the zero bits below the lowest bit that is 1 in an int64; 64 for the value 0."""
