"""Joins the rows of a table with the records of the log, and compares the rows that have a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.delta.proof.findings import ADDED_COLUMN, DEFAULT_VALUE, EARLIER_MODEL, Findings
from pipeline.delta.proof.row_differences import OlderRows, differing_rows
from pipeline.delta.rows.field_paths import Field, path_of
from schemas.unknown_fields.extra_column import EXTRA

Numbers = npt.NDArray[np.int64]
AddedColumns = Mapping[Field, Mapping[int, int]]
"""By column, or field inside a column, that was added after the first export, and by partition, the offset below which a
row may be older than it. Such a row has null there."""


@dataclass(frozen=True)
class LaterColumns:
    """The columns that a row may not have got from its record.

    added: the columns that the table got after the first export, or that a later export left out.
    not_compared: the fields inside columns that only the model has.
    with_default: the columns that Delta fills in a row if the writer gives no value. The model may have got such a column
        after the row was written.
    of_earlier_model: by partition, the offset below which another model may have decoded the record of a row.
    is_unchanged: whether the digests prove that the rows are as their exports wrote them. If not, an earlier model explains
        only another value in `_extra`, because each new field of a model changes this column.
    """

    added: AddedColumns
    with_default: frozenset[str] = frozenset()
    not_compared: frozenset[Field] = frozenset()
    of_earlier_model: Mapping[int, int] = field(default_factory=dict)
    is_unchanged: bool = False


class Places:
    """The places of records or rows, as columns int64 of shape (rows,). times: microseconds since 1970."""

    def __init__(self, table: pa.Table) -> None:
        self.partitions = _numbers(table["_partition"])
        self.offsets = _numbers(table["_offset"])
        self.times = _numbers(table["_timestamp"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()))

    def __len__(self) -> int:
        return len(self.offsets)

    def lowest_offsets(self) -> dict[int, int]:
        """The lowest offset of each partition."""
        return {int(each): int(self.offsets[self.partitions == each].min()) for each in np.unique(self.partitions)}

    def are_below(self, limits: Mapping[int, int]) -> npt.NDArray[np.bool_]:
        """Which of the places are below the offset of their partition, bool of shape (rows,)."""
        numbers, at = np.unique(self.partitions, return_inverse=True)
        return self.offsets < np.array([limits.get(int(each), 0) for each in numbers], np.int64)[at]

    def find(self, partitions: Numbers, offsets: Numbers) -> Numbers:
        """The index of each of these places, int64 of shape (places,); -1 if the place is not here."""
        found = np.full(len(offsets), -1, np.int64)
        for number in np.unique(partitions):
            here = np.flatnonzero(self.partitions == number)
            wanted = np.flatnonzero(partitions == number)
            order = here[np.argsort(self.offsets[here], kind="stable")]
            at = np.searchsorted(self.offsets[order], offsets[wanted])
            there = at < len(order)
            hits = there.copy()
            hits[there] = self.offsets[order[at[there]]] == offsets[wanted[there]]
            found[wanted[hits]] = order[at[hits]]
        return found


def _numbers(values: pa.ChunkedArray) -> Numbers:
    return np.array(values.to_numpy(), np.int64)


def compare_columns(
    records: pa.Table, record_at: Numbers, rows: pa.Table, row_at: Numbers, later: LaterColumns, findings: Findings
) -> None:
    """Compare rows with the records from which they were made, in each column that both have.

    Args:
        record_at, row_at: indices of the same length; a record and its row have the same position.
    """
    if not len(row_at):
        return
    chosen, chosen_rows = records.take(pa.array(record_at)), rows.take(pa.array(row_at))
    places = Places(chosen_rows)
    is_earlier = places.are_below(later.of_earlier_model)
    wrong: dict[str, npt.NDArray[np.bool_]] = {}
    is_older, may_be_default, has_earlier_extra = (np.zeros(len(row_at), np.bool_) for _ in range(3))
    for name in rows.column_names:
        if name not in chosen.column_names:
            continue
        older = _older_rows(name, places, later)
        differs = differing_rows(chosen[name], chosen_rows[name], older, name)
        is_older |= older.excused
        if name in later.with_default:
            may_be_default |= differs
            continue
        if name == EXTRA.name:
            has_earlier_extra = differs & is_earlier
            differs &= ~has_earlier_extra
        if differs.any():
            wrong[name] = differs
    any_wrong = np.logical_or.reduce(list(wrong.values())) if wrong else np.zeros(len(row_at), np.bool_)
    has_earlier_extra &= ~any_wrong
    is_explained = any_wrong & is_earlier & later.is_unchanged
    findings.unprovable[EARLIER_MODEL] += int((is_explained | has_earlier_extra).sum())
    for index in np.flatnonzero(any_wrong & ~is_explained):
        columns = ", ".join(name for name, differs in wrong.items() if differs[index])
        findings.differs(places.partitions[index], places.offsets[index], f"another value in {columns}")
    rest = ~any_wrong & ~has_earlier_extra
    findings.unprovable[ADDED_COLUMN] += int((rest & is_older).sum())
    rest &= ~is_older
    findings.unprovable[DEFAULT_VALUE] += int((rest & may_be_default).sum())
    findings.equal += int((rest & ~may_be_default).sum())


def _older_rows(column: str, places: Places, later: LaterColumns) -> OlderRows:
    """The rows that may be older than a column, or than a field inside it."""
    by_field = {}
    for path, limits in ((path_of(each), limits) for each, limits in later.added.items()):
        if path[0] == column:
            by_field[path] = places.are_below(limits)
    not_compared = frozenset(path_of(each) for each in later.not_compared)
    return OlderRows(by_field, not_compared, np.zeros(len(places), np.bool_))


def doubled(*keys: Numbers) -> Numbers:
    """The indices of all but the first row of each combination of these columns, int64."""
    order = np.lexsort(keys)
    is_same = np.logical_and.reduce([np.diff(each[order]) == 0 for each in keys])
    return np.sort(order[1:][is_same])
