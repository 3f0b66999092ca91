"""Finds the producers of a log at an offset while the log is loaded. The sources are the newest .snapshot at or
before the offset, and the batches after this snapshot.

A batch counts as damaged if its sequence number or its epoch is impossible for its producer at this place. The
damaged batch is skipped, and reported to the code that recovers the segment. Only one thread may load a log, and the
log's directory must be locked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from storage_engine.errors import CorruptionError
from storage_engine.kafka_dir.log_files import LogFiles
from storage_engine.log.filenames import LOG, SNAPSHOT, offset_name
from storage_engine.log.intact_batches import Damage, DamagedLog
from storage_engine.log.producers.producer_snapshot import decode_snapshot, encode_snapshot
from storage_engine.log.producers.producer_state import EndedTransaction, Producers, active_producers
from storage_engine.log.segment_reader import Chunk
from storage_engine.record.batch import BatchTable


class SegmentReplay(NamedTuple):
    """The producers after some batches, and the transactions that end in these batches."""

    producers: Producers
    ended: Sequence[EndedTransaction]


class KnownProducers:
    """Finds the producers at any offset of a log that is being loaded."""

    def __init__(self, files: LogFiles, now_ms: int, expiration_ms: int) -> None:
        self._files = files
        self._now_ms = now_ms
        self._expiration_ms = expiration_ms

    def at(self, offset: int) -> Producers:
        """The producers at an offset: from the newest snapshot at or below it, and from the batches after the snapshot.

        Producers in the snapshot that have expired are dropped, unless they have a batch after the snapshot.
        """
        start, producers = -1, Producers()
        for snapshot in reversed(self._files.snapshot_offsets()):
            if snapshot <= offset and (known := self.snapshot(snapshot)) is not None:
                active = active_producers(known.entries(), self._now_ms, self._expiration_ms)
                start, producers = snapshot, Producers(active)
                break
        for number, base in enumerate(self._files.bases):
            if base < offset and self._files.following(number) > start and start != offset:
                producers = self.replay(number, producers, start, offset).producers
        return producers

    def replay(self, number: int, producers: Producers, start: int, end: int) -> SegmentReplay:
        """Replay the batches of a segment that begin at start <= offset < end. Damaged batches are skipped."""
        base = self._files.bases[number]
        ended: list[EndedTransaction] = []
        for chunk in DamagedLog(
            self._files.storage, self._files.key(base), base, self._files.size(base), self._files.following(number)
        ).chunks():
            table = chunk.table.select((chunk.table.base_offsets >= start) & (chunk.table.base_offsets < end))
            for part in replay_around_damage(producers, replace(chunk, table=table), self._files.key(base)):
                producers = part.producers
                ended += part.ended
        return SegmentReplay(producers, ended)

    def snapshot(self, offset: int) -> Producers | None:
        """The producers in a .snapshot. A damaged .snapshot is removed."""
        if not self._files.has(offset, SNAPSHOT):
            return None
        key = self._files.key(offset, SNAPSHOT)
        try:
            return Producers(decode_snapshot(self._files.storage.read(key), key))
        except CorruptionError:
            self._files.remove(offset_name(offset) + SNAPSHOT)
            return None

    def remove_stray_snapshots(self, end_offset: int) -> None:
        """Remove the snapshots that are not at a segment's base offset. If the log was closed cleanly, the newest
        snapshot may also be at the log's end. If an empty segment without a snapshot was added after that, the segment
        gets a snapshot first.
        """
        snapshots = self._files.snapshot_offsets()
        newest = max((each for each in snapshots if each <= end_offset), default=-1)
        bases, last = set(self._files.bases), self._files.bases[-1]
        if 0 <= newest < last and self._files.has(last, LOG):
            self._files.write(offset_name(last) + SNAPSHOT, encode_snapshot(self.at(last).entries()))
            newest = last
        for snapshot in snapshots:
            if snapshot != newest and (snapshot not in bases or snapshot > end_offset):
                self._files.remove(offset_name(snapshot) + SNAPSHOT)


class Replayed(NamedTuple):
    """Neighbouring batches, the producers after them, and the damage in the batch that follows them."""

    table: BatchTable
    producers: Producers
    ended: Sequence[EndedTransaction]
    damages: Sequence[Damage]


def replay_around_damage(producers: Producers, chunk: Chunk, key: str) -> Iterator[Replayed]:
    """Replay a chunk without the batches that no producer can have written at their place."""
    table = chunk.table
    while len(table):
        after = producers.copy()
        try:
            yield Replayed(table, after, after.replay(chunk.data, table, key, chunk.position), ())
            return
        except CorruptionError as error:
            row = int(np.searchsorted(table.positions, error.position - chunk.position))
            before = table.select(slice(0, row))
            producers = producers.copy()
            ended = producers.replay(chunk.data, before, key, chunk.position)
            damage = Damage(error.position, int(table.sizes[row]), error.problem)
            yield Replayed(before, producers, ended, (damage,))
            table = table.select(slice(row + 1, None))
