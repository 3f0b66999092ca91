"""A partition's leader epochs: from which offset on each held (Kafka's LeaderEpochFileCache). Pure.

Entries rise in both numbers. The file leader-epoch-checkpoint holds them (storage_engine.log.checkpoint).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from storage_engine.log.partition_state import LeaderEpoch
from storage_engine.record.batch import BatchTable

Epochs = tuple[LeaderEpoch, ...]


def begin_epoch(epochs: Sequence[LeaderEpoch], epoch: int, start_offset: int) -> Epochs:
    """The entries once this epoch has begun: those with an epoch or start at or above its own make way for it
    (LeaderEpochFileCache.assign). One that is the newest already goes on."""
    if epochs and epochs[-1].epoch == epoch:
        return tuple(epochs)
    kept = (each for each in epochs if each.epoch < epoch and each.start_offset < start_offset)
    return (*kept, LeaderEpoch(epoch, start_offset))


def with_batches(epochs: Sequence[LeaderEpoch], table: BatchTable) -> Epochs:
    """The entries once these batches stand behind those that brought them; batches of an older epoch, or none, change
    nothing."""
    rows = np.flatnonzero(np.diff(table.leader_epochs, prepend=-1))
    for epoch, start in zip(table.leader_epochs[rows].tolist(), table.base_offsets[rows].tolist(), strict=True):
        if epoch > (epochs[-1].epoch if epochs else -1):
            epochs = begin_epoch(epochs, epoch, start)
    return tuple(epochs)


def cut_end(epochs: Sequence[LeaderEpoch], end_offset: int) -> Epochs:
    """The entries when the log turns out to end here. The newest epoch goes on, from here if it began later.

    Kafka drops entries at the end, too; there the next leader brings an epoch from the cluster.
    """
    kept = tuple(each for each in epochs if each.start_offset <= end_offset)
    return kept if len(kept) == len(epochs) else begin_epoch(kept, epochs[-1].epoch, end_offset)


def cut_start(epochs: Sequence[LeaderEpoch], start_offset: int) -> Epochs:
    """The entries that are left when the log starts here (LeaderEpochFileCache.truncateFromStartAsyncFlush): of those
    that began at or below the offset the last one stays, and begins there."""
    later = tuple(each for each in epochs if each.start_offset > start_offset)
    begun = [each for each in epochs if each.start_offset <= start_offset]
    return (LeaderEpoch(begun[-1].epoch, start_offset), *later) if begun else later
