"""Decides which transactional batches a compaction may delete. The batches are read once, in order (Kafka's
CleanedTransactionMetadata).

    data of an aborted transaction   deleted at the first compaction, even if it has the newest record of a key
    marker                           gets a delete horizon as soon as all earlier batches of its transaction are gone,
                                     including the empty ones; deleted after this horizon (KIP-534)
    entry of the .txnindex           kept until its marker may be deleted
    other control records            kept

As in Kafka, an aborted batch belongs to the next ABORT marker of its producer. A batch of a transaction that is not
aborted belongs to its producer's next COMMIT marker. A transaction ends at its marker. Data batches are examined many
at a time, as the columns of a table of headers. Markers are examined one by one. A CleanedTransactions reads one
range of a log, and only one thread may use it.
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
class UnfinishedTransactions:
    """The transactions that a part of a log leaves open. Picklable.

    producers: for each kind of marker, the producers with batches after their last marker of this kind.
    ended: for each kind of marker, the producers with a marker of this kind in the part.
    """

    producers: Mapping[ControlType, frozenset[int]] = field(default_factory=dict)
    ended: Mapping[ControlType, frozenset[int]] = field(default_factory=dict)

    def then(self, behind: UnfinishedTransactions) -> UnfinishedTransactions:
        """The transactions that are still open after this part and the next part."""
        nobody: frozenset[int] = frozenset()
        return UnfinishedTransactions(
            {
                kind: self.producers.get(kind, nobody) - behind.ended.get(kind, nobody)
                | behind.producers.get(kind, nobody)
                for kind in ControlType
            },
            {kind: self.ended.get(kind, nobody) | behind.ended.get(kind, nobody) for kind in ControlType},
        )


class CleanedTransactions:
    """The transactions that were found, from the start of the range to the last batch that was examined."""

    def __init__(self, aborted: Sequence[AbortedTransaction], carried: UnfinishedTransactions | None = None) -> None:
        """
        Args:
            aborted: all aborted transactions that can have batches in the range, including transactions that end after
                the range.
            carried: the transactions that are open where this range begins.
        """
        self._ranges = TransactionRanges(aborted)
        self._entries = {(each.producer_id, each.last_offset): each for each in aborted}
        before = {} if carried is None else carried.producers
        self._unended: dict[ControlType, set[int]] = {kind: set(before.get(kind, ())) for kind in ControlType}
        self._ended: dict[ControlType, set[int]] = {kind: set() for kind in ControlType}
        self._retained: list[AbortedTransaction] = []

    @property
    def unended(self) -> UnfinishedTransactions:
        """The transactions that the batches read so far leave open."""
        return UnfinishedTransactions(
            {kind: frozenset(producers) for kind, producers in self._unended.items()},
            {kind: frozenset(producers) for kind, producers in self._ended.items()},
        )

    def take_retained(self) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that ended since the last call and stay in the .txnindex, in order."""
        taken = tuple(self._retained)
        self._retained.clear()
        return taken

    def judge(
        self, data: ByteArray, table: BatchTable, file: str, file_position: int
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Decide which of the next batches may be deleted.

        Args:
            data: uint8, the bytes from which the table was scanned. The CRCs of control batches are checked already.
            file: the name for error messages.
            file_position: position of data in the file.

        Returns:
            Two bool arrays of shape (batches,). The first is True for data of aborted transactions, the second for
            control batches that may be deleted.

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
    """The rows of the chosen batches of each producer, in ascending order."""
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return {}
    rows = rows[np.argsort(table.producer_ids[rows], kind="stable")]
    producers, firsts = np.unique(table.producer_ids[rows], return_index=True)
    return dict(zip(producers.tolist(), np.split(rows, firsts[1:]), strict=True))
