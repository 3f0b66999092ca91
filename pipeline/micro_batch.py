"""One micro-batch of an ingest: from the rows that Spark hands over to a commit on each topic, exactly once.

In this order: is it committed already (a crash between our commit and Spark's), stage, the list of what is staged, dead
letters, the commits, delete what was staged. A crash anywhere leaves bytes that nobody reads, a list that the replay
goes by, dead letters that it finds (Delta's guard knows the batch), or commits that it passes over. The list is for several
topics, or dead letters (storage_engine/topic/staged_list.py): one commit that is all there is needs none.

Where the source's positions are kept (pipeline/positions.py), a micro-batch may also come from a checkpoint that is new or
has gone back: staging leaves the rows out that their positions tell to be committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from pipeline.dead_letters import append_staged_dead_letters
from pipeline.dropped_fields import DroppedFields
from pipeline.fed_topic import FedTopic
from pipeline.positions import PositionedSource, SourceEnds
from pipeline.publishing import publisher_of
from pipeline.query_checkpoint import batch_identity, make_durable
from pipeline.settings import IngestSettings
from pipeline.staging import BatchStager
from pipeline.staging_task import StagingTask, StagingTopic
from pipeline.storage_patience import StoragePatience
from storage_engine.dead_letter_tables import UNKNOWN_TOPIC_DEAD_LETTERS, ingest_dead_letters_key
from storage_engine.phases import Phases
from storage_engine.progress import Meter
from storage_engine.quantities import shown_duration, shown_number
from storage_engine.topic.appending import Encoding
from storage_engine.topic.positions import Advance, positions_of
from storage_engine.topic.publishing import BatchIdentity, Committed, lineage
from storage_engine.topic.staged_list import (
    StagedDeadLetters,
    StagedList,
    StagedTopic,
    check_list,
    delete_files,
    delete_list,
    put_list,
    read_list,
)
from storage_engine.topic.staging import STAGE, by_partition, staging_folder
from storage_engine.topic.state import TopicState
from storage_engine.topic.topics import Topics

CLEAN_UP = "clean up"
"""The phase behind the last commit of a micro-batch."""


@dataclass
class TopicResult:
    """What one topic got. dead_letters: by reason, of rows that were to go to it."""

    epoch: int
    records: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)


@dataclass
class IngestResult:
    """What an ingest did.

    batches: those that this run committed, on one topic at least. skipped: those that an earlier run had committed.
    left_out: rows that were committed before, by their positions. behind: by topic, the source partitions that have not
    come to where it is committed. without_topic: by reason, dead letters of which nobody can tell the topic. dropped_fields:
    those that the source's schema does not name; None of a source that drops none. notes: what an operator should know.
    phases: where the time of the micro-batches went.
    """

    query_id: str
    topics: Mapping[str, TopicResult]
    batches: int = 0
    skipped: int = 0
    left_out: int = 0
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
        models: Mapping[str, str],
        schema_setting: str,
    ) -> None:
        """
        Args:
            source: whose positions are kept.
            fed: by name, in the order in which they are committed.
            result: is kept up to date.
            report: is given a line after each micro-batch.
            patience: waits where the storage is full or away.
            models: by topic, the name of the model that values are held against, where they are.
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
        self._models = models
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
        label = f"batch {batch_id}"
        batch, states = self._patience.attempt(label, lambda: self._looked_at(batch_id))
        waiting = [name for name, fed in self._fed.items() if not fed.writer.is_done(states[name], batch)]
        listed = self._patience.attempt(label, lambda: read_list(self._storage, batch))
        if not waiting:
            if listed is not None:
                delete_list(self._storage, listed)
            self._result.skipped += 1
            self._report(f"batch {batch_id}: committed before, skipped")
            return
        if listed is not None and any(
            topic.topic in waiting and topic.is_outdated(states[topic.topic]) for topic in listed.topics
        ):
            delete_list(self._storage, listed)
            listed = None
        left_out = self._result.left_out
        if listed is None:
            listed = self._stage(rows, batch, states, started_ms)
        else:
            check_list(listed, self._topics, self._fed)
        refused = self._write_dead_letters(listed)
        records, size = self._commit(rows.sparkSession, listed)
        self._result.batches += 1
        self._meter.note(f"batch {batch_id}, {shown_number(self._result.dead_letters.total())} dead letters")
        self._meter.advance(records, size)
        seconds = (self._clock.now_ms() - started_ms) / 1000
        letters = f", {shown_number(refused)} dead letters" if refused else ""
        if left_out := self._result.left_out - left_out:
            letters += f", {shown_number(left_out)} dropped as committed before"
        self._report(f"batch {batch_id}: {shown_number(records)} records{letters} in {shown_duration(seconds)}")

    def _looked_at(self, batch_id: int) -> tuple[BatchIdentity, Mapping[str, TopicState]]:
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
    ) -> StagedList:
        """Stage the rows. Where a list is put, it may be that of another attempt that counts."""
        label = f"batch {batch.batch_id}"
        if self._result.dropped_fields is not None:
            look = partial(
                self._result.dropped_fields.look, rows.sparkSession, self._storage, self._settings.checkpoint
            )
            for line in self._patience.attempt(label, partial(look, batch.batch_id)):
                self._report(line)
        ends = self._patience.attempt(label, partial(self._ends, batch, states))
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
            staged = self._patience.attempt(label, partial(self._stager.stage, rows, task))
            seconds.update(staged.seconds)
        self._result.left_out += staged.left_out
        topics = [
            StagedTopic(
                name, state.topic_id, state.configs, staged.runs[name], lineage(state, batch),
                self._advance(state, ends, staged.highest),
            )
            for name, state in states.items()
        ]  # fmt: skip
        listed = StagedList(batch, tuple(topics), staged.dead_letters)
        if not listed.needs_list:
            return listed
        counts = self._patience.attempt(label, partial(put_list, self._storage, listed))
        if counts is not listed:
            check_list(counts, self._topics, self._fed)
        return counts

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
            model=self._models.get(state.topic),
        )

    def _write_dead_letters(self, listed: StagedList) -> int:
        """Bring the dead letters into their tables; returns how many there are."""
        by_topic: dict[str | None, list[StagedDeadLetters]] = {}
        for letters in listed.dead_letters:
            by_topic.setdefault(letters.topic, []).append(letters)
        if by_topic:
            # Who slept while another run made the batch may call rows dead letters that are records by now.
            self._patience.attempt(f"batch {listed.batch.batch_id}", self._newest)
        query = listed.batch.query
        # A checkpoint that went back brings ids of batches again: the guard tells them apart by their lineage.
        apps = {topic.topic: "/".join(filter(None, (topic.topic_id, query, topic.lineage))) for topic in listed.topics}
        lineages = sorted({topic.lineage for topic in listed.topics})
        written: Counter[str] = Counter()
        for name, found in by_topic.items():
            key = UNKNOWN_TOPIC_DEAD_LETTERS if name is None else ingest_dead_letters_key(name)
            app = "/".join(filter(None, (query, *lineages))) if name is None else apps[name]
            who = f"lakelog-ingest/{app}"
            keys = [each.key for each in found]
            self._patience.attempt(
                f"batch {listed.batch.batch_id}",
                partial(append_staged_dead_letters, self._storage, keys, key, who, listed.batch.batch_id),
            )
            reasons = sum((Counter(each.reasons) for each in found), Counter[str]())
            self._result.count_dead_letters(name, reasons)
            written += reasons
        return written.total()

    def _commit(self, spark: SparkSession, listed: StagedList) -> tuple[int, int]:
        """Commit what is staged on each topic that lacks it; returns how many records and bytes that were."""
        records = size = 0
        for topic in listed.topics:
            if topic.topic not in self._fed:
                continue  # it has the batch, and is not fed any more
            fed = self._fed[topic.topic]
            fed.writer.config = fed.config(topic.configs)
            staged = sum(run.size for run in topic.runs)
            append = partial(self._append, spark, fed, topic, listed.batch, staged)
            committed = self._patience.attempt(f"batch {listed.batch.batch_id}", append)
            if not committed.skipped:
                self._result.topics[topic.topic].records += committed.records
                records += committed.records
                size += staged
        with self._result.phases.phase(CLEAN_UP):
            delete = delete_list if listed.needs_list else delete_files
            self._patience.attempt(f"batch {listed.batch.batch_id}", partial(delete, self._storage, listed))
        return records, size

    def _append(
        self, spark: SparkSession, fed: FedTopic, topic: StagedTopic, batch: BatchIdentity, size: int
    ) -> Committed:
        """Commit what is staged for one topic."""
        publisher = publisher_of(spark, self._storage, size, self._settings.publish_spark_bytes)
        return fed.writer.append(by_partition(topic.runs), batch, topic.advance, publisher)
