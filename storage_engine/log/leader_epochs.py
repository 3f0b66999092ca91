"""Updates the leader epochs of a partition: the start offset of each epoch (Kafka's LeaderEpochFileCache).

Epochs and start offsets increase from entry to entry. The entries are stored in the topic's state, and in the file
leader-epoch-checkpoint (storage_engine.log.checkpoint). All functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from storage_engine.log.partition_state import LeaderEpoch
from storage_engine.record.batch import BatchTable

Epochs = tuple[LeaderEpoch, ...]


def begin_epoch(epochs: Sequence[LeaderEpoch], epoch: int, start_offset: int) -> Epochs:
    """Return the entries after this epoch begins (LeaderEpochFileCache.assign).

    An entry is removed if its epoch is the same or higher, or if its start offset is the same or higher. If the epoch
    is the newest one already, nothing changes.
    """
    if epochs and epochs[-1].epoch == epoch:
        return tuple(epochs)
    kept = (each for each in epochs if each.epoch < epoch and each.start_offset < start_offset)
    return (*kept, LeaderEpoch(epoch, start_offset))


def with_batches(epochs: Sequence[LeaderEpoch], table: BatchTable) -> Epochs:
    """Return the entries after these batches are appended. Batches without an epoch, or with an older epoch, change
    nothing.
    """
    rows = np.flatnonzero(np.diff(table.leader_epochs, prepend=-1))
    for epoch, start in zip(table.leader_epochs[rows].tolist(), table.base_offsets[rows].tolist(), strict=True):
        if epoch > (epochs[-1].epoch if epochs else -1):
            epochs = begin_epoch(epochs, epoch, start)
    return tuple(epochs)


def cut_end(epochs: Sequence[LeaderEpoch], end_offset: int) -> Epochs:
    """Return the entries of a log that is truncated to this end offset.

    If the newest epoch began after the offset, it now begins at the offset. Kafka removes that entry instead, because a
    new leader gets a new epoch from the cluster.
    """
    kept = tuple(each for each in epochs if each.start_offset <= end_offset)
    return kept if len(kept) == len(epochs) else begin_epoch(kept, epochs[-1].epoch, end_offset)


def cut_start(epochs: Sequence[LeaderEpoch], start_offset: int) -> Epochs:
    """Return the entries of a log that starts at this offset (LeaderEpochFileCache.truncateFromStartAsyncFlush).

    Of the entries that began at or below the offset, only the last entry is kept, and this entry now begins at the
    offset.
    """
    later = tuple(each for each in epochs if each.start_offset > start_offset)
    begun = [each for each in epochs if each.start_offset <= start_offset]
    return (LeaderEpoch(begun[-1].epoch, start_offset), *later) if begun else later
