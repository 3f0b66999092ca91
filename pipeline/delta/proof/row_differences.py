"""Compares the rows of two tables, column by column."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]


def differing_rows(one: pa.Array, other: pa.Array) -> Mask:
    """Which values of two columns differ, bool of shape (rows,).

    Nulls are equal to each other. Floating-point numbers are compared as bits, so NaN equals NaN, and -0.0 differs from
    0.0. Lists are equal if they have the same length and equal items. Maps are equal if they have equal entries in the
    same order.

    Args:
        one, other: arrays of the same type and length.
    """
    if isinstance(one, pa.ChunkedArray):
        one = one.combine_chunks()
    if isinstance(other, pa.ChunkedArray):
        other = other.combine_chunks()
    missing, missing_other = (_as_mask(each.is_null()) for each in (one, other))
    differs: Mask = missing != missing_other
    both = np.flatnonzero(~missing & ~missing_other)
    if len(both):
        chosen = pa.array(both)
        differs[both] = _differing_values(one.take(chosen), other.take(chosen))
    return differs


def _differing_values(one: pa.Array, other: pa.Array) -> Mask:
    """The same for arrays without nulls."""
    kind = one.type
    if pa.types.is_struct(kind):
        fields = [differing_rows(one.field(number), other.field(number)) for number in range(kind.num_fields)]
        differs: Mask = np.logical_or.reduce([np.zeros(len(one), np.bool_), *fields])
        return differs
    if pa.types.is_list(kind):
        return _differing_lists(one, other)
    if pa.types.is_map(kind):
        return _differing_lists(_as_lists(one), _as_lists(other))
    if pa.types.is_floating(kind):
        bits = [_bits(each) for each in (one, other)]
        return np.asarray(bits[0] != bits[1])
    return _as_mask(pc.not_equal(one, other))


def _differing_lists(one: pa.Array, other: pa.Array) -> Mask:
    lengths, lengths_other = (_as_numbers(pc.list_value_length(each)) for each in (one, other))
    differs: Mask = lengths != lengths_other
    same = np.flatnonzero(~differs)
    if len(same):
        chosen = pa.array(same)
        items, items_other = (pc.list_flatten(each.take(chosen)) for each in (one, other))
        rows = np.repeat(same, lengths[same])
        differs[rows[differing_rows(items, items_other)]] = True
    return differs


def _as_lists(maps: pa.Array) -> pa.Array:
    """The entries of each map. The maps have no nulls."""
    entries = pa.StructArray.from_arrays([maps.keys, maps.items], ["key", "value"])
    return pa.ListArray.from_arrays(maps.offsets, entries)


def _bits(values: pa.Array) -> npt.NDArray[np.uint64]:
    numbers = np.array(values.cast(pa.float64()).to_numpy(zero_copy_only=False))
    numbers[np.isnan(numbers)] = np.nan
    return numbers.view(np.uint64)


def _as_mask(values: pa.Array) -> Mask:
    return np.array(values.to_numpy(zero_copy_only=False), np.bool_)


def _as_numbers(values: pa.Array) -> npt.NDArray[np.int64]:
    return np.array(values.to_numpy(zero_copy_only=False), np.int64)
