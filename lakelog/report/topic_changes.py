"""Reads a topic's history: the change that each version of its state made, oldest first.

The state chain is the sequence of all versions of a topic's state. The chain shows who changed what, and when. Each
version is a whole state. The change of a version is the difference between this version and the version before. Reading
begins with a given state and continues backwards from version to version. Each version names the id of the version
before it (its parent), and this id is checked. Reading ends at version 0, at a limit, at pruned versions, or at damage.
The result gives the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage_engine.errors import LogError
from storage_engine.topic.chain.committing_process import CommittingProcess
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState, Writer

MOST_VERSIONS = 1000
"""At most this many versions are read. Each version is a file of some kilobytes."""


@dataclass(frozen=True)
class Change:
    """The change that one version made to its topic.

    elapsed_ms: the time between the predecessor and this version, by the clocks of their writers; None for version 0.
    what: a description of the change, by the process that wrote the version.
    records: the increase of the high watermarks, over all partitions.
    bytes: the increase of the committed bytes; negative if segments were dropped.
    segments: the increase of the number of segments; negative if segments were dropped.
    batches: the micro-batches that the version committed, by query.
    writer: the query that fed the topic then, even if another process committed the version.
    committed_by: the process that committed the version; None if an older Lakelog committed it.
    """

    version: int
    written_ms: int
    elapsed_ms: int | None
    what: str
    records: int
    bytes: int
    segments: int
    batches: Mapping[str, int]
    writer: Writer
    committed_by: CommittingProcess | None = None


@dataclass(frozen=True)
class TopicChanges:
    """A topic's changes, oldest first.

    older: a sentence about the earlier changes; empty if the list begins with version 0.
    damaged: whether reading ended at damage.
    """

    changes: tuple[Change, ...]
    older: str = ""
    damaged: bool = False


def read_history(chain: StateChain, newest: TopicState, limit: int = MOST_VERSIONS) -> TopicChanges:
    """The changes that led to a state.

    Args:
        chain: the topic's state chain. Lists of segments that it has read already are not read again.
        newest: the state to begin with.
        limit: the largest number of changes.
    """
    changes: list[Change] = []

    def history(older: str = "", *, damaged: bool = False) -> TopicChanges:
        return TopicChanges(tuple(reversed(changes)), older, damaged)

    state = newest
    while len(changes) < limit:
        if state.version == 0:
            changes.append(_change(None, state))
            return history()
        number = state.version - 1
        try:
            parent = chain.at(number)
        except LogError as error:
            return history(f"Version {number} could not be read. {error}", damaged=True)
        if parent is None:
            return history(
                f"Version {number} and earlier versions were pruned. `lakelog state history` shows the pruned versions."
            )
        if parent.id != state.parent:
            return history(f"Version {number} is not the parent that version {state.version} names.", damaged=True)
        changes.append(_change(parent, state))
        state = parent
    return history(f"Only the newest {limit:,} versions were read.")


def _change(parent: TopicState | None, state: TopicState) -> Change:
    """The difference of two states. If the topic was deleted and created again between them, the partitions of the
    older state are ignored.
    """
    before = parent if parent is not None and parent.topic_id == state.topic_id else None
    old = before.partitions if before else ()
    watermarks = [part.high_watermark for part in old] + [0] * len(state.partitions)
    queries = before.queries if before else {}
    return Change(
        version=state.version,
        written_ms=state.written_ms,
        elapsed_ms=state.written_ms - parent.written_ms if parent else None,
        what=state.change,
        records=sum(
            max(0, part.high_watermark - watermark)
            for part, watermark in zip(state.partitions, watermarks, strict=False)
        ),
        bytes=sum(part.size for part in state.partitions) - sum(part.size for part in old),
        segments=sum(len(part.segments) for part in state.partitions) - sum(len(part.segments) for part in old),
        batches={query: batch.batch_id for query, batch in state.queries.items() if queries.get(query) != batch},
        writer=state.writer,
        committed_by=state.committed_by,
    )
