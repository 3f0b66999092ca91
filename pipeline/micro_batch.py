"""One micro-batch of an ingest: from the rows that Spark hands over to a commit, exactly once.

In this order: is it committed already (a crash between our commit and Spark's), stage, dead letters, commit, delete
what was staged. A crash anywhere leaves bytes that nobody reads, dead letters that the replay finds (Delta's guard
knows the batch), or a commit that the replay skips.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from pipeline.dead_letters import append_staged_dead_letters
from pipeline.fed_topic import FedTopic
from pipeline.publishing import publisher_of
from pipeline.query_checkpoint import batch_identity
from pipeline.settings import IngestSettings
from pipeline.staging import BatchStager, StagedBatch, StagingTask
from storage_engine.clock import Clock
from storage_engine.dead_letter_tables import ingest_dead_letters_key
from storage_engine.progress import Meter
from storage_engine.quantities import shown_duration, shown_number
from storage_engine.storage import Storage
from storage_engine.topic.appending import Encoding
from storage_engine.topic.publishing import BatchIdentity
from storage_engine.topic.staging import by_partition, staging_folder
from storage_engine.topic.state import TopicState


@dataclass
class IngestResult:
    """What an ingest did. dead_letters: by reason. skipped: batches that an earlier run had committed."""

    topic: str
    query_id: str = ""
    epoch: int = 0
    batches: int = 0
    skipped: int = 0
    records: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


class MicroBatches:
    """The micro-batches of one query, one after another."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        settings: IngestSettings,
        fed: FedTopic,
        result: IngestResult,
        report: Callable[[str], None],
        meter: Meter,
    ) -> None:
        """
        Args:
            result: is kept up to date.
            report: is given a line after each micro-batch.
        """
        self._storage = storage
        self._clock = clock
        self._settings = settings
        self._fed = fed
        self._result = result
        self._report = report
        self._meter = meter
        self._stager = BatchStager(storage)

    def ingest(self, rows: DataFrame, batch_id: int) -> None:
        """Stage and commit one micro-batch, unless it is committed."""
        started_ms = self._clock.now_ms()
        batch = batch_identity(self._storage, self._settings.checkpoint, self._result.query_id, batch_id)
        state = self._fed.newest()
        if self._fed.writer.is_done(state, batch):
            self._result.skipped += 1
            self._report(f"batch {batch_id}: committed before, skipped")
            return
        config = self._fed.config(state)
        task = StagingTask(
            root=self._storage.uri,
            folder=staging_folder(state.topic_id, f"{batch.query}/{batch_id}"),
            topic=state.topic,
            partitions=len(state.partitions),
            config=config,
            encoding=Encoding.of(config, started_ms, self._settings.batch_size_bytes, self._settings.compression_type),
            now_ms=started_ms,
            query_id=batch.query,
            batch_id=batch_id,
        )
        staged = self._stager.stage(rows, task)
        self._write_dead_letters(staged, batch, state)
        self._fed.writer.config = config
        size = sum(run.size for run in staged.runs)
        publisher = publisher_of(rows.sparkSession, self._storage, size, self._settings.publish_spark_bytes)
        committed = self._fed.writer.append(by_partition(staged.runs), batch, publisher=publisher)
        self._stager.delete(staged)
        self._result.batches += 1
        self._result.records += committed.records
        self._result.dead_letters += staged.reasons
        self._meter.note(f"batch {batch_id}, {shown_number(self._result.dead_letters.total())} dead letters")
        self._meter.advance(committed.records, size)
        seconds = (self._clock.now_ms() - started_ms) / 1000
        refused = f", {shown_number(staged.reasons.total())} dead letters" if staged.dead_letters else ""
        records = shown_number(committed.records)
        self._report(f"batch {batch_id}: {records} records{refused} in {shown_duration(seconds)}")

    def _write_dead_letters(self, staged: StagedBatch, batch: BatchIdentity, state: TopicState) -> None:
        if not staged.dead_letters:
            return
        append_staged_dead_letters(
            self._storage,
            [letters.key for letters in staged.dead_letters],
            ingest_dead_letters_key(state.topic),
            f"lakelog-ingest/{state.topic_id}/{batch.query}",
            batch.batch_id,
        )
