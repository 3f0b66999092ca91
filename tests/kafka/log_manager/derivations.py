"""Derives in all justified ways what a log manager can know about the producers of a log.

A log manager derives the producers at an offset from a snapshot at or below this offset, and from the batches after the
snapshot. Without a snapshot, it starts at the log start without any producer. To recover a segment that begins at or
below the log start, Kafka starts at this segment without any producer. Kafka and Lakelog do not always start with
the same snapshot: to recover a segment, Kafka deletes the later snapshots, and at each load those at or below the log
start. If batches of a producer were compacted, deleted or lost, the results then differ. Each result is nevertheless one
of the derivations of this module. Any other value of a .snapshot, a .txnindex or a last stable offset is an error.

A log manager drops an expired producer whenever it loads a snapshot. Kafka loads one for each segment that it recovers,
and one behind the last of these segments. So a derivation drops the expired producers at its start, and perhaps at each
segment up to one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage_engine.config import LONG_MAX
from storage_engine.errors import CorruptionError
from storage_engine.kafka_dir.producers_at import replay_around_damage
from storage_engine.log.checkpoint import LEADER_EPOCHS, decode_leader_epochs
from storage_engine.log.filenames import INDEX, LOG, SNAPSHOT, SWAP, TIME_INDEX, TRANSACTION_INDEX
from storage_engine.log.indexes.transaction_index import AbortedTransaction, decode_transaction_index
from storage_engine.log.producers.producer_snapshot import ProducerEntry, decode_snapshot
from storage_engine.log.producers.producer_state import Producers, aborted_among
from storage_engine.log.segment_reader import Chunk
from storage_engine.record.batch import scan_batches
from storage_engine.record.header import MAGIC, TRANSACTIONAL

Snapshots = Mapping[int, tuple[ProducerEntry, ...]]
Beginning = tuple[int, tuple[ProducerEntry, ...]]
"""An offset at which a derivation begins, and the producers there."""


def snapshots_in(folder: Path) -> Snapshots:
    """The producers in each intact .snapshot of a partition, by the offset in its name."""
    found = {}
    for file in folder.glob(f"*{SNAPSHOT}"):
        try:
            found[int(file.stem)] = decode_snapshot(file.read_bytes(), file.name)
        except CorruptionError:
            continue
    return found


def aborted_in(folder: Path) -> frozenset[AbortedTransaction]:
    """The transactions in all intact .txnindex files of a partition."""
    found: set[AbortedTransaction] = set()
    for file in folder.glob(f"*{TRANSACTION_INDEX}"):
        try:
            found.update(decode_transaction_index(file.read_bytes(), file.name))
        except CorruptionError:
            continue
    return frozenset(found)


def _swapped_in(folder: Path) -> range:
    found = {int(file.name.partition(".")[0]): file for file in folder.glob(f"*{LOG}{SWAP}")}
    if not found:
        return range(0)
    ends = [base + 1 for base in found]
    for file in found.values():
        table = scan_batches(np.frombuffer(file.read_bytes(), np.uint8), file.name)
        ends += [int(each) + 1 for each in table.last_offsets[-1:]]
    return range(min(found), max(ends))


@dataclass(frozen=True)
class Found:
    """What a life finds in a partition's folder before the log is loaded.

    snapshots, aborted: the intact ones.
    has_epoch: whether the log has a leader epoch.
    swapped: the offsets of the segments that an unfinished compaction has written: first <= offset < end.
    trusted: the base offsets of the segments that Kafka does not recover, although a .timeindex is missing or an .index
        has no entry.
    """

    snapshots: Snapshots
    aborted: frozenset[AbortedTransaction]
    has_epoch: bool
    swapped: range
    trusted: frozenset[int]

    @classmethod
    def at(cls, folder: Path) -> Found:
        epochs = folder / LEADER_EPOCHS
        has_epoch = epochs.exists() and len(decode_leader_epochs(epochs.read_bytes(), LEADER_EPOCHS)) > 0
        trusted = frozenset(
            int(file.stem)
            for file in folder.glob(f"*{INDEX}")
            if not (file.stat().st_size and file.with_suffix(TIME_INDEX).exists())
        )
        return cls(snapshots_in(folder), aborted_in(folder), has_epoch, _swapped_in(folder), trusted)


class Derivations:
    """What can be known about the producers of one log in one life.

    newest_bases: the base offsets of the two newest segments when the log was loaded.
    end: of the batches that were read.

    Args:
        found: before the log was loaded.
        folder: after the log was loaded, so that damaged batches are cut out.
        log_start_offset: after the log was loaded.
        now_ms: when the log was loaded.
        expiration_ms: producer.id.expiration.ms.
    """

    def __init__(self, found: Found, folder: Path, log_start_offset: int, now_ms: int, expiration_ms: int) -> None:
        self.found = found
        self._written = tuple(snapshots_in(folder))
        self._folder = folder
        self._segments: dict[int, npt.NDArray[np.uint8]] = {}
        self.end = 0
        self.read_batches()
        self.newest_bases = tuple(self._segments)[-2:]
        self._start = log_start_offset
        self._now_ms = now_ms
        self._expiration_ms = expiration_ms

    def read_batches(self) -> None:
        """Read the batches that were appended since the last call."""
        for file in sorted(self._folder.glob(f"*{LOG}")):
            data = np.frombuffer(file.read_bytes(), np.uint8)
            table = scan_batches(data, file.name)
            later = table.positions[table.base_offsets >= self.end]
            known = self._segments.setdefault(int(file.stem), data[:0])
            if len(later):
                self._segments[int(file.stem)] = np.concatenate([known, data[later[0] :]])
                self.end = int(table.last_offsets[-1]) + 1

    def producers(self, offset: int) -> Iterator[frozenset[ProducerEntry]]:
        """The producers at an offset in each derivation."""
        yield frozenset()
        for begin in self._beginnings(offset):
            for last_drop in self._last_drops(begin):
                yield frozenset(self._derived(begin, offset, last_drop)[0].entries())

    def empty_batches(self) -> frozenset[tuple[int, int]]:
        """The batches of transactions that a cleaner has left without records: producer id and last offset."""
        found: set[tuple[int, int]] = set()
        for base, data in self._segments.items():
            table = scan_batches(data, str(base))
            is_transactional = (table.attributes & TRANSACTIONAL) != 0
            table = table.select((table.records_counts == 0) & ~table.is_control & is_transactional)
            found.update(zip(table.producer_ids.tolist(), table.last_offsets.tolist(), strict=True))
        return frozenset(found)

    def aborted_now(self) -> frozenset[AbortedTransaction]:
        """The transactions in the .txnindex files."""
        return aborted_in(self._folder)

    def aborted(self, end: int) -> frozenset[AbortedTransaction]:
        """The aborted transactions in all derivations."""
        found = set(self.found.aborted)
        for begin in self._beginnings(end):
            for last_drop in self._last_drops(begin):
                found.update(self._derived(begin, end, last_drop)[1])
        return frozenset(found)

    def stable_offsets(self, log_start_offset: int, high_watermark: int) -> frozenset[int]:
        """The last stable offset in each derivation. A transaction in a snapshot above the high watermark is open. After a
        recovery, Kafka loads the snapshot that the recovery has written, too: it does not have a transaction whose marker is
        between the high watermark and this snapshot.

        If there is no batch at this offset, Kafka gives the base offset of the next batch (LogSegment.read). If a log has
        no snapshot after an orderly stop, Kafka reads no batches, and knows no transaction.
        """
        found = {high_watermark}
        ends = (high_watermark, *(offset for offset in self._written if offset > high_watermark))
        derived = ((begin, max(end, begin[0])) for begin in self._beginnings() for end in ends)
        for begin, at in derived:
            for last_drop in self._last_drops(begin):
                producers = self._derived(begin, at, last_drop)[0]
                begun = (each.txn_first_offset for each in producers.entries() if each.txn_first_offset >= 0)
                stable = max(log_start_offset, min(begun, default=high_watermark))
                found |= {min(high_watermark, each) for each in (stable, *self._next_batch(stable))}
        return frozenset(found)

    def _next_batch(self, offset: int) -> Sequence[int]:
        """What may be the base offset of the first batch that ends at or after an offset. The header of a batch of
        compressed messages of magic 0 or 1 has only the last offset."""
        for base, data in self._segments.items():
            table = scan_batches(data, str(base))
            later = np.flatnonzero(table.last_offsets >= offset)
            if len(later):
                last = int(table.last_offsets[later[0]])
                is_wrapper = table.magics[later[0]] < MAGIC and table.codecs[later[0]]
                return range(max(base, offset), last + 1) if is_wrapper else (int(table.base_offsets[later[0]]),)
        return ()

    def _beginnings(self, most: int = LONG_MAX) -> Iterator[Beginning]:
        """Where a derivation up to an offset may begin."""
        yield self._start, ()
        yield from ((base, ()) for base in self._segments if base <= self._start)
        yield from (each for each in self.found.snapshots.items() if each[0] <= most)

    def _last_drops(self, begin: Beginning) -> list[int]:
        """The base offsets of the segments up to which a derivation may drop expired producers; -1: only at its start."""
        return [-1, *(base for base in self._segments if base > begin[0])]

    def _derived(self, begin: Beginning, end: int, last_drop: int) -> tuple[Producers, tuple[AbortedTransaction, ...]]:
        """The producers at `end`, and the transactions aborted before it."""
        start, entries = begin
        producers = Producers(entries)
        producers.expire(self._now_ms, self._expiration_ms)
        aborted: tuple[AbortedTransaction, ...] = ()
        for base, data in self._segments.items():
            if base >= end:
                break
            if start < base <= last_drop:
                producers.expire(self._now_ms, self._expiration_ms)
            table = scan_batches(data, str(base))
            table = table.select((table.last_offsets >= start) & (table.base_offsets < end))
            for part in replay_around_damage(producers, Chunk(data, 0, table), str(base)):
                producers = part.producers
                aborted += aborted_among(part.ended)
        return producers, aborted
