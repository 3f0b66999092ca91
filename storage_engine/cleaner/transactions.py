"""Decides which batches of a log's transactions may be deleted, as a compaction reads them in order (Kafka's
CleanedTransactionMetadata).

    data of an aborted transaction   goes at once, whatever its keys
    marker                           may go once no batch of its transaction is met before it, not even an emptied one;
                                     then it is given a delete horizon, and goes when that has passed (KIP-534)
    entry of the .txnindex           stays as long as its marker may not go
    control record of another kind   stays

Kafka forgets what it met at a producer's marker, so a batch belongs to the next marker of its kind: an aborted one to
the next ABORT, any other transactional one to the next COMMIT. Whole columns are judged; only markers are looked at one
by one. One object goes once over the batches of a range, in order, in one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.log.segment_reader import TransactionRanges
from storage_engine.record.batch import BatchTable, ByteArray
from storage_engine.record.control import ControlType, markers
from storage_engine.record.header import TRANSACTIONAL

_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Unended:
    """What a part of a log leaves open: producers with batches behind their last marker of a kind, and those who had a
    marker in it. Can be pickled.
    """

    producers: Mapping[ControlType, frozenset[int]] = field(default_factory=dict)
    ended: Mapping[ControlType, frozenset[int]] = field(default_factory=dict)

    def then(self, behind: Unended) -> Unended:
        """What this part and the one behind it leave open together."""
        nobody: frozenset[int] = frozenset()
        return Unended(
            {
                kind: self.producers.get(kind, nobody) - behind.ended.get(kind, nobody)
                | behind.producers.get(kind, nobody)
                for kind in ControlType
            },
            {kind: self.ended.get(kind, nobody) | behind.ended.get(kind, nobody) for kind in ControlType},
        )


class CleanedTransactions:
    """What was met of the transactions, from the start of the range on."""

    def __init__(self, aborted: Sequence[AbortedTransaction], carried: Unended | None = None) -> None:
        """
        Args:
            aborted: all whose batches can lie in the range, those that end behind it too. carried: what the part of the log
                in front of it leaves open.
        """
        self._ranges = TransactionRanges(aborted)
        self._entries = {(each.producer_id, each.last_offset): each for each in aborted}
        before = {} if carried is None else carried.producers
        self._unended: dict[ControlType, set[int]] = {kind: set(before.get(kind, ())) for kind in ControlType}
        self._ended: dict[ControlType, set[int]] = {kind: set() for kind in ControlType}
        self._retained: list[AbortedTransaction] = []

    @property
    def unended(self) -> Unended:
        """What the batches so far leave open."""
        return Unended(
            {kind: frozenset(producers) for kind, producers in self._unended.items()},
            {kind: frozenset(producers) for kind, producers in self._ended.items()},
        )

    def take_retained(self) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that ended since this was last asked and stay in the .txnindex, in order."""
        taken = tuple(self._retained)
        self._retained.clear()
        return taken

    def judge(
        self, data: ByteArray, table: BatchTable, file: str, file_position: int
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Take in the next batches.

        Args:
            data: uint8, the bytes that table was scanned from; the CRCs of control batches are checked already. file: what
                to name in an error. file_position: where in it data begins.

        Returns:
            Two of shape (batches,): data of aborted transactions; control batches that may go.

        Raises:
            CorruptionError: a control record is damaged.
        """
        control = table.is_control
        may_go = np.zeros(len(table), np.bool_)
        transactional = ((table.attributes & TRANSACTIONAL) != 0) & ~control
        aborted = self._ranges.holding(table) & transactional
        met = {
            ControlType.ABORT: _rows_by_producer(table, aborted),
            ControlType.COMMIT: _rows_by_producer(table, transactional & ~aborted),
        }
        ends: dict[ControlType, dict[int, int]] = {kind: {} for kind in ControlType}
        if control.any():
            may_go |= control & (table.records_counts == 0)
            found = markers(data, table, file, file_position)
            for row in np.flatnonzero(control & ~may_go).tolist():
                if (marker := found.get(int(table.positions[row]))) is None:
                    continue
                kind, producer_id = marker[0].control_type, int(table.producer_ids[row])
                rows = met[kind].get(producer_id, ())
                before = ends[kind].get(producer_id)
                is_met = bisect_left(rows, row) > bisect_left(rows, before or 0)
                if before is None:
                    is_met |= producer_id in self._unended[kind]
                ends[kind][producer_id] = row
                may_go[row] = not is_met
                entry = self._entries.get((producer_id, int(table.last_offsets[row])))
                if kind is ControlType.ABORT and is_met and entry is not None:
                    self._retained.append(entry)
        for kind, ended in ends.items():
            self._unended[kind] -= ended.keys()
            self._ended[kind] |= ended.keys()
            self._unended[kind] |= {
                producer for producer, rows in met[kind].items() if rows[-1] > ended.get(producer, -1)
            }
        return aborted, may_go


def _rows_by_producer(table: BatchTable, chosen: npt.NDArray[np.bool_]) -> dict[int, _Rows]:
    """The rows of the chosen batches of each producer, rising."""
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return {}
    rows = rows[np.argsort(table.producer_ids[rows], kind="stable")]
    producers, firsts = np.unique(table.producer_ids[rows], return_index=True)
    return dict(zip(producers.tolist(), np.split(rows, firsts[1:]), strict=True))
