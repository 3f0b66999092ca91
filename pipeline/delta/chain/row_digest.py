"""Computes the digest of each row of an exported table: 16 bytes, the same whichever program computes them.

The form is recursive. H(seed, bytes) is MurmurHash3_x64_128, and all numbers are little-endian:

    value of a column                       its hash
    int, bool, date, timestamp              H(1, int64); dates count days, timestamps count microseconds since 1970
    double                                  a whole number that fits into an int64: as int; else H(2, the 8 bytes); all NaN
                                            are one NaN, and -0.0 is not 0.0
    decimal                                 without zeros at its end: a whole number that fits into an int64: as int; else
                                            H(3, int128 and int64: the digits, and the number of digits after the point)
    string, binary                          H(4, the bytes)
    struct, and the row itself              H(5, the sum modulo 2^128 of its fields)
    a field of it, if it is not null        H(6, H(4, the name in lower case) and the hash of the value)
    list                                    H(7, int64 number of items, and the sum modulo 2^128 of its items)
    an item of it                           H(8, int64 position from 0, and the hash of the value; 16 zero bytes for null)
    map                                     H(9, int64 number of entries, and the sum modulo 2^128 of its entries)
    an entry of it                          H(10, the hash of the key, and the hash of the value; 16 zero bytes for null)

The digest is the hash of the row. As a number, it is a little-endian integer of 128 bits. A row has all its columns as
fields, except `_digest` itself and `_stale_since`. Nulls are left out, and the order of the columns does not matter. So a
new column, or a column with a wider type, changes no digest.

**This form can never change**: tables on storage contain digests.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.delta.chain.hash_kernels import add_fields, hash_values, hash_words, shorten_decimals
from pipeline.delta.rows.row_columns import DIGEST, STALE_SINCE
from storage_engine.errors import UnsupportedError

Hashes = npt.NDArray[np.uint64]
"""Hashes of values, of shape (values, 2)."""
Limbs = npt.NDArray[np.uint64]
"""Sums of hashes, of shape (sums, 4): numbers of 32 bits, the lowest first. A sum of fewer than 2^32 hashes needs no
carry."""

DIGEST_BYTES = 16
_WHOLE, _DOUBLE, _DECIMAL, _BYTES, _STRUCT, _FIELD, _LIST, _ITEM, _MAP, _ENTRY = range(1, 11)
_NOT_HASHED = frozenset({DIGEST.name, STALE_SINCE.name})
_BEYOND_INT64 = 2.0**63
_CARRY = np.uint64(32)
_NO_NULLS = np.empty(0, np.uint8)


def row_digests(rows: pa.RecordBatch | pa.Table) -> pa.BinaryArray:
    """The digest of each row.

    Raises:
        UnsupportedError: a column has a type that no export writes, and a value.
    """
    names = [name for name in rows.schema.names if name not in _NOT_HASHED]
    hashes = _structs(rows.num_rows, [(name, whole_array(rows[name])) for name in names])
    offsets = np.arange(rows.num_rows + 1, dtype=np.int32) * DIGEST_BYTES
    return pa.Array.from_buffers(
        pa.binary(), rows.num_rows, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(hashes))]
    )


def digest_limbs(digests: pa.Array) -> Limbs:
    """Digests as numbers. Each of them has 16 bytes."""
    whole = whole_array(digests)
    start = np.frombuffer(whole.buffers()[1], np.int32)[whole.offset] if len(whole) else 0
    data = np.frombuffer(whole.buffers()[2] or b"", np.uint8)[start : start + DIGEST_BYTES * len(whole)]
    return data.view("<u4").reshape(-1, 4).astype(np.uint64)


def whole_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The values as one array."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _hash(words: npt.NDArray[np.uint64], seed: int) -> Hashes:
    """The hash of each row of a two-dimensional array."""
    out = np.empty(2 * len(words), np.uint64)
    hash_words(np.ascontiguousarray(words).reshape(-1), words.shape[1], np.uint64(seed), out)
    return out.reshape(-1, 2)


def _hash_ranges(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], seed: int) -> Hashes:
    out = np.empty(2 * (len(offsets) - 1), np.uint64)
    hash_values(data, offsets, np.uint64(seed), out)
    return out.reshape(-1, 2)


def _as_limbs(hashes: Hashes) -> Limbs:
    return np.ascontiguousarray(hashes).view("<u4").reshape(-1, 4).astype(np.uint64)


def _carried(sums: Limbs) -> Hashes:
    """Sums modulo 2^128."""
    out = np.empty((len(sums), 4), "<u4")
    carry = np.zeros(len(sums), np.uint64)
    for number in range(4):
        whole = sums[:, number] + carry
        out[:, number] = whole.astype(np.uint32)
        carry = whole >> _CARRY
    return out.view("<u8").astype(np.uint64, copy=False)


def _structs(count: int, fields: list[tuple[str, pa.Array]]) -> Hashes:
    sums = np.zeros((count, 4), np.uint64)
    for name, values in fields:
        if values.null_count == count:
            continue
        encoded = np.frombuffer(name.lower().encode(), np.uint8)
        (hash_of_name,) = _hash_ranges(encoded, np.array([0, len(encoded)], np.int64), _BYTES)
        is_null = _nulls(values).view(np.uint8) if values.null_count else _NO_NULLS
        hashes = np.ascontiguousarray(_hashes(name, values)).reshape(-1)
        add_fields(*hash_of_name, hashes, is_null, np.uint64(_FIELD), sums.reshape(-1))
    return _hash(_carried(sums), _STRUCT)


def _nulls(values: pa.Array) -> npt.NDArray[np.bool_]:
    return np.array(values.is_null().to_numpy(zero_copy_only=False), np.bool_)


def _hashes(name: str, values: pa.Array) -> Hashes:
    """The hashes of values; of a null, any hash."""
    kind = values.type
    if pa.types.is_struct(kind):
        return _structs(len(values), [(each.name, values.field(number)) for number, each in enumerate(kind)])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(name, values)
    if pa.types.is_map(kind):
        return _maps(name, values)
    if pa.types.is_decimal128(kind):
        return _decimals(values)
    if pa.types.is_floating(kind):
        return _doubles(values)
    if pa.types.is_timestamp(kind):
        return _numbers(values.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()))
    if pa.types.is_date32(kind):
        return _numbers(values.cast(pa.int32()))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _numbers(values)
    try:
        return _binaries(values.cast(pa.large_binary()))
    except pa.ArrowException as error:
        raise UnsupportedError(
            f"column {name}", f"has the type {kind}, which no export writes", "Remove the column from the table."
        ) from error


def _numbers(values: pa.Array) -> Hashes:
    numbers = np.array(values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    return _hash(numbers.view(np.uint64).reshape(-1, 1), _WHOLE)


def _doubles(values: pa.Array) -> Hashes:
    numbers = np.array(values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False), np.float64)
    numbers[np.isnan(numbers)] = np.nan
    is_whole = (np.trunc(numbers) == numbers) & (numbers >= -_BEYOND_INT64) & (numbers < _BEYOND_INT64)
    is_whole &= (numbers != 0) | ~np.signbit(numbers)
    hashes = _hash(numbers.view(np.uint64).reshape(-1, 1), _DOUBLE)
    whole = numbers[is_whole].astype(np.int64)
    hashes[is_whole] = _hash(whole.view(np.uint64).reshape(-1, 1), _WHOLE)
    return hashes


def _decimals(values: pa.Array) -> Hashes:
    count = len(values)
    data = np.frombuffer(values.buffers()[1], "<u8")[2 * values.offset : 2 * (values.offset + count)]
    mantissas, scales = data.astype(np.uint64), np.empty(count, np.int64)
    shorten_decimals(values.type.scale, mantissas, scales)
    pairs = mantissas.reshape(-1, 2)
    hashes = _hash(np.column_stack([pairs, scales.view(np.uint64)]), _DECIMAL)
    sign = (pairs[:, 0].view(np.int64) >> np.int64(63)).view(np.uint64)
    is_whole = (scales == 0) & (pairs[:, 1] == sign)
    hashes[is_whole] = _hash(pairs[is_whole, :1], _WHOLE)
    return hashes


def _binaries(values: pa.Array) -> Hashes:
    _, offsets, data = values.buffers()
    places = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    return _hash_ranges(np.frombuffer(data or b"", np.uint8), places, _BYTES)


def _lists(name: str, values: pa.Array) -> Hashes:
    lengths, items = _flat(values)
    starts = np.cumsum(lengths) - lengths
    words = np.empty((len(items), 3), np.uint64)
    words[:, 0] = np.arange(len(items)) - np.repeat(starts, lengths)
    words[:, 1:] = _hashes_or_zeros(name, items)
    return _groups(lengths, _hash(words, _ITEM), _LIST)


def _maps(name: str, values: pa.Array) -> Hashes:
    """Maps have no order."""
    kind = values.type
    entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
    lengths, entries = _flat(values.cast(pa.list_(entry)))
    words = np.empty((len(entries), 4), np.uint64)
    words[:, :2] = _hashes_or_zeros(name, entries.field(0))
    words[:, 2:] = _hashes_or_zeros(name, entries.field(1))
    return _groups(lengths, _hash(words, _ENTRY), _MAP)


def _flat(values: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """The length of each list, 0 for null, and the items of all lists."""
    lengths = np.array(pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    return lengths, pc.list_flatten(values)


def _hashes_or_zeros(name: str, items: pa.Array) -> Hashes:
    if items.null_count == len(items):
        return np.zeros((len(items), 2), np.uint64)
    hashes = _hashes(name, items)
    hashes[_nulls(items)] = 0
    return hashes


def _groups(lengths: npt.NDArray[np.int64], hashes: Hashes, seed: int) -> Hashes:
    """The hash of each list or map, from the hashes of all items."""
    totals = np.zeros((len(hashes) + 1, 4), np.uint64)
    np.cumsum(_as_limbs(hashes), axis=0, out=totals[1:])
    ends = np.cumsum(lengths)
    sums = totals[ends] - totals[ends - lengths]
    return _hash(np.column_stack([lengths.view(np.uint64), _carried(sums)]), seed)
