"""Publishes and commits appends: the only writer of a topic in this process.

publish  A publisher (storage_engine.topic.append.publishers) copies the staged runs to each partition's .log, stamps them with
         base offset and leader epoch, and syncs. Nothing of it can be seen yet: bytes beyond a committed size do not
         exist.
commit   One version of the state names segments and sizes on all partitions, the high watermarks and the batch as
         done. If a partition has changed since the plan, the work is planned again from the same staged runs.

After a publish that was not committed, for any reason, the writer closes the files and never writes to them again: no
position of a file ever has two values. New files of a failed publish are deleted, because no commit tried to name them;
after a failed commit the files stay. A process that dies leaves bytes that no reader uses.

A TopicWriter belongs to one thread. Its publisher starts threads for the partitions of one publish.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from storage_engine.clock import Clock
from storage_engine.config import INT_MAX, TopicConfig
from storage_engine.errors import (
    BatchRefusedError,
    ConflictError,
    FencedError,
    StateError,
    UnknownTopicError,
    WriterRefusedError,
)
from storage_engine.log.leader_epochs import begin_epoch
from storage_engine.phases import Phases
from storage_engine.quantities import shown_moment
from storage_engine.storage import Storage
from storage_engine.topic.append.planning import AppendPlan, appended, plan_append, total_records
from storage_engine.topic.append.positions import Advance, advanced
from storage_engine.topic.append.publishers import Publisher, publisher_for
from storage_engine.topic.append.staging import StagedRun, check_not_swept
from storage_engine.topic.chain.pruning import PruningShare
from storage_engine.topic.chain.state import CommittedBatch, DroppedFile, TopicState, Writer
from storage_engine.topic.chain.state_chain import StateChain

_MOST_PLANS = 100
"""How often an append is planned again before the topic is taken to be too busy."""


@dataclass(frozen=True)
class BatchIdentity:
    """A micro-batch: the query's id, Spark's batch id, and a hash of the offsets that Spark recorded for it.

    source: whose committed positions tell which of its rows are committed already, where there are such.
    """

    query: str
    batch_id: int
    offsets_hash: str
    source: str | None = None


@dataclass(frozen=True)
class AcceptedCheckpoint:
    """A checkpoint that is to count from now on, whatever others have brought.

    at: the last batch that Spark has noted as done in it, and its offsets' hash; None where there is none.
    """

    at: tuple[int, str] | None = None


@dataclass(frozen=True)
class Committed:
    """What an append did. skipped: the batch had been committed before, and nothing was done."""

    state: TopicState
    records: int
    skipped: bool = False


def take_over(
    chain: StateChain,
    query: str,
    take_over_others: bool = False,
    source: str | None = None,
    selection: str = "",
    accepted: AcceptedCheckpoint | None = None,
) -> TopicState:
    """Become the topic's writer: commit the next epoch. Commits of the epochs before are refused from then on.

    Args:
        query: the streaming query's id. The recorded one takes over at once.
        take_over_others: replace another query too, running or not.
        source: whose positions are to be kept. Another query takes over at once, too, from one that reads the same of
            the same source, if the topic has its positions: they tell what is committed.
        selection: what of the source.
        accepted: forget the batches and positions of all earlier queries.

    Raises:
        WriterRefusedError: another query is the writer, and nothing of this allows to replace it.
        StateError: the largest leader epoch is in use.
    """

    def change(state: TopicState) -> TopicState:
        _check_exists(state)
        recorded = state.writer
        follows = source in state.positions and (source, selection) == (recorded.source, recorded.reads)
        if recorded.query not in (None, query) and not (take_over_others or accepted or follows):
            raise _refused_writer(state, query, source, selection)
        if recorded.epoch == INT_MAX:
            raise StateError(
                f"topic {state.topic}", f"has leader epoch {recorded.epoch}, and no later one is possible",
                "It came in with an import: delete the topic, remove leader-epoch-checkpoint from the folders of its"
                " partitions there, and import it again.",
            )  # fmt: skip
        writer = Writer(
            epoch=recorded.epoch + 1,
            query=query,
            host=socket.gethostname(),
            pid=os.getpid(),
            since_ms=chain.clock.now_ms(),
            source=source,
            reads=selection,
        )
        partitions = tuple(
            part.model_copy(
                update={"leader_epochs": begin_epoch(part.leader_epochs, writer.epoch, part.high_watermark)}
            )
            for part in state.partitions
        )
        forgotten = {"queries": _beginning(state, query, accepted), "positions": {}} if accepted else {}
        return state.model_copy(update={"writer": writer, "partitions": partitions} | forgotten)

    return chain.commit(change, f"query {query} took over" + (", with a new checkpoint" if accepted else ""))


def _refused_writer(state: TopicState, query: str, source: str | None, selection: str) -> WriterRefusedError:
    recorded = state.writer
    problem = f"query {recorded.query} on {recorded.host} (process {recorded.pid}) is its writer, this is {query}"
    if source is not None:
        others = f"{recorded.source} {recorded.reads}".strip() if recorded.source in state.positions else "none"
        problem += f". It brings the positions of {f'{source} {selection}'.strip()}, and those that its writer keeps are {others}"
    if query in state.queries:
        remedy = "Continue that query from its own checkpoint, or replace it with --take-over."
    else:
        remedy = (
            "Choose: continue that query from its own checkpoint; or let this checkpoint count from now on with"
            " --accept-new-checkpoint, which appends once more what the source still has, and forgets the last batch"
            " and the positions of the earlier query; or, if this is another stream, let it feed the topic from now on"
            " with --take-over, which forgets nothing."
        )
    return WriterRefusedError(f"topic {state.topic}", problem, remedy)


def _beginning(state: TopicState, query: str, accepted: AcceptedCheckpoint) -> dict[str, CommittedBatch]:
    """What is known of a query whose checkpoint was accepted: it begins a lineage, if there was one before."""
    if accepted.at is None and query not in state.queries:
        return {}
    batch_id, offsets_hash = accepted.at or (-1, "")
    return {query: CommittedBatch(batch_id=batch_id, offsets_hash=offsets_hash, lineage=secrets.token_hex(8))}


def lineage(state: TopicState, batch: BatchIdentity) -> str:
    """Tells a batch from those of its number that the query had before its checkpoint went back; the same in a replay."""
    done = state.queries.get(batch.query)
    if done is None:
        return ""
    goes_on = batch.batch_id > done.batch_id or (batch.batch_id, batch.offsets_hash) == (
        done.batch_id,
        done.offsets_hash,
    )
    return done.lineage if goes_on else batch.offsets_hash[:16]


def _check_exists(state: TopicState) -> None:
    if state.deleted:
        raise UnknownTopicError(f"topic {state.topic}", "was deleted", "`lakelog topics list` shows the topics.")


def check_epoch(state: TopicState, epoch: int) -> None:
    """Check that a writer of this epoch still holds the topic.

    Raises:
        FencedError: says who took over, and from where.
    """
    writer = state.writer
    if writer.epoch != epoch:
        raise FencedError(
            f"topic {state.topic}",
            f"query {writer.query} on {writer.host} (process {writer.pid}, since {shown_moment(writer.since_ms)}) took over"
            f" with epoch {writer.epoch}, this writer's is {epoch}",
            "Nothing more of this writer is committed; what it has committed stays.",
        )


class TopicWriter:
    """Appends to one topic, exactly once per batch.

    phases: where the time of its appends went.
    """

    def __init__(
        self,
        storage: Storage,
        chain: StateChain,
        config: TopicConfig,
        clock: Clock,
        epoch: int | None,
        topic_id: str | None = None,
    ) -> None:
        """
        Args:
            epoch: what take_over committed. None: append in whatever epoch holds, taking nothing over.
            topic_id: of the topic that the config is of; the newest state's by default. To one that was created anew
                under its name nothing is appended.
        """
        self._storage = storage
        self._chain = chain
        self.config = config
        self._clock = clock
        self._epoch = epoch
        self._topic_id = topic_id or chain.newest().topic_id
        self._jitter = random.Random()
        self._publisher = publisher_for(storage)
        self._pruning = PruningShare(storage, chain)
        self.phases = Phases()

    def append(
        self,
        runs: Mapping[int, Sequence[StagedRun]],
        batch: BatchIdentity | None = None,
        advance: Advance | None = None,
        publisher: Publisher | None = None,
    ) -> Committed:
        """Publish and commit staged runs as one version.

        Args:
            advance: of the batch's source.
            publisher: publishes this append; by default the writer's own, which goes on in files that it has open.

        Raises:
            FencedError: a newer epoch holds the topic.
            BatchRefusedError: the checkpoint was copied or rolled back, or the positions have changed since staging.
            PositionsError: the source has no fixed set of partitions.
            TransactionError: the transaction of a run is not open any more.
            AmbiguousPutError: nobody knows whether it was committed.
            RecordTooLargeError, OffsetOutOfRangeError, StorageError: nothing was committed.
        """
        publisher = publisher or self._publisher
        for _ in range(_MOST_PLANS):
            with self.phases.phase("plan"):
                state = self._chain.newest()
                if self.is_done(state, batch):
                    return Committed(state, 0, skipped=True)
                check_not_swept(self._storage, itertools.chain.from_iterable(runs.values()), state.sweep_floor)
                now_ms = self._clock.now_ms()
                plan = plan_append(state, self.config, runs, publisher.open_segments(), now_ms, self._jitter)
            plan = publisher.publish(plan, self.phases)
            try:
                with self.phases.phase("commit"):
                    committed = self._commit(plan, batch, advance, state)
            except ConflictError:
                publisher.abandon(plan)
                continue
            except BaseException:
                publisher.abandon(plan)
                raise
            publisher.keep(plan)
            with self.phases.phase("prune"):
                self._pruning.committed(committed.version)
            return Committed(committed, total_records(plan))
        raise ConflictError(
            f"topic {self._chain.topic}", f"changed {_MOST_PLANS} times while an append was being published",
            "Run fewer writers at once.",
        )  # fmt: skip

    def close(self) -> None:
        """Close the files permanently."""
        self._publisher.close()
        self._pruning.close()

    def is_done(self, state: TopicState, batch: BatchIdentity | None) -> bool:
        """Whether the state has this batch already.

        The last one again is a replay after a crash between our commit and Spark's: skipped. Anything else at or below
        it means that the checkpoint is not the one that fed the topic. Then positions tell what is committed, row by
        row; where there are none, the batch is refused.
        """
        _check_exists(state)
        if state.topic_id != self._topic_id:  # epochs begin again with a new topic, and would tell nothing
            raise UnknownTopicError(
                f"topic {state.topic}", "was deleted and created again since this writer began",
                "Nothing was appended to the new topic. Start again if that is meant.",
            )  # fmt: skip
        if self._epoch is not None:
            check_epoch(state, self._epoch)
        done = state.queries.get(batch.query) if batch else None
        if batch is None or done is None or batch.batch_id > done.batch_id:
            return False
        if (batch.batch_id, batch.offsets_hash) == (done.batch_id, done.offsets_hash):
            return True
        if batch.source in state.positions:
            return False
        raise BatchRefusedError(
            f"topic {state.topic}, query {batch.query}",
            f"batch {batch.batch_id} is offered with offsets {batch.offsets_hash[:12]}, but batch {done.batch_id} with"
            f" offsets {done.offsets_hash[:12]} is committed",
            "The checkpoint was copied or rolled back. Choose: restore the newest one; or let this one count from now on"
            " with --accept-new-checkpoint, which appends once more what was committed since.",
        )

    def _commit(
        self, plan: AppendPlan, batch: BatchIdentity | None, advance: Advance | None, planned_on: TopicState
    ) -> TopicState:
        def change(state: TopicState) -> TopicState:
            # Batches that are stamped with an older epoch than the newest may not follow it in the log.
            if self.is_done(state, batch) or state.writer.epoch != plan.leader_epoch:
                raise ConflictError(f"topic {state.topic}", "changed since the plan")
            if state.is_below_sweep_floor(plan.version):
                raise ConflictError(f"topic {state.topic}", "was swept since the plan, and its files may be gone")
            now_ms = self._clock.now_ms()
            changed = {}
            dropped = []
            for part in plan.partitions:
                current = state.partitions[part.partition]
                if (current.high_watermark, current.active_segment) != (
                    part.base.high_watermark,
                    part.base.active_segment,
                ):
                    raise ConflictError(f"topic {state.topic}, partition {part.partition}", "changed since the plan")
                changed[part.partition] = appended(part, current, plan.leader_epoch, now_ms)
                if (empty := current.empty_end) is not None:
                    dropped.append(DroppedFile(state.topic_id, part.partition, empty.name, now_ms))
            queries = state.queries
            if batch:
                done = CommittedBatch(
                    batch_id=batch.batch_id, offsets_hash=batch.offsets_hash, lineage=lineage(state, batch)
                )
                queries = queries | {batch.query: done}
            positions = advanced(state, advance) if advance else state.positions
            return state.with_partitions(changed).model_copy(
                update={"queries": queries, "positions": positions, "dropped": (*state.dropped, *dropped)}
            )

        what = f"append of {total_records(plan)} records"
        if batch:
            what = f"batch {batch.batch_id} of query {batch.query}: {what}"
        return self._chain.commit(change, what, planned_on)
