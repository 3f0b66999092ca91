"""Derives the state of each producer of a partition from the batches of the log (Kafka's ProducerStateManager).

Idempotent and transactional producers write batches with a producer id. Other batches are ignored. A transaction
begins with its first data batch, and ends with a marker. If the marker is an abort, the transaction gets an entry in
the segment's .txnindex. The segment's .snapshot contains the state at the segment's base offset. So a .txnindex and a
.snapshot can be rebuilt by replaying the .log files.

A broker validates the sequences and epochs of a live producer. This module does not validate sequences and epochs,
because every batch in a log was accepted before. Kafka deletes the state of a producer when the producer's last
timestamp is older than producer.id.expiration.ms. Only the method `expire` deletes producers; replaying keeps all
producers.

The entries have the same order as in a broker's file, which is the order of a Java HashMap<Long>. They are sorted by
bucket, and the entries of a bucket are sorted by age. The number of buckets doubles when the map is more than three
quarters full, and never decreases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from storage_engine.errors import CorruptionError
from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.log.producers.producer_snapshot import ProducerEntry
from storage_engine.record.batch import BatchTable, ByteArray
from storage_engine.record.control import ControlType, TransactionMarker, markers
from storage_engine.record.encoding import NO_SEQUENCE
from storage_engine.record.header import NO_PRODUCER_ID, TRANSACTIONAL

SEQUENCES = 2**31
"""The sequences of a producer on a partition are below this number. After the largest sequence, they start again at
0.
"""
_FIRST_BUCKETS = 16
_NEVER_SEEN = ProducerEntry(NO_PRODUCER_ID, -1, NO_SEQUENCE, -1, 0, -1, -1, -1)


class EndedTransaction(NamedTuple):
    """A transaction whose marker was replayed.

    transaction: the facts of an entry in the .txnindex, also for a committed transaction.
    has_records: whether a replayed batch of the transaction had records. Compaction may have removed all of them.
    """

    control_type: ControlType
    transaction: AbortedTransaction
    has_records: bool


class Producers:
    """The producers of one partition. Only one thread at a time may use it."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        """Start with the entries of a snapshot, in its order."""
        self._buckets = _FIRST_BUCKETS
        self._entries: dict[int, ProducerEntry] = {}
        self._open: dict[int, int] = {}
        self._with_records: set[int] = set()
        for entry in entries:
            self._put(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> tuple[ProducerEntry, ...]:
        """Return the entries of a snapshot at this point, in its order."""
        return tuple(sorted(self._entries.values(), key=lambda entry: _bucket(entry.producer_id, self._buckets)))

    def first_unstable_offset(self) -> int | None:
        """Return the first offset of the oldest open transaction, or None. No record at or after this offset counts as
        committed.
        """
        return min(self._open.values(), default=None)

    def copy(self) -> Producers:
        """Return an independent copy."""
        twin = Producers()
        twin._buckets = self._buckets
        twin._entries, twin._open = dict(self._entries), dict(self._open)
        twin._with_records = set(self._with_records)
        return twin

    def corrected(self, entries: Iterable[ProducerEntry]) -> Producers:
        """Return the producers of a snapshot that was made at this point. The snapshot may show more than the replayed
        batches: it also covers batches that were deleted later.
        """
        twin = Producers(entries)
        twin._with_records = set(self._with_records)
        return twin

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Delete producers without an open transaction whose last timestamp is at least `expiration_ms` old."""
        for producer_id, entry in list(self._entries.items()):
            if producer_id not in self._open and now_ms - entry.timestamp >= expiration_ms:
                del self._entries[producer_id]

    def replay(self, data: ByteArray, table: BatchTable, file: str, file_position: int = 0) -> list[EndedTransaction]:
        """Update the state with consecutive batches, which must follow the batches that were replayed before.

        Args:
            data: uint8, the bytes from which the table was scanned.
            file: the file to name in an error.
            file_position: the position of `data` in that file.

        Returns:
            The transactions that end in these batches, in the order of their markers. A marker without an open
            transaction ends no transaction.

        Raises:
            CorruptionError: a control record is damaged, or a producer with an open transaction has a batch outside of
                this transaction. No broker accepts such a batch.
        """
        theirs = table.select(table.producer_ids != NO_PRODUCER_ID)
        if not len(theirs):
            return []
        found_markers = markers(data, theirs, file, file_position)
        ended: list[EndedTransaction] = []
        columns = (
            theirs.positions, theirs.producer_ids, theirs.producer_epochs, theirs.base_sequences, theirs.base_offsets,
            theirs.last_offsets, theirs.max_timestamps, theirs.attributes & TRANSACTIONAL, theirs.is_control,
            theirs.records_counts,
        )  # fmt: skip
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for position, producer_id, epoch, sequence, first, last, timestamp, transactional, control, records in rows:
            if control:
                if (found := found_markers.get(position)) is not None:
                    ended.extend(self.end(producer_id, epoch, last, *found))
                continue
            begun = self.get(producer_id).txn_first_offset
            if begun >= 0 and not transactional:
                raise CorruptionError(
                    file, file_position + position,
                    f"a batch of the transaction that producer {producer_id} began at offset {begun}",
                    "a batch outside of the transaction",
                )  # fmt: skip
            self.append(
                producer_id, epoch, sequence, first, last, timestamp,
                transactional=bool(transactional), has_records=records > 0,
            )  # fmt: skip
        return ended

    def get(self, producer_id: int) -> ProducerEntry:
        """Return the state of a producer; fields of -1 if it is unknown."""
        return self._entries.get(producer_id, _NEVER_SEEN)

    def append(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        first: int,
        last: int,
        timestamp: int,
        *,
        transactional: bool,
        has_records: bool = True,
    ) -> None:
        """Update the state with a data batch.

        Args:
            sequence: the sequence of its first record.
            first, last: its first and last offset.
            timestamp: its largest timestamp.
        """
        before = self.get(producer_id)
        txn_first_offset = first if before.txn_first_offset < 0 and transactional else before.txn_first_offset
        if has_records:
            self._with_records.add(producer_id)
        last_sequence = NO_SEQUENCE if sequence < 0 else (sequence + last - first) % SEQUENCES
        self._put(
            ProducerEntry(
                producer_id, epoch, last_sequence, last, last - first, timestamp, before.coordinator_epoch,
                txn_first_offset,
            )
        )  # fmt: skip

    def end(
        self, producer_id: int, epoch: int, offset: int, marker: TransactionMarker, timestamp: int
    ) -> Iterable[EndedTransaction]:
        """Update the state with a marker at this offset; returns the transaction that it ends, if one is open."""
        before = self._entries.get(producer_id, _NEVER_SEEN)
        if before.producer_epoch != epoch:
            before = _NEVER_SEEN._replace(txn_first_offset=before.txn_first_offset)
        self._put(
            before._replace(
                producer_id=producer_id,
                producer_epoch=epoch,
                timestamp=timestamp,
                coordinator_epoch=marker.coordinator_epoch,
                txn_first_offset=-1,
            )
        )
        has_records = producer_id in self._with_records
        self._with_records.discard(producer_id)
        if before.txn_first_offset < 0:
            return ()
        stable = min(self._open.values(), default=offset + 1)
        transaction = AbortedTransaction(producer_id, before.txn_first_offset, offset, stable)
        return (EndedTransaction(marker.control_type, transaction, has_records),)

    def _put(self, entry: ProducerEntry) -> None:
        producer_id = entry.producer_id
        self._entries[producer_id] = entry
        if entry.txn_first_offset >= 0:
            self._open[producer_id] = entry.txn_first_offset
        else:
            self._open.pop(producer_id, None)
        while len(self._entries) > self._buckets * 3 // 4:
            self._buckets *= 2


def active_producers(entries: Iterable[ProducerEntry], now_ms: int, expiration_ms: int) -> tuple[ProducerEntry, ...]:
    """Return the producers that a broker still knows if it starts now, in the order of its next snapshot.

    A broker does not load a producer whose last timestamp is at least `expiration_ms` old, unless the producer has an
    open transaction.
    """
    return Producers(
        each for each in entries if each.txn_first_offset >= 0 or now_ms - each.timestamp < expiration_ms
    ).entries()


def aborted_among(ended: Sequence[EndedTransaction]) -> tuple[AbortedTransaction, ...]:
    """Return those ended transactions that were aborted, for the .txnindex of the segment with their markers."""
    return tuple(each.transaction for each in ended if each.control_type is ControlType.ABORT)


def _bucket(producer_id: int, buckets: int) -> int:
    """Return the bucket of this java.lang.Long in a java.util.HashMap."""
    unsigned = producer_id & (2**64 - 1)
    folded = (unsigned ^ (unsigned >> 32)) & (2**32 - 1)
    return (folded ^ (folded >> 16)) & (buckets - 1)
