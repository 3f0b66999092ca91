"""Stages the rows of one micro-batch of an ingest, and commits them on each topic exactly once.

The steps, in this order:

    1. check whether the batch is committed already, after a crash between the topic's commit and Spark's commit
    2. stage the rows
    3. write the list of staged files
    4. write the dead letters
    5. commit on each topic
    6. delete the staged files

After a crash Spark runs the batch again. If the list was written, the new run uses the files in the list. If not, the
new run stages the rows again and ignores the old files. Dead letters that are already in their tables are not written
again, because Delta's guard recognizes the batch. Topics that have committed the batch are skipped. A list is written
only if there are dead letters or more than one topic (storage_engine/topic/append/staged_list.py). Otherwise the batch
is a single commit and needs no list.

Every step that uses the storage can be repeated, and waits while the storage is full or unreachable (storage_retry.py).

If the positions of the source are stored (source_positions.py), a checkpoint that is new or was rolled back is also
accepted. Then staging skips rows at or below the stored positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession

from lakelog.dead_letter_tables import UNKNOWN_TOPIC_DEAD_LETTERS, ingest_dead_letters_key
from lakelog.spark.sink.streaming_checkpoint import batch_identity, make_durable
from pipeline.delta.dead_letters import append_staged_dead_letters
from pipeline.ingest.batch_stager import BatchStager
from pipeline.ingest.ingest_topic import IngestTopic
from pipeline.ingest.rows.dropped_fields import DroppedFields
from pipeline.ingest.source_positions import PositionedSource, SourceEnds
from pipeline.ingest.spark_publisher import publisher_of
from pipeline.ingest.staging_task import StagingTask, StagingTopic
from pipeline.ingest.storage_retry import StorageRetry
from pipeline.model_changes import NO_SCHEMAS, TopicSchemas
from pipeline.settings import IngestSettings
from storage_engine.phases import Phases, rounded
from storage_engine.progress import Meter
from storage_engine.quantities import shown_duration, shown_number
from storage_engine.topic.append.appending import Encoding
from storage_engine.topic.append.committed_positions import Advance, positions_of
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
from storage_engine.topic.append.staged_run import STAGE, by_partition, staging_folder
from storage_engine.topic.append.topic_writer import BatchIdentity, Committed, lineage
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.topics import Topics

_T = TypeVar("_T")
CLEAN_UP = "clean up"
"""The phase after the last commit of a micro-batch."""


@dataclass
class TopicResult:
    """The result of an ingest for one topic.

    epoch: the epoch of the ingest's commits.
    records: number of appended records.
    dead_letters: by reason, the number of rows for this topic that became dead letters.
    """

    epoch: int
    records: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)


@dataclass
class IngestResult:
    """The result of an ingest.

    batches: number of batches that this run committed on at least one topic.
    skipped: number of batches that an earlier run had committed.
    already_committed: number of rows that were skipped, because the positions show that these rows are committed.
    behind: by topic, the source partitions in which the checkpoint is behind the stored position.
    without_topic: by reason, the number of dead letters whose topic is unknown.
    dropped_fields: the fields that are not in the source's schema; None if the source drops no fields.
    notes: lines for the operator.
    phases: the time of the micro-batches by phase.
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
        """Count dead letters that are in their table. Dead letters of a topic that is no longer fed were counted by an
        earlier run."""
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
        ingest_topics: Mapping[str, IngestTopic],
        result: IngestResult,
        report: Callable[[str], None],
        meter: Meter,
        storage_retry: StorageRetry,
        schemas: Mapping[str, TopicSchemas],
        schema_setting: str,
    ) -> None:
        """
        Args:
            source: the source whose positions are stored, or None.
            ingest_topics: the topics by name, in the order of their commits.
            result: is updated after each step.
            report: receives a line after each micro-batch.
            storage_retry: waits while the storage is full or unreachable.
            schemas: by topic, the schema that checks values; topics without checks are missing.
            schema_setting: the setting that gives the source's schema.
        """
        self._topics = topics
        self._storage = topics.storage
        self._clock = topics.clock
        self._settings = settings
        self._source = source
        self._ingest_topics = ingest_topics
        self._result = result
        self._report = report
        self._meter = meter
        self._storage_retry = storage_retry
        self._schemas = schemas
        self._schema_setting = schema_setting
        self._stager = BatchStager(topics.storage)
        self._lookups = ThreadPoolExecutor(1)
        self._may_be_repeated = True  # Spark runs only the first batch of a run again
        for each in ingest_topics.values():
            each.writer.phases = result.phases

    def ingest(self, rows: DataFrame, batch_id: int) -> None:
        """Stage and commit one micro-batch on the topics that lack it."""
        with self._result.phases.phase("other"):
            self._ingest(rows, batch_id)

    def _ingest(self, rows: DataFrame, batch_id: int) -> None:
        started_ms = self._clock.now_ms()
        batch, states = self._attempt(batch_id, lambda: self._identify(batch_id))
        waiting = [name for name, each in self._ingest_topics.items() if not each.writer.is_done(states[name], batch)]
        staged = self._attempt(batch_id, lambda: read_list(self._storage, batch)) if self._may_be_repeated else None
        self._may_be_repeated = False
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
            self._attempt(batch_id, partial(check_list, staged, self._topics, self._ingest_topics))
        refused = self._write_dead_letters(staged)
        records, size = self._commit(rows.sparkSession, staged)
        self._result.batches += 1
        self._meter.note(f"batch {batch_id}, {shown_number(self._result.dead_letters.total())} dead letters")
        self._meter.advance(records, size)
        seconds = (self._clock.now_ms() - started_ms) / 1000
        self._meter.figure("batches", self._result.batches)
        self._meter.figure("batch_seconds", seconds)
        self._meter.figure("phase_seconds", rounded(self._result.phases.seconds))
        self._meter.figure("dead_letters", dict(self._result.dead_letters))
        letters = f", {shown_number(refused)} dead letters" if refused else ""
        if already_committed := self._result.already_committed - already_committed:
            letters += f", {shown_number(already_committed)} dropped as committed before"
        self._report(f"batch {batch_id}: {shown_number(records)} records{letters} in {shown_duration(seconds)}")

    def _attempt(self, batch_id: int, work: Callable[[], _T]) -> _T:
        """Do a step of a micro-batch. If the storage is full or unreachable, wait and repeat the step."""
        return self._storage_retry.attempt(f"batch {batch_id}", work)

    def _identify(self, batch_id: int) -> tuple[BatchIdentity, Mapping[str, TopicState]]:
        """The identity of the batch, and the states of the topics before the batch."""
        source = self._source.name if self._source else None
        identity = self._lookups.submit(
            batch_identity, self._storage, self._settings.checkpoint, self._result.query_id, batch_id, source
        )
        try:
            states = {name: each.likely_newest() for name, each in self._ingest_topics.items()}
            make_durable(self._storage, self._settings.checkpoint, batch_id)
        finally:
            wait([identity])
        return identity.result(), states

    def _newest(self) -> Mapping[str, TopicState]:
        """The newest states of the topics.

        Raises:
            FencedError: another run has taken a topic over.
        """
        return {name: each.newest() for name, each in self._ingest_topics.items()}

    def _stage(
        self, rows: DataFrame, batch: BatchIdentity, states: Mapping[str, TopicState], now_ms: int
    ) -> StagedBatch:
        """Stage the rows. If an earlier attempt has written a list, the result is the batch of that list."""
        if self._result.dropped_fields is not None:
            look = partial(
                self._result.dropped_fields.look, rows.sparkSession, self._storage, self._settings.checkpoint
            )
            for line in self._attempt(batch.batch_id, partial(look, batch.batch_id)):
                self._report(line)
        for each in self._ingest_topics.values():
            if not each.was_published_by_spark:  # a Spark job continues no segment
                each.writer.prepare()  # while Spark stages the rows
        ends = self._attempt(batch.batch_id, partial(self._ends, batch, states))
        task = StagingTask(
            root=self._storage.uri,
            topics=tuple(self._staging_topic(state, ends, now_ms) for state in states.values()),
            spreads=self._settings.topic_column is not None,
            listed=len(self._ingest_topics) > 1,
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
            self._attempt(batch.batch_id, partial(check_list, found, self._topics, self._ingest_topics))
        return found

    def _ends(self, batch: BatchIdentity, states: Mapping[str, TopicState]) -> SourceEnds:
        """The end offsets of the source's partitions in this micro-batch."""
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
        config = self._ingest_topics[state.topic].config(state.configs)
        codec, size = self._settings.compression_type, self._settings.batch_size_bytes
        return StagingTopic(
            name=state.topic,
            folder=staging_folder(state.topic_id, state.version),
            partitions=len(state.partitions),
            config=config,
            encoding=Encoding.of(config, now_ms, size, codec),
            positions=ends.as_rows_say(positions_of(state, self._source.name)) if self._source else {},
            schemas=self._schemas.get(state.topic, NO_SCHEMAS),
        )

    def _write_dead_letters(self, staged: StagedBatch) -> int:
        """Write the dead letters into their tables; returns their number."""
        by_topic: dict[str | None, list[StagedDeadLetters]] = {}
        for letters in staged.dead_letters:
            by_topic.setdefault(letters.topic, []).append(letters)
        if by_topic:
            # If this run was paused while another run committed the batch, rows that are already records must not
            # become dead letters.
            self._attempt(staged.batch.batch_id, self._newest)
        query = staged.batch.query
        # A checkpoint that was rolled back repeats batch ids. The lineage in the guard's application id distinguishes
        # the batches.
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
        """Commit the staged runs on each topic that lacks the batch; returns the number of committed records and bytes."""
        records = size = 0
        for topic in staged.topics:
            if topic.topic not in self._ingest_topics:
                continue  # the topic already has the batch, and this ingest does not feed the topic any more
            ingest_topic = self._ingest_topics[topic.topic]
            ingest_topic.writer.config = ingest_topic.config(topic.configs)
            topic_size = sum(run.size for run in topic.runs)
            append = partial(self._append, spark, ingest_topic, topic, staged.batch, topic_size)
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
        self, spark: SparkSession, ingest_topic: IngestTopic, topic: StagedTopic, batch: BatchIdentity, size: int
    ) -> Committed:
        """Commit the staged runs of one topic."""
        publisher = publisher_of(spark, self._storage, size, self._settings.publish_spark_bytes)
        if size:
            if ingest_topic.was_published_by_spark and publisher is None:
                ingest_topic.writer.prepare()
            ingest_topic.was_published_by_spark = publisher is not None
        runs = by_partition(topic.runs)
        return ingest_topic.writer.append(runs, batch, topic.advance, publisher, is_state_fresh=True)
