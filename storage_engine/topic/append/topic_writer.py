"""Publishes and commits appends to a topic.

publish  A publisher (topic.append.publishers) copies the staged runs to each partition's .log, writes base offset and
         leader epoch into each batch, and syncs the .log. No reader sees the new bytes, because they are beyond the
         committed size.
commit   The next version of the state contains the new segments, sizes and high watermarks of all partitions, and
         records the micro-batch as done. If a partition has changed since the plan, the same staged runs are planned
         again.

If a publish is not committed, for any reason, the writer closes the files and never writes to them again. So no
position of a file is ever written with two different values. If the publish itself failed, its new files are deleted,
because no commit can name them. If the commit failed, the files are not deleted. If the process dies before the
commit, no reader uses the bytes that the process has written.

A TopicWriter belongs to one thread. For each publish, the writer's publisher starts threads for the partitions.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from storage_engine.clock import Clock
from storage_engine.config import INT_MAX, TopicConfig
from storage_engine.errors import (
    BatchRefusedError,
    ConflictError,
    FencedError,
    NotFoundError,
    StateError,
    UnknownTopicError,
    WriterRefusedError,
)
from storage_engine.log.leader_epochs import begin_epoch
from storage_engine.phases import Phases
from storage_engine.quantities import shown_moment
from storage_engine.storage import Storage
from storage_engine.topic.append.append_plan import AppendPlan, appended, plan_append, total_records
from storage_engine.topic.append.committed_positions import Advance, advanced
from storage_engine.topic.append.publishers import publisher_for
from storage_engine.topic.append.publishing import Publisher
from storage_engine.topic.append.replaced_files import ReplacedFiles
from storage_engine.topic.append.sink_queries import SinkQuery, check_not_expired, of_sinks, recorded
from storage_engine.topic.append.staged_run import StagedRun, check_not_swept
from storage_engine.topic.chain.pruning import PruningShare
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import CommittedBatch, DroppedFile, TopicState, Writer

_MOST_PREPARED = 256
"""If a topic has more partitions, `prepare` reads only segments of partitions that the caller names."""
_MOST_PLANS = 100
"""After this many plans of one append, the append fails because the topic changes too often."""


@dataclass(frozen=True)
class BatchIdentity:
    """Identifies a micro-batch.

    query: the id of the streaming query.
    batch_id: Spark's number of the batch.
    offsets_hash: a hash of the offsets that Spark recorded for the batch.
    source: the name of the source whose positions the topic stores; None if it stores none.
    """

    query: str
    batch_id: int
    offsets_hash: str
    source: str | None = None


@dataclass(frozen=True)
class AcceptedCheckpoint:
    """A new checkpoint that the operator has accepted. From now on, only this checkpoint is valid, and earlier
    checkpoints have no effect.

    at: the last batch that Spark recorded as done in this checkpoint, and the hash of its offsets; None if Spark has
        recorded no batch.
    """

    at: tuple[int, str] | None = None


@dataclass(frozen=True)
class Committed:
    """The result of an append.

    state: the state with the append.
    records: the number of records that were appended.
    skipped: the micro-batch was committed before, so nothing was appended.
    """

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
    """Make a query the topic's writer: commit the next epoch. From then on commits of earlier epochs are refused.

    Args:
        query: the id of the streaming query. The query that is recorded as the writer may always take over.
        take_over_others: also replace another query, even if it is running.
        source: the name of the source whose positions the topic stores. A query may also replace another query that
            reads the same part of the same source, if the topic stores the positions of this source. The positions show
            which rows are committed.
        selection: the part of the source that the query reads.
        accepted: delete the batches and positions of all earlier ingests, and begin with this checkpoint.

    Raises:
        WriterRefusedError: another query is the writer, and the arguments do not allow to replace it.
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
                f"topic {state.topic}", f"has leader epoch {recorded.epoch}, the largest that is possible",
                "The topic was imported with this epoch. Delete the topic, remove the file leader-epoch-checkpoint"
                " from each folder of the topic in the imported directory, and import the topic again.",
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
        forgotten: dict[str, object] = {}
        if accepted:
            forgotten = {"queries": of_sinks(state.queries) | _beginning(state, query, accepted), "positions": {}}
        return state.model_copy(update={"writer": writer, "partitions": partitions} | forgotten)

    return chain.commit(change, f"query {query} took over" + (", with a new checkpoint" if accepted else ""))


def _refused_writer(state: TopicState, query: str, source: str | None, selection: str) -> WriterRefusedError:
    recorded = state.writer
    problem = (
        f"query {recorded.query} on {recorded.host} (process {recorded.pid}) is the topic's writer, but this is query"
        f" {query}"
    )
    if source is not None:
        others = f"{recorded.source} {recorded.reads}".strip() if recorded.source in state.positions else "no source"
        problem += f". This query reads {f'{source} {selection}'.strip()}; the topic stores the positions of {others}"
    if query in state.queries:
        remedy = "Continue the topic's writer from its own checkpoint, or replace the writer with --take-over."
    else:
        remedy = (
            "Choose one: (1) continue the topic's writer from its own checkpoint; (2) start from the new checkpoint with"
            " --accept-new-checkpoint: all rows that the source still has are appended again, and the topic's record of the"
            " earlier query's last batch and positions is deleted; (3) if this query reads another stream, let the"
            " query write to the topic with --take-over, which deletes nothing."
        )
    return WriterRefusedError(f"topic {state.topic}", problem, remedy)


