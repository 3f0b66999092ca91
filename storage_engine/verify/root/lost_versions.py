"""Finds the versions of a state chain that are missing although pruning did not delete them. Changes nothing.

Pruning (topic.chain.pruning) deletes version 1 and the versions after it, oldest first, under three conditions: version 0
is retired, the history has the version and the next version, and a thousand newer versions exist. A missing version that
does not meet these conditions was lost. Version 0 is never deleted.

The chain may grow and be pruned meanwhile. All facts are read after the listing of the versions, and each condition stays
true once it is true. So a version that was pruned meanwhile does not seem to be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from storage_engine.errors import CorruptionError
from storage_engine.storage import Storage, exists
from storage_engine.topic.chain.history_file import file_end, file_start, history_starts, is_rolled_up
from storage_engine.topic.chain.pruning import KEPT_VERSIONS
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.version_files import version_key


def lost_versions(storage: Storage, chain: StateChain, listed: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """The gaps of a chain, in order: the version after each gap, and the lost versions in the gap.

    Args:
        listed: the versions that a listing showed, in order.
    """
    if not listed or len(listed) == listed[-1] + 1:
        return
    rolled_up = max((file_end(start) - 1 for start in history_starts(storage, chain.topic)), default=-1)
    newest = max(
        rolled_up, *chain.versions()
    )  # if the newest versions were lost, the history still shows that they existed
    for before, version in pairwise((-1, *listed)):
        if version == before + 1:
            continue
        pruned = min(version - 1, newest - KEPT_VERSIONS) if _may_be_pruned(chain) else 0
        while pruned > before and not is_rolled_up(storage, chain.topic, pruned + 1):
            pruned = file_start(pruned + 1) - 2
        # A listing may lack a version that was put during the listing.
        lost = [
            each
            for each in range(before + 1, version)
            if (not each or each > pruned) and not exists(storage, version_key(chain.topic, each))
        ]
        if lost:
            yield version, lost


def _may_be_pruned(chain: StateChain) -> bool:
    """Whether version 0 is not what it was when the chain began: it is retired, lost or damaged."""
    try:
        return chain.at(0) is None
    except CorruptionError:
        return True
