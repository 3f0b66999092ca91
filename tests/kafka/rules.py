"""Switches off single rules of cleaning that are easy to get wrong. The judge must notice each missing rule.

`python -m tests.kafka.judge --rules --logs 200` prints the first log that shows each missing rule. With seed 7, the
logs have these numbers (a log counts only if it shows no difference while all rules are on):

    aborted data is deleted in the first compaction 4 · keys of aborted data do not count 4 · a marker is deleted only
    after its transaction 2 · a marker first gets a delete horizon 2 · a tombstone is kept until its horizon 1 · the
    last batch of an active producer is kept 34 · an expired producer is not active 68 · nothing from the last stable
    offset on is cleaned 4 · an entry of the .txnindex is kept with its marker 2
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from storage_engine.cleaner import cleaner, filter_kernels
from storage_engine.cleaner.cleaned_transactions import CleanedTransactions
from storage_engine.config import LONG_MAX
from storage_engine.log.partition_state import PartitionState
from storage_engine.log.segment_reader import TransactionRanges
from storage_engine.topic.clean import topic_compaction
from tests.model.replacing import replaced

Switch = Callable[[], AbstractContextManager[Any]]


def _tombstones_of_any_horizon() -> AbstractContextManager[Any]:
    filters = filter_kernels.filter_batches
    place = 3  # which argument the limits are

    def filter_batches(*arguments: Any) -> Any:
        changed = list(arguments)
        changed[place] = changed[place]._replace(now_ms=LONG_MAX, held_now_ms=LONG_MAX)
        return filters(*changed)

    return replaced(cleaner, "filter_batches", filter_batches)


def _judged(change: Callable[[Any, Any], tuple[Any, Any]]) -> Switch:
    """Another verdict on which data of transactions is aborted, and which markers may go."""
    judge = CleanedTransactions.judge
    return lambda: replaced(
        CleanedTransactions, "judge", lambda self, *arguments: change(*judge(self, *arguments))
    )  # fmt: skip


def _none(found: Any) -> Any:
    return np.zeros_like(found)


RULES: dict[str, Switch] = {
    "aborted data goes at once": _judged(lambda aborted, may_go: (_none(aborted), may_go)),
    "keys of aborted data do not count": lambda: replaced(
        cleaner, "TransactionRanges", lambda _: TransactionRanges(())
    ),
    "a marker goes once nothing of its transaction is left": _judged(lambda aborted, may_go: (aborted, _none(may_go))),
    "a marker gets a horizon first": lambda: replaced(cleaner, "WANTS_HORIZON", 0),
    "a tombstone goes at its horizon, not before": _tombstones_of_any_horizon,
    "the last batch of an active producer stays": lambda: replaced(
        cleaner._PartitionCleaning, "_is_last_of_active_producer", lambda self, table: np.zeros(len(table), np.bool_)
    ),
    "a producer that was silent for long is not active": lambda: replaced(
        topic_compaction, "active_producers", lambda entries, now_ms, expiration_ms: entries
    ),
    "nothing from the last stable offset on is cleaned": lambda: replaced(
        PartitionState, "last_stable_offset", property(lambda part: part.high_watermark)
    ),
    "an entry of the .txnindex stays with its marker": lambda: replaced(
        CleanedTransactions, "take_retained", lambda self: ()
    ),
}