def _beginning(state: TopicState, query: str, accepted: AcceptedCheckpoint) -> dict[str, CommittedBatch]:
    """The first entry of a query whose new checkpoint was accepted. The entry gets a new lineage if the query had an
    entry, or if the checkpoint has a batch.
    """
    if accepted.at is None and query not in state.queries:
        return {}
    batch_id, offsets_hash = accepted.at or (-1, "")
    return {query: CommittedBatch(batch_id=batch_id, offsets_hash=offsets_hash, lineage=secrets.token_hex(8))}


def lineage(state: TopicState, batch: BatchIdentity) -> str:
    """The lineage of a batch: equal for replays of the batch, and different for batches with the same number that the
    query committed before its checkpoint was rolled back."""
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
    """Check that this epoch is still the epoch of the topic's writer.

    Raises:
        FencedError: another writer took over. The error names its query, host and process.
    """
    writer = state.writer
    if writer.epoch != epoch:
        raise FencedError(
            f"topic {state.topic}",
            f"query {writer.query} on {writer.host} (process {writer.pid}, since {shown_moment(writer.since_ms)}) took over"
            f" with epoch {writer.epoch}; this writer has epoch {epoch}",
            "The topic accepts no more commits of this writer. This writer's earlier commits remain.",
        )


class TopicWriter:
    """Appends to one topic, exactly once per batch.

    phases: the time that its appends spent in each phase.
    """

    def __init__(
        self,
        storage: Storage,
        chain: StateChain,
        config: TopicConfig,
        clock: Clock,
        epoch: int | None,
        topic_id: str | None = None,
        sink: SinkQuery | None = None,
    ) -> None:
        """
        Args:
            epoch: the epoch that take_over committed. None: append in the topic's current epoch, without a takeover.
            topic_id: the id of the topic whose settings `config` has; by default the newest state's. If the topic was
                deleted and created again, it has another id, and nothing is appended.
            sink: the query, if it writes through a sink.
        """
        self._storage = storage
        self._chain = chain
        self._sink = sink
        self.config = config
        self._clock = clock
        self._epoch = epoch
        self._topic_id = topic_id or chain.newest().topic_id
        self._jitter = random.Random()
        self._publisher = publisher_for(storage)
        self._pruning = PruningShare(storage, chain)
        self._replaced = ReplacedFiles(storage)
        self.phases = Phases()

    def prepare(self, partitions: Iterable[int] | None = None, state: TopicState | None = None) -> None:
        """Begin the reads and deletions that the next append can use: reads of small active segments that other processes
        wrote, and deletions of old files. The earlier the call before the append, the shorter the append has to wait.

        Args:
            partitions: the partitions of the append; by default all, unless the topic has very many.
            state: a state of the topic; by default the state that the writer's chain has read last. It may be older than
                the newest state.
        """
        state = state or self._chain.known()
        if partitions is None:
            partitions = range(len(state.partitions)) if len(state.partitions) <= _MOST_PREPARED else ()
        chosen = [number for number in partitions if number < len(state.partitions)]
        self._publisher.prepare(state, self.config, chosen)
        # The clock of one host may be ahead. So two clocks must agree: this one, and that of the last commit.
        now_ms = min(self._clock.now_ms(), state.written_ms)
        self._replaced.begin(state.dropped, now_ms, self.config.file_delete_delay_ms, len(chosen))

    def append(
        self,
        runs: Mapping[int, Sequence[StagedRun]],
        batch: BatchIdentity | None = None,
        advance: Advance | None = None,
        publisher: Publisher | None = None,
        *,
        is_state_fresh: bool = False,
    ) -> Committed:
        """Publish and commit staged runs as one version.

        Args:
            batch: the micro-batch that is recorded as done by the same commit, if any.
            advance: the change of the source's positions, if the topic stores positions.
            is_state_fresh: the writer's chain has just been read, so nothing is read for the first plan. The commit
                notices if that state is not the newest.
            publisher: publishes this append. By default the writer's own publisher, which continues the files that it
                has open.

        Raises:
            FencedError: the topic has a newer epoch.
            BatchRefusedError: the checkpoint was copied or rolled back, or the positions have changed since staging.
            PositionsError: the source has too many partitions, or too long names of partitions.
            TransactionError: the transaction of a run is no longer open.
            AmbiguousPutError: it is unknown whether the append was committed.
            RecordTooLargeError, OffsetOutOfRangeError, StorageError: nothing was committed.
        """
        publisher = publisher or self._publisher
        for attempt in range(_MOST_PLANS):
            with self.phases.phase("plan"):
                is_fresh = is_state_fresh and not attempt
                state = self._chain.known() if is_fresh else self._chain.newest()
                if self.is_done(state, batch):
                    return Committed(state, 0, skipped=True)
                if not is_fresh:  # reads only what `prepare` has not read, because the state was older
                    publisher.prepare(state, self.config, (number for number, found in runs.items() if found))
                check_not_swept(self._storage, itertools.chain.from_iterable(runs.values()), state.sweep_floor)
                now_ms = self._clock.now_ms()
                plan = plan_append(state, self.config, runs, publisher.open_segments(), now_ms, self._jitter)
            try:
                plan = publisher.publish(plan, self.phases)
            except NotFoundError:
                self._chain.newest()  # is an error if all versions are gone, for example because a mount is away
                raise
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
            self._clean_up(plan, committed)
            return Committed(committed, total_records(plan))
        raise ConflictError(
            f"topic {self._chain.topic}", f"changed {_MOST_PLANS} times while an append was being published",
            "Run fewer writers on this topic at the same time.",
        )  # fmt: skip

    def _clean_up(self, plan: AppendPlan, committed: TopicState) -> None:
        """Begin to delete what this commit has made needless."""
        with self.phases.phase("prune"):
            self._pruning.committed(committed.version)
            delay_ms = self.config.file_delete_delay_ms
            self._replaced.committed(plan, committed.dropped, self._clock.now_ms(), delay_ms)

    def close(self) -> None:
        """Close the files permanently."""
        self._publisher.close()
        self._pruning.close()
        self._replaced.close()

    def is_done(self, state: TopicState, batch: BatchIdentity | None) -> bool:
        """Whether the batch is committed already.

        The last committed batch comes again after a crash between the topic's commit and Spark's commit, and is
        skipped. Any other batch with the same or a lower number shows that the topic was written from another
        checkpoint. If the topic stores positions, the positions show for each row whether it is committed. Otherwise
        the batch is refused. A batch of a sink's query is also refused if the query's entry may have been deleted.
        """
        _check_exists(state)
        if state.topic_id != self._topic_id:  # before the check of the epoch: a new topic counts epochs from 0 again
            raise UnknownTopicError(
                f"topic {state.topic}", "was deleted and created again after this writer began",
                "Nothing was appended to the new topic. To append to the new topic, start again.",
            )  # fmt: skip
        if self._epoch is not None:
            check_epoch(state, self._epoch)
        if batch and self._sink:
            check_not_expired(state, batch.query, self._sink)
        done = state.queries.get(batch.query) if batch else None
        if batch is None or done is None or batch.batch_id > done.batch_id:
            return False
        if (batch.batch_id, batch.offsets_hash) == (done.batch_id, done.offsets_hash):
            return True
        if batch.source in state.positions:
            return False
        raise BatchRefusedError(
            f"topic {state.topic}, query {batch.query}",
            f"found batch {batch.batch_id} with the offsets' hash {batch.offsets_hash[:12]}, but the topic already has"
            f" batch {done.batch_id} with the offsets' hash {done.offsets_hash[:12]}",
            "The checkpoint was copied or rolled back. Choose one: (1) restore the newest checkpoint; (2) "
            + (
                "start the query with a new checkpoint, from a position after the committed rows."
                if self._sink
                else "start from this checkpoint with --accept-new-checkpoint, which appends again the rows that were"
                " committed after this checkpoint."
            ),
        )

    def _commit(
        self, plan: AppendPlan, batch: BatchIdentity | None, advance: Advance | None, planned_on: TopicState
    ) -> TopicState:
        def change(state: TopicState) -> TopicState:
            # In a log the leader epoch never decreases, so batches with an older epoch must be published again.
            if self.is_done(state, batch) or state.writer.epoch != plan.leader_epoch:
                raise ConflictError(f"topic {state.topic}", "changed since the plan")
            if state.is_below_sweep_floor(plan.version):
                raise ConflictError(
                    f"topic {state.topic}",
                    "a sweep began after the plan was made, and may have deleted the new files",
                )
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
                replaced = [append.replaces for append in part.appends if append.replaces]
                dropped += [DroppedFile(state.topic_id, part.partition, name, now_ms) for name in replaced]
            queries: dict[str, object] = {}
            if batch:
                done = CommittedBatch(
                    batch_id=batch.batch_id, offsets_hash=batch.offsets_hash, lineage=lineage(state, batch)
                )
                queries = recorded(state, batch.query, done, self._sink, now_ms)
            positions = advanced(state, advance) if advance else state.positions
            return state.with_partitions(changed).model_copy(
                update=queries
                | {"positions": positions, "dropped": (*self._replaced.without_deleted(state.dropped), *dropped)}
            )

        what = f"append of {total_records(plan)} records"
        if batch:
            what = f"batch {batch.batch_id} of query {batch.query}: {what}"
        return self._chain.commit(change, what, planned_on)
