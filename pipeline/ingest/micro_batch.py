"""Stages the rows of one micro-batch of an ingest, and commits them on each topic exactly once.

The steps, in this order:

    1. check whether the batch is committed already (after a crash between our commit and Spark's)
    2. stage the rows
    3. write the list of staged files
    4. write the dead letters
    5. commit on each topic
    6. delete the staged files

After a crash Spark runs the batch again. The new run ignores staged files that no list names, and uses the list if it
was written. It finds the dead letters in their tables (Delta's guard knows the batch), and skips topics that have the
batch. A list is written if there are several topics or dead letters (storage_engine/topic/append/staged_list.py); a
batch that is a single commit needs no list.

Every step that uses the storage can be repeated, and waits while the storage is full or unreachable
(storage_patience.py).

If the source's positions are stored (pipeline/ingest/source_positions.py), a micro-batch may also come from a
checkpoint that is new or was rolled back: staging leaves out the rows that are committed according to their positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession

from lakelog.dead_letter_tables import UNKNOWN_TOPIC_DEAD_LETTERS, ingest_dead_letters_key
from pipeline.delta.dead_letters import append_staged_dead_letters
from pipeline.ingest.batch_stager import BatchStager
from pipeline.ingest.fed_topic import FedTopic
from pipeline.ingest.query_checkpoint import batch_identity, make_durable
from pipeline.ingest.rows.dropped_fields import DroppedFields
from pipeline.ingest.source_positions import PositionedSource, SourceEnds
from pipeline.ingest.spark_publisher import publisher_of
from pipeline.ingest.staging_task import StagingTask, StagingTopic
from pipeline.ingest.storage_patience import StoragePatience
from pipeline.settings import IngestSettings
from schemas.event_schema import EventSchema
from storage_engine.phases import Phases
from storage_engine.progress import Meter
from storage_engine.quantities import shown_duration, shown_number
from storage_engine.topic.append.appending import Encoding
from storage_engine.topic.append.positions import Advance, positions_of
from storage_engine.topic.append.publishing import BatchIdentity, Committed, lineage
from storage_engine.topic.append.staged_list import (
    StagedBatch,
    StagedDeadLetters,
    StagedTopic,
    check_list,
    delete_files,
    delete_list,
    put_list,
    read_list,
)
from storage_engine.topic.append.staging import STAGE, by_partition, staging_folder
from storage_engine.topic.chain.state import TopicState
from storage_engine.topic.topics import Topics

_T = TypeVar("_T")
CLEAN_UP = "clean up"
"""The phase behind the last commit of a micro-batch."""


@dataclass
class TopicResult:
    """What an ingest appended to one topic. dead_letters: by reason, of rows that were to go to it."""

    epoch: int
    records: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)


@dataclass
class IngestResult:
    """The result of an ingest.

    batches: those that this run committed, on one topic at least.
    skipped: those that an earlier run had committed.
    already_committed: rows that were committed before, by their positions.
    behind: by topic, the source partitions that have not come to where it is committed.
    without_topic: by reason, dead letters of which nobody can tell the topic.
    dropped_fields: those that the source's schema does not name; None of a source that drops none.
    notes: what an operator should know.
    phases: where the time of the micro-batches went.
    """

    query_id: str
    topics: Mapping[str, TopicResult]
    batches: int = 0
    skipped: int = 0
    already_committed: int = 0
    behind: dict[str, list[str]] = field(default_factory=dict)
    without_topic: Counter[str] = field(default_factory=Counter)
    dropped_fields: DroppedFields | None = None
    notes: list[str] = field(default_factory=list)
    phases: Phases = field(default_factory=Phases)

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics.values())

    @property
    def dead_letters(self) -> Counter[str]:
        return sum((topic.dead_letters for topic in self.topics.values()), self.without_topic)

    def count_dead_letters(self, topic: str | None, reasons: Counter[str]) -> None:
        """Count some that are in their table. A topic that is not fed any more had them counted before."""
        if topic is None:
            self.without_topic += reasons
        elif topic in self.topics:
            self.topics[topic].dead_letters += reasons


class MicroBatches:
    """The micro-batches of one query, one after another."""

    def __init__(
        self,
        topics: Topics,
        settings: IngestSettings,
        source: PositionedSource | None,
        fed: Mapping[str, FedTopic],
        result: IngestResult,
        report: Callable[[str], None],
        meter: Meter,
        patience: StoragePatience,
        schemas: Mapping[str, EventSchema],
        schema_setting: str,
    ) -> None:
        """
        Args:
            source: whose positions are kept.
            fed: by name, in the order in which they are committed.
            result: is kept up to date.
            report: is given a line after each micro-batch.
            patience: waits where the storage is full or away.
            schemas: by topic, the schema that each value has to be an event of. Values of other topics are not decoded.
            schema_setting: the one that the source's schema comes from.
        """
        self._topics = topics
        self._storage = topics.storage
        self._clock = topics.clock
        self._settings = settings
        self._source = source
        self._fed = fed
        self._result = result
        self._report = report
        self._meter = meter
        self._patience = patience
        self._schemas = schemas
        self._schema_setting = schema_setting
        self._stager = BatchStager(topics.storage)
        for each in fed.values():
            each.writer.phases = result.phases

    def ingest(self, rows: DataFrame, batch_id: int) -> None:
        """Stage and commit one micro-batch on the topics that lack it."""
        with self._result.phases.phase("other"):
            self._ingest(rows, batch_id)

    def _ingest(self, rows: DataFrame, batch_id: int) -> None:
        started_ms = self._clock.now_ms()
        batch, states = self._attempt(batch_id, lambda: self._identify(batch_id))
        waiting = [name for name, fed in self._fed.items() if not fed.writer.is_done(states[name], batch)]
        staged = self._attempt(batch_id, lambda: read_list(self._storage, batch))
        if not waiting:
            if staged is not None:
                self._attempt(batch_id, partial(delete_list, self._storage, staged))
            self._result.skipped += 1
            self._report(f"batch {batch_id}: committed before, skipped")
            return
        if staged is not None and any(
            topic.topic in waiting and topic.is_outdated(states[topic.topic]) for topic in staged.topics
        ):
            self._attempt(batch_id, partial(delete_list, self._storage, staged))
            staged = None
        already_committed = self._result.already_committed
        if staged is None:
            staged = self._stage(rows, batch, states, started_ms)
        else:
            self._attempt(batch_id, partial(check_list, staged, self._topics, self._fed))
        refused = self._write_dead_letters(staged)
        records, size = self._commit(rows.sparkSession, staged)
        self._result.batches += 1
        self._meter.note(f"batch {batch_id}, {shown_number(self._result.dead_letters.total())} dead letters")
        self._meter.advance(records, size)
        seconds = (self._clock.now_ms() - started_ms) / 1000
        letters = f", {shown_number(refused)} dead letters" if refused else ""
        if already_committed := self._result.already_committed - already_committed:
            letters += f", {shown_number(already_committed)} dropped as committed before"
        self._report(f"batch {batch_id}: {shown_number(records)} records{letters} in {shown_duration(seconds)}")

    def _attempt(self, batch_id: int, work: Callable[[], _T]) -> _T:
        """Do a piece of work of a micro-batch on the storage, and wait for the storage where it is full or away."""
        return self._patience.attempt(f"batch {batch_id}", work)

    def _identify(self, batch_id: int) -> tuple[BatchIdentity, Mapping[str, TopicState]]:
        """Which batch this is, and what the topics are like before it."""
        source = self._source.name if self._source else None
        batch = batch_identity(self._storage, self._settings.checkpoint, self._result.query_id, batch_id, source)
        make_durable(self._storage, self._settings.checkpoint, batch_id)
        return batch, self._newest()

    def _newest(self) -> Mapping[str, TopicState]:
        """What the topics are like now.

        Raises:
            FencedError: another run has taken one of them over.
        """
        return {name: fed.newest() for name, fed in self._fed.items()}

    def _stage(
        self, rows: DataFrame, batch: BatchIdentity, states: Mapping[str, TopicState], now_ms: int
    ) -> StagedBatch:
        """Stage the rows. If a list is put, it may be that of another attempt that counts."""
        if self._result.dropped_fields is not None:
            look = partial(
                self._result.dropped_fields.look, rows.sparkSession, self._storage, self._settings.checkpoint
            )
            for line in self._attempt(batch.batch_id, partial(look, batch.batch_id)):
                self._report(line)
        ends = self._attempt(batch.batch_id, partial(self._ends, batch, states))
        task = StagingTask(
            root=self._storage.uri,
            topics=tuple(self._staging_topic(state, ends, now_ms) for state in states.values()),
            spreads=self._settings.topic_column is not None,
            listed=len(self._fed) > 1,
            positioned=self._source is not None,
            now_ms=now_ms,
            query_id=batch.query,
            batch_id=batch.batch_id,
            schema_setting=self._schema_setting,
        )
        seconds: dict[str, float] = {}
        with self._result.phases.together(seconds, STAGE):
            report = self._attempt(batch.batch_id, partial(self._stager.stage, rows, task))
            seconds.update(report.seconds)
        self._result.already_committed += report.already_committed
        topics = [
            StagedTopic(
                name, state.topic_id, state.configs, report.runs[name], lineage(state, batch),
                self._advance(state, ends, report.highest),
            )
            for name, state in states.items()
        ]  # fmt: skip
        staged = StagedBatch(batch, tuple(topics), report.dead_letters)
        if not staged.needs_list:
            return staged
        found = self._attempt(batch.batch_id, partial(put_list, self._storage, staged))
        if found is not staged:
            self._attempt(batch.batch_id, partial(check_list, found, self._topics, self._fed))
        return found

    def _ends(self, batch: BatchIdentity, states: Mapping[str, TopicState]) -> SourceEnds:
        """Where the source's partitions end in the micro-batch."""
        if self._source is None:
            return SourceEnds()
        ends = self._source.reached(self._storage, self._settings.checkpoint, batch.batch_id)
        for state in states.values():
            positions = positions_of(state, self._source.name)
            if batch.batch_id == 0:
                self._source.check_start(self._storage, self._settings.checkpoint, positions)
            self._result.behind[state.topic] = ends.behind(positions)
        return ends

    def _advance(self, state: TopicState, ends: SourceEnds, highest: Mapping[str, int]) -> Advance | None:
        if self._source is None:
            return None
        return ends.advance(self._source.name, positions_of(state, self._source.name), highest)

    def _staging_topic(self, state: TopicState, ends: SourceEnds, now_ms: int) -> StagingTopic:
        config = self._fed[state.topic].config(state.configs)
        codec, size = self._settings.compression_type, self._settings.batch_size_bytes
        return StagingTopic(
            name=state.topic,
            folder=staging_folder(state.topic_id, state.version),
            partitions=len(state.partitions),
            config=config,
            encoding=Encoding.of(config, now_ms, size, codec),
            positions=ends.as_rows_say(positions_of(state, self._source.name)) if self._source else {},
            schema=self._schemas.get(state.topic),
        )

    def _write_dead_letters(self, staged: StagedBatch) -> int:
        """Bring the dead letters into their tables; returns how many there are."""
        by_topic: dict[str | None, list[StagedDeadLetters]] = {}
        for letters in staged.dead_letters:
            by_topic.setdefault(letters.topic, []).append(letters)
        if by_topic:
            # Who slept while another run made the batch may call rows dead letters that are records by now.
            self._attempt(staged.batch.batch_id, self._newest)
        query = staged.batch.query
        # A checkpoint that went back brings ids of batches again: the guard tells them apart by their lineage.
        apps = {topic.topic: "/".join(filter(None, (topic.topic_id, query, topic.lineage))) for topic in staged.topics}
        lineages = sorted({topic.lineage for topic in staged.topics})
        written: Counter[str] = Counter()
        for name, found in by_topic.items():
            key = UNKNOWN_TOPIC_DEAD_LETTERS if name is None else ingest_dead_letters_key(name)
            app = "/".join(filter(None, (query, *lineages))) if name is None else apps[name]
            who = f"lakelog-ingest/{app}"
            keys = [each.key for each in found]
            self._attempt(
                staged.batch.batch_id,
                partial(append_staged_dead_letters, self._storage, keys, key, who, staged.batch.batch_id),
            )
            reasons = sum((Counter(each.reasons) for each in found), Counter[str]())
            self._result.count_dead_letters(name, reasons)
            written += reasons
        return written.total()

    def _commit(self, spark: SparkSession, staged: StagedBatch) -> tuple[int, int]:
        """Commit what is staged on each topic that lacks it; returns how many records and bytes that were."""
        records = size = 0
        for topic in staged.topics:
            if topic.topic not in self._fed:
                continue  # it has the batch, and is not fed any more
            fed = self._fed[topic.topic]
            fed.writer.config = fed.config(topic.configs)
            topic_size = sum(run.size for run in topic.runs)
            append = partial(self._append, spark, fed, topic, staged.batch, topic_size)
            committed = self._attempt(staged.batch.batch_id, append)
            if not committed.skipped:
                self._result.topics[topic.topic].records += committed.records
                records += committed.records
                size += topic_size
        with self._result.phases.phase(CLEAN_UP):
            delete = delete_list if staged.needs_list else delete_files
            self._attempt(staged.batch.batch_id, partial(delete, self._storage, staged))
        return records, size

    def _append(
        self, spark: SparkSession, fed: FedTopic, topic: StagedTopic, batch: BatchIdentity, size: int
    ) -> Committed:
        """Commit what is staged for one topic."""
        publisher = publisher_of(spark, self._storage, size, self._settings.publish_spark_bytes)
        return fed.writer.append(by_partition(topic.runs), batch, topic.advance, publisher)
