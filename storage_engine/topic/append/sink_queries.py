"""Stores the last batch of each query that writes to a topic through a sink, and deletes the entries of idle queries.

An ingest takes a topic over: an earlier ingest of the topic can then no longer commit. A sink does not take the topic
over, so several queries can write to one topic. The state has an entry for each of these queries, with the query's
last batch (`TopicState.queries`). The entry is deleted some time after the query's last batch in this topic.

No batch may be appended twice, even if the entry of its query was deleted. So the state also contains the time at
which the newest deleted entry was written (`TopicState.sinks_expired_ms`). A query without an entry is accepted only
if the query's first batch began after this time. If the first batch began earlier, the query is refused, because its
entry may have been deleted.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage_engine.errors import BatchRefusedError
from storage_engine.quantities import shown_moment
from storage_engine.topic.chain.topic_state import CommittedBatch, TopicState


@dataclass(frozen=True)
class SinkQuery:
    """A query that writes through a sink.

    began_ms: the time of the query's first batch, or an earlier time, from the query's checkpoint; -1 if the checkpoint
        no longer has this time. With a later time, a batch could be appended twice.
    idle_ms: the entries of queries that were idle for longer than this are deleted.
    """

    began_ms: int
    idle_ms: int


def check_not_expired(state: TopicState, query: str, sink: SinkQuery) -> None:
    """
    Raises:
        BatchRefusedError: the topic has no entry of the query, and may have deleted it.
    """
    if query in state.queries or sink.began_ms > state.sinks_expired_ms or state.sinks_expired_ms < 0:
        return
    raise BatchRefusedError(
        f"topic {state.topic}, query {query}",
        "the topic has no entry of this query, so the topic may already contain this batch; entries of idle queries up"
        f" to {shown_moment(state.sinks_expired_ms)} were deleted",
        "Find out which rows the topic has. Then start the query with a new checkpoint, from a position after these"
        " rows.",
    )


def recorded(
    state: TopicState, query: str, done: CommittedBatch, sink: SinkQuery | None, now_ms: int
) -> dict[str, object]:
    """The changed fields of the state after a batch. The query's entry is updated, and the entries of idle queries are
    deleted.

    Args:
        sink: None if an ingest committed the batch. The entries of ingests are never deleted.
    """
    if sink is None:
        return {"queries": state.queries | {query: done}}
    idle = {
        name: batch.sink_ms
        for name, batch in state.queries.items()
        if 0 <= batch.sink_ms < now_ms - sink.idle_ms and name != query
    }
    kept = {name: batch for name, batch in state.queries.items() if name not in idle}
    return {
        "queries": kept | {query: done.model_copy(update={"sink_ms": now_ms})},
        "sinks_expired_ms": max(state.sinks_expired_ms, *idle.values(), -1),
    }


def of_sinks(queries: Mapping[str, CommittedBatch]) -> dict[str, CommittedBatch]:
    """The entries of queries that write through a sink."""
    return {name: batch for name, batch in queries.items() if batch.sink_ms >= 0}
