"""A partition's leader epochs: from which offset on each held (Kafka's LeaderEpochFileCache). Pure.

Entries rise in both numbers. The file leader-epoch-checkpoint holds them (storage_engine.checkpoint).
"""

from __future__ import annotations

from collections.abc import Sequence

from storage_engine.log.partition_state import LeaderEpoch

Epochs = tuple[LeaderEpoch, ...]


def begin_epoch(epochs: Sequence[LeaderEpoch], epoch: int, start_offset: int) -> Epochs:
    """The entries once this epoch has begun: those with an epoch or start at or above its own make way for it."""
    kept = (each for each in epochs if each.epoch < epoch and each.start_offset < start_offset)
    return (*kept, LeaderEpoch(epoch, start_offset))


def cut_end(epochs: Sequence[LeaderEpoch], end_offset: int) -> Epochs:
    """The entries when the log turns out to end here. The newest epoch goes on, from here if it began later.

    Kafka drops entries at the end, too; there the next leader brings an epoch from the cluster.
    """
    kept = tuple(each for each in epochs if each.start_offset <= end_offset)
    return kept if len(kept) == len(epochs) else begin_epoch(kept, epochs[-1].epoch, end_offset)


def cut_start(epochs: Sequence[LeaderEpoch], start_offset: int) -> Epochs:
    """The entries that are left when the log starts here; the first of them starts no earlier."""
    later = tuple(each for each in epochs if each.start_offset > start_offset)
    begun = [each for each in epochs if each.start_offset <= start_offset]
    return (LeaderEpoch(begun[-1].epoch, start_offset), *later) if begun else later
