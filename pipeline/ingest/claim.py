"""Decides whether a query is allowed to take over topics: to become the writer of these topics. The decision is made
before any change. It uses the query's checkpoint and the topics' states.

`decide_claim` checks these rules in this order, and returns a Claim, or the error of the first rule that is broken:

    1. The checkpoint is complete. An operator cannot accept a damaged checkpoint.
    2. The rows of the topics were written with this checkpoint. The checkpoint is neither ahead of the topics nor
       rolled back.
    3. If the query has stored its source's positions in the topics, the query continues to store positions.
    4. The positions are computed from the same columns as before.
    5. If positions are stored, they are stored from the first row of the source on. Otherwise the positions do not
       show which rows are committed.

If the operator accepts the checkpoint (--accept-new-checkpoint), rules 2 to 4 do not apply, and old positions are
dropped.

The module is pure: it reads neither storage nor settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.ingest.checkpoint_check import SeenCheckpoint, accepted_checkpoint, why_not_whole, why_refused
from pipeline.ingest.source_positions import PositionedSource
from storage_engine.errors import ConfigError, LogError
from storage_engine.topic.append.topic_writer import AcceptedCheckpoint
from storage_engine.topic.chain.topic_state import TopicState


@dataclass(frozen=True)
class ClaimRequest:
    """What the settings and the operator ask for.

    source: the source whose positions are stored; None if no positions are stored.
    columns_place, source_place: where the settings of the position columns and of the source's name are, for messages.
    take_over_others: this query may replace another query as the writer.
    accept_new_checkpoint: accept a checkpoint that would be refused, or that is new to the topics.
    """

    source: PositionedSource | None = None
    columns_place: str = ""
    source_place: str = ""
    take_over_others: bool = False
    accept_new_checkpoint: bool = False


@dataclass(frozen=True)
class Claim:
    """A query's permission to take topics over.

    query_id: the id of the query. A query that is the recorded writer may always take over.
    source, selection: the source whose positions are stored, and what the query reads of this source. A query with the
        same source and selection may also take over.
    take_over_others: the operator allows this query to replace any other query.
    accepted: the checkpoint that the operator accepts, or None.
    """

    query_id: str
    source: str | None = None
    selection: str = ""
    take_over_others: bool = False
    accepted: AcceptedCheckpoint | None = None


def decide_claim(request: ClaimRequest, checkpoint: SeenCheckpoint, states: Sequence[TopicState]) -> Claim | LogError:
    """The claim of a query on topics, or the error that refuses the claim.

    Args:
        states: the states of the topics that the query is to feed.
    """
    source, query_id = request.source, checkpoint.query_id
    known = source.name if source and all(source.name in state.positions for state in states) else None
    if (broken := why_not_whole(checkpoint, known)) is not None:
        return broken
    refused: LogError | None = why_refused(checkpoint, states, known)
    refused = refused or _why_positions_end(request, query_id, states)
    is_new = any(state.writer.query not in (None, query_id) and query_id not in state.queries for state in states)
    accepted = None
    if request.accept_new_checkpoint and (refused or is_new):
        accepted = accepted_checkpoint(checkpoint)
    elif refused:
        return refused
    if source is None:
        return Claim(query_id, None, "", request.take_over_others, accepted)
    if not accepted and (other := _why_other_columns(request, source, states)) is not None:
        return other
    begins = checkpoint.files.finished < 0 and (accepted or not any(query_id in state.queries for state in states))
    kept = not accepted and any(source.name in state.positions for state in states)
    if not (source.tells_ends or kept or begins):
        return ConfigError(
            request.columns_place,
            f"the topic already has rows of {source.name}, and these rows were committed without positions",
            "Positions must be stored from the first row on. Begin with a new checkpoint and --accept-new-checkpoint; this"
            " appends again all rows that the source still has.",
        )
    return Claim(query_id, source.name, source.selection, request.take_over_others, accepted)


def _why_positions_end(request: ClaimRequest, query_id: str, states: Sequence[TopicState]) -> ConfigError | None:
    """The error if a query would no longer store its positions. The stored positions would then become out of date, but
    a later run would use them as if they were current."""
    source = request.source
    for state in states:
        writer = state.writer
        goes_on = source is not None and writer.source == source.name
        if writer.query == query_id and writer.source in state.positions and not goes_on:
            place, instead = request.columns_place, "no positions"
            if source is not None:
                place, instead = request.source_place, f"positions of {source.name}"
            return ConfigError(
                place,
                f"topic {state.topic} stores positions of {writer.source}, but with its settings, this query would"
                f" store {instead}",
                "Choose one: (1) restore the setting; (2) if only the address of the source changed, set"
                f" ingest.position.source to {writer.source!r}; (3) continue from this checkpoint, once with"
                " --accept-new-checkpoint. Choice 3 deletes the stored positions.",
            )
    return None


def _why_other_columns(
    request: ClaimRequest, source: PositionedSource, states: Sequence[TopicState]
) -> ConfigError | None:
    """The error if the columns from which positions are computed have changed. Then a new position and an equal stored
    position would not mean the same row."""
    for state in states:
        writer = state.writer
        if source.tells_ends or source.name not in state.positions or writer.source != source.name:
            continue
        if writer.reads != source.selection:
            return ConfigError(
                request.columns_place,
                f"topic {state.topic} stores the positions of {source.name} ({writer.reads}), but now the settings say"
                f" {source.selection}",
                "Choose one: (1) restore the earlier columns; (2) set ingest.position.source to another name, and start with"
                " a new checkpoint and --accept-new-checkpoint. Choice 2 appends again all rows that the source still has.",
            )
    return None
