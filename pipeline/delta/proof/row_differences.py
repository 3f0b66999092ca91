"""Compares the rows of two tables, column by column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.delta.rows.field_paths import ELEMENT, FieldPath

Mask = npt.NDArray[np.bool_]
_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OlderRows:
    """The rows of the second of two columns that may be older than the column, or than a field inside it.

    by_field: by the path of the column or field, which rows may be older, bool of shape (rows,). Such a row may have null
        there, whatever the first column has.
    not_compared: the fields that are equal in all rows, whatever they have.
    excused: the rows with such a null and another value in the first column, bool of shape (rows,). The comparison sets it.
    """

    by_field: Mapping[FieldPath, Mask] = field(default_factory=dict)
    not_compared: frozenset[FieldPath] = frozenset()
    excused: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))


@dataclass(frozen=True)
class _Place:
    """The place of values in a column. rows: for each value, its row in the column, int64."""

    path: FieldPath
    rows: _Rows
    older: OlderRows

    def at(self, chosen: _Rows, *inner: str) -> _Place:
        return _Place((*self.path, *inner), self.rows[chosen], self.older)


def differing_rows(one: pa.Array, other: pa.Array, older: OlderRows | None = None, column: str = "") -> Mask:
    """Which values of two columns differ, bool of shape (rows,).

    Nulls are equal to each other. Floating-point numbers are compared as bits, so NaN equals NaN, and -0.0 differs from
    0.0. Lists are equal if they have the same length and equal items. Maps are equal if they have equal entries in the
    same order.

    Args:
        one, other: arrays of the same type and length.
        older: the rows of `other` that may be older than a field.
        column: the name of the column, as in the paths of `older`.
    """
    return _differing(one, other, _Place((column,), np.arange(len(one)), older or OlderRows()))


def _differing(one: pa.Array, other: pa.Array, place: _Place) -> Mask:
    if isinstance(one, pa.ChunkedArray):
        one = one.combine_chunks()
    if isinstance(other, pa.ChunkedArray):
        other = other.combine_chunks()
    if place.path in place.older.not_compared:
        return np.zeros(len(one), np.bool_)
    missing, missing_other = (_as_mask(each.is_null()) for each in (one, other))
    differs: Mask = missing != missing_other
    both = np.flatnonzero(~missing & ~missing_other)
    if len(both):
        chosen = pa.array(both)
        differs[both] = _differing_values(one.take(chosen), other.take(chosen), place.at(both))
    if (are_older := place.older.by_field.get(place.path)) is not None:
        excused = differs & missing_other & are_older[place.rows]
        place.older.excused[place.rows[excused]] = True
        differs &= ~excused
    return differs


def _differing_values(one: pa.Array, other: pa.Array, place: _Place) -> Mask:
    """The same for arrays without nulls."""
    kind = one.type
    every = np.arange(len(one))
    if pa.types.is_struct(kind):
        names = [kind.field(number).name for number in range(kind.num_fields)]
        fields = [
            _differing(one.field(number), other.field(number), place.at(every, name))
            for number, name in enumerate(names)
        ]
        differs: Mask = np.logical_or.reduce([np.zeros(len(one), np.bool_), *fields])
        return differs
    if pa.types.is_list(kind):
        return _differing_lists(one, other, place.at(every, ELEMENT))
    if pa.types.is_map(kind):
        return _differing_lists(_as_lists(one), _as_lists(other), place)
    if pa.types.is_floating(kind):
        bits = [_bits(each) for each in (one, other)]
        return np.asarray(bits[0] != bits[1])
    return _as_mask(pc.not_equal(one, other))


def _differing_lists(one: pa.Array, other: pa.Array, place: _Place) -> Mask:
    """
    Args:
        place: of the items. Its rows are those of the lists.
    """
    lengths, lengths_other = (_as_numbers(pc.list_value_length(each)) for each in (one, other))
    differs: Mask = lengths != lengths_other
    same = np.flatnonzero(~differs)
    if len(same):
        chosen = pa.array(same)
        items, items_other = (pc.list_flatten(each.take(chosen)) for each in (one, other))
        rows = np.repeat(same, lengths[same])
        differs[rows[_differing(items, items_other, place.at(rows))]] = True
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
