"""Reads a small active segment that another process wrote, so that a publisher can continue the segment
(topic.append.new_files_publisher).

On a storage whose files cannot grow, a publisher continues a segment by writing it again: the old bytes and the new
batches, under a new name. The old file is deleted later. So no byte is copied unchecked: every byte of the old file
must agree with its CRC or with the topic's state.

    size, offsets, timestamps    those of the whole file are those that the state records
    base offsets                 each batch begins where the batch before it ends
    leader epochs                those that the state records for these offsets
    magic                        2, so the segment has no batch of an old format
    everything else              each batch matches its CRC

If a check fails, or if the file cannot be read, the segment is not continued. The append then begins a new segment, as
it would after a large segment. Reading changes nothing, so a crash leaves nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from storage_engine.config import TopicConfig
from storage_engine.errors import LogError
from storage_engine.log.filenames import data_key
from storage_engine.log.growing_segment import UNKNOWN_LATENESS, GrowingSegment
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.segment_reader import SegmentFile, read_chunks
from storage_engine.record.batch import UNKNOWN_SMALLEST, BatchTable
from storage_engine.record.crc import check_crcs
from storage_engine.record.header import MAGIC
from storage_engine.storage import Storage
from storage_engine.topic.append.append_plan import OpenSegment, jitter_of
from storage_engine.topic.chain.topic_state import TopicState


@dataclass(frozen=True)
class KeptSegment:
    """A small active segment, with the bytes of its .log."""

    segment: OpenSegment
    log: bytes


def read_active(storage: Storage, state: TopicState, partition: int, config: TopicConfig) -> KeptSegment | None:
    """Read the active segment of a partition, whoever wrote it. None if the segment must not be continued.

    Args:
        state: a state in which the partition has an active segment of at most a few megabytes.
    """
    part = state.partitions[partition]
    active = part.active_segment
    assert active is not None, "the caller has chosen the partition for its active segment"
    stem = data_key(state.topic_id, partition, active.name, "")
    file = SegmentFile(stem, active.base_offset, active.size, active.end_offset)
    # With the same base offset, the jitter of a segment is the same in each process that continues the segment.
    jitter_ms = jitter_of(config, random.Random(f"{state.topic_id}/{partition}/{active.base_offset}"))
    growing = GrowingSegment(active.base_offset, active.modified_ms, config.index_interval_bytes, jitter_ms)
    parts = []
    try:
        for chunk in read_chunks(storage, file):
            check_crcs(chunk.data, chunk.table, file.key, chunk.position)
            if not _is_as_recorded(chunk.table, part, growing.end_offset):
                return None
            growing.append_all(chunk.table)
            parts.append(chunk.data.tobytes())
    except LogError:
        return None
    return KeptSegment(OpenSegment(active.name, growing), b"".join(parts)) if _agrees(growing, active) else None


def _is_as_recorded(table: BatchTable, part: PartitionState, first_offset: int) -> bool:
    """Whether the parts of the headers that no CRC covers are those that the state implies.

    Args:
        first_offset: the offset at which the first batch must begin.
    """
    starts = np.concatenate(([first_offset], table.last_offsets[:-1] + 1))
    begun = np.array([entry.start_offset for entry in part.leader_epochs], np.int64)
    epochs = np.array([0, *(entry.epoch for entry in part.leader_epochs)], np.int64)
    expected = epochs[np.searchsorted(begun, table.base_offsets, side="right")]
    return bool(
        (table.magics == MAGIC).all()
        and np.array_equal(table.base_offsets, starts)
        and np.array_equal(table.leader_epochs, expected)
    )


def _agrees(growing: GrowingSegment, active: Segment) -> bool:
    """Whether the bytes have the facts that the state records. The headers do not contain the smallest timestamp and the
    largest lateness, so these two come from the state."""
    growing.smallest_timestamp = UNKNOWN_SMALLEST if active.smallest_timestamp is None else active.smallest_timestamp
    growing.largest_lateness_ms = UNKNOWN_LATENESS if active.largest_lateness_ms is None else active.largest_lateness_ms
    if growing.first_timestamp is None or growing.first_timestamp < 0:
        return False  # without a timestamp, the age of the segment is counted from its creation, which is not recorded
    return growing.segment(active.name, active.modified_ms, active.aborted, active.horizon_ms) == active
