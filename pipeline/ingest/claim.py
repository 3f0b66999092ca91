"""Decides whether a query may take topics over, from its checkpoint and the topics' states, before anything is changed.

`decide_claim` asks these questions, in this order. It returns a Claim, or the first error that applies:

    1. is the checkpoint whole                                       an operator cannot accept a damaged one
    2. is it the one that fed the topics, neither ahead nor rolled back
    3. does the query still keep the positions that it kept before
    4. does the operator accept the checkpoint all the same          then 2, 3 are no error, old positions are dropped
    5. are the positions made from the same columns as before
    6. are positions kept from the first row on                      else they do not say which rows are committed

The module is pure: it reads neither storage nor settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.ingest.query_checkpoint import SeenCheckpoint, accepted_checkpoint, why_not_whole, why_refused
from pipeline.ingest.source_positions import PositionedSource
from storage_engine.errors import ConfigError, LogError
from storage_engine.topic.append.publishing import AcceptedCheckpoint
from storage_engine.topic.chain.state import TopicState


@dataclass(frozen=True)
class ClaimRequest:
    """The settings' and the operator's part of a claim.

    source: whose positions are kept, if they are.
    columns_place, source_place: where the settings say so, for messages.
    take_over_others: another query may be replaced.
    accept_new_checkpoint: a checkpoint that would be refused, or is new to the topics, is to count.
    """

    source: PositionedSource | None = None
    columns_place: str = ""
    source_place: str = ""
    take_over_others: bool = False
    accept_new_checkpoint: bool = False


@dataclass(frozen=True)
class Claim:
    """The terms on which a query takes topics over.

    query_id: the recorded query takes over immediately.
    source, selection: whose positions are kept, and what is read of it; one that reads the same does, too.
    take_over_others, accepted: what the operator has said.
    """

    query_id: str
    source: str | None = None
    selection: str = ""
    take_over_others: bool = False
    accepted: AcceptedCheckpoint | None = None


def decide_claim(request: ClaimRequest, checkpoint: SeenCheckpoint, states: Sequence[TopicState]) -> Claim | LogError:
    """The claim of a query on the topics that it is to feed, or why it has none.

    Args:
        states: of these topics.
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
            f"the topic has rows of this source already, and not how far {source.name} is committed",
            "Positions tell it only where they are kept from the first row on: begin with a new checkpoint and"
            " --accept-new-checkpoint, which appends once more what the source still has.",
        )
    return Claim(query_id, source.name, source.selection, request.take_over_others, accepted)


def _why_positions_end(request: ClaimRequest, query_id: str, states: Sequence[TopicState]) -> ConfigError | None:
    """Why a query may not go on without the positions that it has kept: they would stand still, and be taken for how far it
    is when they are kept again."""
    source = request.source
    for state in states:
        writer = state.writer
        goes_on = source is not None and writer.source == source.name
        if writer.query == query_id and writer.source in state.positions and not goes_on:
            place, instead = request.columns_place, "without them"
            if source is not None:
                place, instead = request.source_place, f"with those of {source.name}"
            return ConfigError(
                place,
                f"topic {state.topic} keeps the positions of {writer.source}, and this query would go on {instead}",
                "Choose: set it back, to that name where the source has only moved; or go on from this checkpoint with"
                " --accept-new-checkpoint, once, which forgets those positions.",
            )
    return None


def _why_other_columns(
    request: ClaimRequest, source: PositionedSource, states: Sequence[TopicState]
) -> ConfigError | None:
    """Why positions cannot go on as they were begun: by other columns they would tell of other rows."""
    for state in states:
        writer = state.writer
        if source.tells_ends or source.name not in state.positions or writer.source != source.name:
            continue
        if writer.reads != source.selection:
            return ConfigError(
                request.columns_place,
                f"topic {state.topic} keeps the positions of {source.name} {writer.reads}, found {source.selection}",
                "Choose: set these columns back; or give the source another name, ingest.position.source, and begin"
                " with a new checkpoint and --accept-new-checkpoint, which appends once more what the source still"
                " has.",
            )
    return None
