"""Compares an upsert table with the log. Each key must have one row, made from the newest record of the key that can be
decoded.

Each export made its rows from the log of that time. Since then, compaction and retention may have removed records. So a
row is called different only if a correct export cannot have made the row: either the log still has another record that
must be the row, or the log never had the row's record. The rules of an export are in `pipeline.delta.rows.export_rows`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from pipeline.delta.proof.compared_rows import LaterColumns, Numbers, Places, compare_columns, doubled
from pipeline.delta.proof.findings import (
    COMPACTION,
    NO_EVIDENCE,
    OTHER_MODEL,
    SEVERAL_PARTITIONS,
    UNKNOWN_START,
    Evidence,
    Findings,
)
from pipeline.delta.proof.row_differences import Mask
from pipeline.delta.rows.row_columns import STALE_SINCE
from storage_engine.record.partitioner import partition_keys

ExportOf = Callable[[int, int], int]
"""The number of the export that first read an offset of a partition; 0: not known."""


def compare_upserted(
    records: pa.Table,
    is_open: Mask,
    later: pa.ChunkedArray,
    rows: pa.Table,
    evidence: Evidence,
    later_columns: LaterColumns,
    first_partitions: int,
    export_of: ExportOf,
) -> Findings:
    """Compare all rows of an upsert table, or those of a part of the keys, with their records.

    Args:
        records: the records of these keys below the table's positions, decoded with today's model
            (row_decoding.decoded_columns).
        is_open: bool of shape (records,): whether the record is an open dead letter of the table.
        later: the keys of the records at or above the positions.
        rows: the rows, with the columns that are compared, and the coordinates.
        first_partitions: the number of the topic's partitions at the first export, or less.
        export_of: as ExportedTable.export_of.
    """
    has_key = np.array(records["_key"].is_valid().to_numpy(), np.bool_)
    records = records.filter(pa.array(has_key))
    is_open = is_open[has_key]
    return _Comparison(records, is_open, later, rows, evidence, later_columns, first_partitions, export_of).findings


class _Comparison:
    """One comparison. Keys are numbered. Arrays by key have -1 for none."""

    def __init__(
        self,
        records: pa.Table,
        is_open: Mask,
        later: pa.ChunkedArray,
        rows: pa.Table,
        evidence: Evidence,
        later_columns: LaterColumns,
        first_partitions: int,
        export_of: ExportOf,
    ) -> None:
        self.findings = Findings()
        self._export_of = export_of
        self._first_partitions = first_partitions
        self._evidence = evidence
        self._rows = rows
        self._there, self._places = Places(records), Places(rows)
        self._number_keys(records, later)
        self._tombstones = np.array(records["_tombstone"].to_numpy(), np.bool_)
        self._fits = np.array(records["_reason"].is_null().to_numpy(), np.bool_)
        self._found = self._there.find(self._places.partitions, self._places.offsets)
        # A replay that was killed may have made the row, and not yet closed the dead letter.
        is_open = is_open.copy()
        # A tombstone is no dead letter of an upsert. Before a rebuild, the table may have had another mode.
        is_open[self._tombstones] = False
        found = self._found[self._found >= 0]
        is_open[found[self._fits[found]]] = False
        self._decides = self._fits & ~is_open
        self._is_open = is_open
        self._has_undecodable = np.zeros(len(self._keys), np.bool_)
        self._has_undecodable[self._key_of_record[~self._decides]] = True
        self._lowest_offsets = self._places.lowest_offsets()
        self._deciding = self._newest(np.flatnonzero(self._decides))
        self._falls = self._falling_times()
        self._row = self._row_of_each_key()
        self._compare(records, later_columns)

    def _number_keys(self, records: pa.Table, later: pa.ChunkedArray) -> None:
        chunks = [chunk for each in (records["_key"], later, self._rows["_key"]) for chunk in each.chunks]
        encoded = pa.chunked_array(chunks, pa.binary()).combine_chunks().dictionary_encode()
        numbers = np.array(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
        self._keys = encoded.dictionary
        count = len(self._keys)
        self._key_of_record = numbers[: len(records)]
        self._has_later = np.zeros(count, np.bool_)
        self._has_later[numbers[len(records) : len(records) + len(later)]] = True
        self._key_of_row = numbers[len(records) + len(later) :]

    def _newest(self, chosen: Numbers) -> Numbers:
        """The newest of these records of each key: the last of each partition, and of these the one with the highest
        timestamp, or the highest partition."""
        there = self._there
        order = chosen[np.lexsort((there.offsets[chosen], there.partitions[chosen], self._key_of_record[chosen]))]
        keys, partitions = self._key_of_record[order], there.partitions[order]
        is_last = np.ones(len(order), np.bool_)
        is_last[:-1] = (keys[1:] != keys[:-1]) | (partitions[1:] != partitions[:-1])
        order = order[is_last]
        order = order[np.lexsort((there.partitions[order], there.times[order], self._key_of_record[order]))]
        newest = np.full(len(self._keys), -1, np.int64)
        newest[self._key_of_record[order]] = order  # of several records of a key, the last one stays
        return newest

    def _falling_times(self) -> Mask:
        """By key, whether it has records in several partitions, and in one of them falling timestamps. The row of such a
        key depends on the increments in which the log was exported."""
        there = self._there
        order = np.lexsort((there.offsets, there.partitions, self._key_of_record))
        keys, partitions, times = self._key_of_record[order], there.partitions[order], there.times[order]
        same = keys[1:] == keys[:-1]
        falls, several = np.zeros(len(self._keys), np.bool_), np.zeros(len(self._keys), np.bool_)
        elsewhere = partitions[1:] != partitions[:-1]
        several[keys[1:][same & elsewhere]] = True
        falls[keys[1:][same & ~elsewhere & (times[1:] < times[:-1])]] = True
        return falls & several

    def _row_of_each_key(self) -> Numbers:
        extra = doubled(self._key_of_row)
        for index in extra:
            self._differs_at_row(index, "the key has more than one row")
        row = np.full(len(self._keys), -1, np.int64)
        first = np.setdiff1d(np.arange(len(self._rows)), extra)
        for index in first[self._key_of_row[first] < 0]:
            self._differs_at_row(index, "the row has no key")
        first = first[self._key_of_row[first] >= 0]
        row[self._key_of_row[first]] = first
        return row

    def _differs_at_row(self, index: int, problem: str) -> None:
        self.findings.differs(self._places.partitions[index], self._places.offsets[index], problem)

    def _unprovable(self, reason: str) -> None:
        self.findings.unprovable[reason] += 1

    # Rows of the deciding records

    def _compare(self, records: pa.Table, later_columns: LaterColumns) -> None:
        keys = np.flatnonzero((self._row >= 0) | (self._deciding >= 0))
        row, deciding = self._row[keys], self._deciding[keys]
        both = (row >= 0) & (deciding >= 0)
        is_made = np.zeros(len(keys), np.bool_)
        is_made[both] = (self._found[row[both]] == deciding[both]) & ~self._tombstones[deciding[both]]
        compared = keys[is_made & self._is_stale_as_expected(keys, is_made)]
        stale = STALE_SINCE.name
        columns = [name for name in self._rows.column_names if name != stale]
        rows = self._rows.select(columns)
        compare_columns(records, self._deciding[compared], rows, self._row[compared], later_columns, self.findings)
        for key in keys[~is_made]:
            if self._row[key] >= 0:
                self._explain_row(int(key), int(self._row[key]))
            elif not self._tombstones[self._deciding[key]]:
                self._explain_missing(int(key), int(self._deciding[key]))

    def _is_stale_as_expected(self, keys: Numbers, is_made: Mask) -> Mask:
        """Compare `_stale_since` of the rows that are made from their deciding record. If the table does not have this
        column, nothing is compared."""
        if STALE_SINCE.name not in self._rows.column_names:
            return np.ones(len(keys), np.bool_)
        first, row = self._first_undecodable()[keys], self._row[keys]
        stale = self._rows[STALE_SINCE.name].combine_chunks()
        is_null = np.array(stale.is_null().to_numpy(zero_copy_only=False), np.bool_)
        fits = np.ones(len(keys), np.bool_)
        there = (self._there.partitions, self._there.offsets, self._there.times)
        for number, wanted in enumerate(there):
            values = stale.field(number)
            values = values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values
            found = np.array(values.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
            found[is_null] = -1
            fits &= np.append(found, -1)[row] == np.append(wanted, -1)[first]
        fits |= ~is_made
        for at in np.flatnonzero(~fits):
            index = int(row[at])
            since = None if is_null[index] else (stale[index]["partition"].as_py(), stale[index]["offset"].as_py())
            self._explain_stale(int(keys[at]), index, int(first[at]), since)
        return fits

    def _first_undecodable(self) -> Numbers:
        """By key, the first record that cannot be decoded and is newer than the deciding record; -1: none."""
        there = self._there
        first = np.full(len(self._keys), -1, np.int64)
        bad = np.flatnonzero(~self._decides)
        deciding = self._deciding[self._key_of_record[bad]]
        bad, deciding = bad[deciding >= 0], deciding[deciding >= 0]
        same = there.partitions[bad] == there.partitions[deciding]
        is_newer = np.where(same, there.offsets[bad] > there.offsets[deciding], self._is_younger(bad, deciding))
        bad = bad[is_newer]
        # In each partition the lowest offset, and of these the oldest: the last to be stored stays.
        order = bad[np.lexsort((there.offsets[bad], there.partitions[bad], self._key_of_record[bad]))]
        keys, partitions = self._key_of_record[order], there.partitions[order]
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (keys[1:] != keys[:-1]) | (partitions[1:] != partitions[:-1])
        order = order[is_first]
        order = order[np.lexsort((there.partitions[order], there.times[order], self._key_of_record[order]))][::-1]
        first[self._key_of_record[order]] = order
        return first

    def _is_younger(self, one: Numbers, other: Numbers) -> Mask:
        there = self._there
        later = there.times[one] > there.times[other]
        return np.asarray(
            later | ((there.times[one] == there.times[other]) & (there.partitions[one] > there.partitions[other]))
        )

    def _explain_stale(self, key: int, row: int, first: int, place: tuple[int, int] | None) -> None:
        """The row is made from the right record, but is stale since another record than expected."""
        if self._falls[key]:
            reason = SEVERAL_PARTITIONS
        elif first >= 0 and not self._is_open[first]:
            reason = OTHER_MODEL  # today's model refuses a record that was no dead letter
        elif place is not None and self._evidence.get(place[0], NO_EVIDENCE).why_gone(place[1]) is not None:
            reason = COMPACTION
        else:
            self._differs_at_row(row, "another value in _stale_since")
            return
        self._unprovable(reason)
        self.findings.unprovable_stale += 1

    # Other rows

    def _explain_row(self, key: int, row: int) -> None:
        """The row is not made from the record that decides its key today."""
        partition, offset = int(self._places.partitions[row]), int(self._places.offsets[row])
        known = self._evidence.get(partition, NO_EVIDENCE)
        record, decides = int(self._found[row]), int(self._deciding[key])
        if offset >= known.position:
            self._differs_at_row(row, "the row's offset is at or above the table's position")
        elif record >= 0 and self._key_of_record[record] != key:
            self._differs_at_row(row, "the record at this place has another key")
        elif record >= 0 and not self._fits[record]:
            if self._is_open[record]:
                self._differs_at_row(row, "the record at this place is an open dead letter")
            else:
                self._unprovable(OTHER_MODEL)
        elif record >= 0 and self._tombstones[record]:
            self._differs_at_row(row, "the record at this place is a tombstone")
        elif decides >= 0 and self._is_newer_than_row(decides, row):
            if self._falls[key] or self._may_follow_deletion(row, decides):
                self._unprovable(SEVERAL_PARTITIONS)
            else:
                place = f"{self._there.partitions[decides]}:{self._there.offsets[decides]}"
                what = "must delete" if self._tombstones[decides] else "must replace"
                self._differs_at_row(row, f"the newer record {place} {what} the row")
        else:
            why = known.why_gone(offset) if record < 0 else None
            if why == COMPACTION and not self._may_be_compacted(key, row, decides):
                why = None
            if why is None:
                self._differs_at_row(row, "the log has no such record")
            else:
                self._unprovable(why)

    def _may_follow_deletion(self, row: int, decides: int) -> bool:
        """Whether an export may have read the row's record after a tombstone of another partition had deleted the row of
        this key. A deletion leaves nothing in the table, so the older record then became a row again."""
        there, places = self._there, self._places
        deleting, made = int(there.partitions[decides]), int(places.partitions[row])
        if not self._tombstones[decides] or deleting == made:
            return False
        deleted_by = self._export_of(deleting, int(there.offsets[decides]))
        made_by = self._export_of(made, int(places.offsets[row]))
        return deleted_by < made_by or deleted_by == made_by == 0

    def _is_newer_than_row(self, record: int, row: int) -> bool:
        there, places = self._there, self._places
        if there.partitions[record] == places.partitions[row]:
            return bool(there.offsets[record] > places.offsets[row])
        age = there.times[record], there.partitions[record]
        return bool(age > (places.times[row], places.partitions[row]))

    def _may_be_compacted(self, key: int, row: int, decides: int) -> bool:
        """Whether compaction may have removed the row's record. It removes a record only if the key has a newer record,
        or if the newer record was a tombstone that is gone, too."""
        partition, offset = int(self._places.partitions[row]), int(self._places.offsets[row])
        known = self._evidence.get(partition, NO_EVIDENCE)
        if self._has_later[key] or known.was_compacted_meanwhile:
            return True
        if decides >= 0 and self._there.partitions[decides] == partition:
            return False  # the older record would be gone, too
        return bool(self._has_undecodable[key]) or offset < known.tombstones_end

    def _explain_missing(self, key: int, decides: int) -> None:
        """A record decides its key, but there is no row."""
        partition, offset = int(self._there.partitions[decides]), int(self._there.offsets[decides])
        known = self._evidence.get(partition, NO_EVIDENCE)
        if known.began is not None and offset < known.began:
            return
        if known.began is None and offset < self._lowest_offsets.get(partition, offset + 1):
            self._unprovable(UNKNOWN_START)
        elif self._falls[key] or self._may_be_deleted_elsewhere(key, partition):
            self._unprovable(SEVERAL_PARTITIONS)
        elif offset < known.compacted_end and (self._has_later[key] or known.was_compacted_meanwhile):
            self._unprovable(COMPACTION)
        else:
            self.findings.differs(partition, offset, "the record has no row")

    def _may_be_deleted_elsewhere(self, key: int, partition: int) -> bool:
        """Whether a tombstone of the key may have been in another partition. If partitions were added since the first
        export, the key may have had another partition than today."""
        chosen = self._keys.slice(key, 1)
        counts = range(self._first_partitions, len(self._evidence) + 1)
        if all(int(partition_keys(chosen, count, 0)[0]) == partition for count in counts):
            return False
        others = [each for number, each in self._evidence.items() if number != partition]
        if any(each.tombstones_end or each.log_start_offset or each.read_from for each in others):
            return True
        # A newer record of the key, which does not decide, may have superseded the tombstone.
        has_other = bool(self._has_later[key] or self._has_undecodable[key])
        return has_other and any(each.compacted_end for each in others)
