"""Tests that the judge accepts another snapshot of producers only if it can be derived, and only if Lakelog's is as new."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from storage_engine.log.producers.producer_snapshot import ProducerEntry, encode_snapshot
from storage_engine.record.encoding import seal_batches
from storage_engine.record.header import HEADER_BYTES, LENGTH_POSITION, LOG_OVERHEAD
from tests.kafka.log_manager.comparison import Folder
from tests.kafka.log_manager.derivations import Derivations, Found
from tests.kafka.log_manager.random_directories import random_case
from tests.kafka.random_logs import Record, Sender, encode_batch

NEVER_MS = 2**62


def folder_with_producers(parent: Path) -> tuple[Folder, int, tuple[ProducerEntry, ...]]:
    """A partition, the offset of its newest snapshot, and the producers in it."""
    for number in range(20):
        case = random_case(7, number)
        case.lay(parent / str(number), 0)
        for each in case.partitions:
            place = parent / str(number) / f"d{each.directory}" / each.folder
            found = Found.at(place)
            newest = max(found.snapshots, default=-1)
            if len(found.snapshots.get(newest, ())) > 1:
                known = Derivations(found, place, each.log.rounds[0].log_start_offset, 0, NEVER_MS)
                return (
                    Folder(0, 0, newest, 0, NEVER_MS, True, (), False, known, known),
                    newest,
                    found.snapshots[newest],
                )
    raise AssertionError("no case has two producers")


def test_only_derivable_snapshots_with_as_many_producers_are_accepted(tmp_path: Path) -> None:
    folder, offset, entries = folder_with_producers(tmp_path)
    whole, forgotten = encode_snapshot(entries), encode_snapshot(())
    newer = encode_snapshot([entries[0]._replace(last_offset=entries[0].last_offset + 1), *entries[1:]])
    fewer = encode_snapshot(entries[1:])
    assert folder.same_producers(offset, theirs=whole, ours=whole)
    assert folder.same_producers(offset, theirs=forgotten, ours=whole)
    assert not folder.same_producers(offset, theirs=whole, ours=forgotten)
    assert not folder.same_producers(offset, theirs=whole, ours=newer)
    assert not folder.same_producers(offset, theirs=newer, ours=whole)
    assert not folder.same_producers(offset, theirs=fewer, ours=whole)


def emptied(sender: Sender, offset: int) -> bytes:
    """What compaction leaves of the newest batch of a producer."""
    whole = np.frombuffer(encode_batch(offset, [Record(0, b"k", b"v")], sender=sender), np.uint8)[:HEADER_BYTES].copy()
    whole[LENGTH_POSITION:LOG_OVERHEAD] = list((HEADER_BYTES - LOG_OVERHEAD).to_bytes(4, "big"))
    whole[-4:] = 0
    seal_batches(whole, np.array([HEADER_BYTES]))
    return whole.tobytes()


def test_only_an_empty_batch_of_a_producer_that_kafka_does_not_know_is_left_out(tmp_path: Path) -> None:
    folder, _, entries = folder_with_producers(tmp_path)
    newest = entries[0]
    ours = emptied(Sender(newest.producer_id, newest.producer_epoch, newest.last_sequence), newest.last_offset)
    older = emptied(Sender(newest.producer_id, newest.producer_epoch, newest.last_sequence), newest.last_offset - 1)
    assert folder.without_one_sided(b"", ours, ()) == (b"", b"")
    assert folder.without_one_sided(ours, ours, ()) == (ours, ours)
    assert folder.without_one_sided(b"", ours, entries) == (b"", ours)
    assert folder.without_one_sided(b"", older, ()) == (b"", older)
    assert folder.without_one_sided(ours, b"", ()) == (ours, b"")
