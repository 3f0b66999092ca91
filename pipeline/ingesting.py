"""The ingest of one topic: a stream's micro-batches become commits, each exactly once.

Per micro-batch, in this order: is it committed already (a crash between our commit and Spark's), stage, dead letters,
commit, delete what was staged. A crash anywhere leaves bytes that nobody reads, dead letters that the replay finds
(Delta's guard knows the batch), or a commit that the replay skips.

A batch is the query's id, Spark's batch id, and a hash of the offsets file that Spark writes once per batch before it
runs it. The query's id stands in the checkpoint; it is put there before Spark looks, so that the topic can be taken
over in the query's name before the first batch.
"""

from __future__ import annotations

import hashlib
import json
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pipeline.dead_letters import append_staged_dead_letters
from pipeline.progress import records_behind
from pipeline.rows import record_rows
from pipeline.session import start_python_daemon
from pipeline.settings import Settings
from pipeline.source import source_rows
from pipeline.spark_failures import SPARK_ERRORS, failure_reason, planning_reason
from pipeline.staging import BatchStager, StagedBatch, StagingTask
from storage_engine.dead_letter_tables import ingest_dead_letters_key
from storage_engine.errors import AlreadyExistsError, CorruptionError, LogError, NotFoundError
from storage_engine.progress import Meter
from storage_engine.quantities import shown_duration, shown_number
from storage_engine.storage import Storage
from storage_engine.topic.appending import Encoding
from storage_engine.topic.publishing import BatchIdentity, TopicWriter, check_epoch, take_over
from storage_engine.topic.staging import by_partition, staging_folder
from storage_engine.topic.state import TopicState
from storage_engine.topic.topics import Topics
from storage_engine.topic.view import hold_lock

_LOOK_SECONDS = 1
"""How often a running ingest looks whether it was fenced or asked to stop."""


class IngestError(LogError):
    """Spark ended the stream for a reason of its own."""


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


def prepare_topic(topics: Topics, settings: Settings) -> tuple[TopicState, list[str]]:
    """The topic of the ingest section: as it is, or created as the settings describe it.

    Returns:
        Its state, and a line for each setting that differs from it: the state counts.

    Raises:
        ConfigError: it is neither in the root nor in the settings.
    """
    name = settings.required_ingest().topic
    state = topics.find(name)
    if state is None:
        definition = settings.topic_definition(name)
        return topics.create(name, definition.partitions, definition.overrides), []
    if name not in settings.topics:
        return state, []
    definition = settings.topic_definition(name)
    notes = []
    if definition.partitions_given and definition.partitions != len(state.partitions):
        notes.append(
            f"topic {name} has {len(state.partitions)} partitions, the settings say {definition.partitions}:"
            f" `lakelog topics alter {name} --partitions N` adds some"
        )
    for key in sorted(definition.overrides.keys() | state.configs.keys()):
        wanted, found = definition.overrides.get(key), state.configs.get(key)
        if wanted is not None and wanted != found:
            notes.append(
                f"topic {name} has {key}={found or 'the default'}, the settings say {wanted}:"
                f" `lakelog topics alter {name} --config {key}={wanted}` changes it"
            )
    return state, notes


class Ingest:
    """One run of the ingest job."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        topics: Topics,
        report: Callable[[str], None],
        take_over_others: bool = False,
        meter: Meter | None = None,
    ) -> None:
        """
        Args:
            report: is given a line after each micro-batch.
            take_over_others: replace the topic's recorded writer, if it is another query.
            meter: is told what is committed, and how far the source is ahead, where the source says so.
        """
        self._spark = spark
        self._settings = settings
        self._ingest = settings.required_ingest()
        self._topics = topics
        self._storage: Storage = topics.storage
        self._stager = BatchStager(topics.storage)
        self._report = report
        self._take_over_others = take_over_others
        self._meter = meter or Meter("ingest", topics.clock)
        self._failure: BaseException | None = None
        self._stop = threading.Event()

    def run(self) -> IngestResult:
        """Run the stream: to its present end for available-now, else until it is stopped.

        Raises:
            FencedError: another ingest has taken the topic over.
            LogError: nothing of the batch in question was committed.
        """
        start_python_daemon(self._spark)
        state, notes = prepare_topic(self._topics, self._settings)
        config = self._topics.config(state)
        rows = record_rows(source_rows(self._spark, self._settings), self._settings, config)
        query_id = query_id_of(self._storage, self._ingest.checkpoint)
        self._chain = self._topics.chain(self._ingest.topic)
        self._looking = self._topics.chain(self._ingest.topic)  # a chain belongs to one thread
        self._epoch = take_over(self._chain, query_id, self._take_over_others).writer.epoch
        self._writer = TopicWriter(self._storage, self._chain, config, self._topics.clock, self._epoch)
        self._result = IngestResult(self._ingest.topic, query_id, self._epoch, notes=notes)
        stream = rows.writeStream.foreachBatch(self._on_batch).option(
            "checkpointLocation", f"{self._storage.uri}/{self._ingest.checkpoint}"
        )
        interval = self._ingest.processing_time
        stream = stream.trigger(processingTime=interval) if interval else stream.trigger(availableNow=True)
        try:
            with self._until_signalled(), hold_lock(self._storage):
                self._await(stream.queryName(f"ingest {self._ingest.topic}").start())
        finally:
            self._writer.close()
        return self._result

    def _await(self, query: StreamingQuery) -> None:
        stop_noticed = False
        try:
            while not query.awaitTermination(_LOOK_SECONDS):
                self._check_fenced()
                if progress := query.lastProgress:
                    self._meter.expect(records_behind(progress.sources))
                if self._stop.is_set() and not stop_noticed:
                    stop_noticed = True
                    self._report("stopping after the current micro-batch; once more stops at once")
                if self._stop.is_set() and not query.status["isTriggerActive"]:
                    return
        except StreamingQueryException as error:
            if isinstance(self._failure, SPARK_ERRORS):
                raise IngestError(
                    f"ingest of {self._ingest.topic}", f"a micro-batch failed: {failure_reason(self._failure)}",
                    "Nothing of it was committed. If a file cannot be read, compare it with ingest.source.schema"
                    f" ({self._settings.place_of('ingest.source')}) or take it away, and start again.",
                ) from self._failure  # fmt: skip
            if self._failure is not None:
                raise self._failure from error
            # Two runs of one query stumble over each other's checkpoint before they meet in the topic's state.
            self._check_fenced()
            raise IngestError(
                f"ingest of {self._ingest.topic}", f"Spark ended the stream: {planning_reason(error)}",
                "What was committed stays; started again it goes on behind it.",
            ) from error  # fmt: skip
        finally:
            if query.isActive:
                query.stop()

    def _check_fenced(self) -> None:
        check_epoch(self._looking.newest(), self._epoch)

    def _on_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Spark calls this from a thread of its own, one micro-batch at a time."""
        try:
            self._ingest_batch(rows, batch_id)
        except BaseException as error:
            self._failure = error  # Spark passes on its text only
            raise

    def _ingest_batch(self, rows: DataFrame, batch_id: int) -> None:
        started_ms = self._topics.clock.now_ms()
        batch = BatchIdentity(self._result.query_id, batch_id, self._offsets_hash(batch_id))
        state = self._chain.newest()
        if self._writer.is_done(state, batch):
            self._result.skipped += 1
            self._report(f"batch {batch_id}: committed before, skipped")
            return
        config = self._topics.config(state)
        task = StagingTask(
            root=self._storage.uri,
            folder=staging_folder(state.topic_id, f"{batch.query}/{batch_id}"),
            topic=state.topic,
            partitions=len(state.partitions),
            config=config,
            encoding=Encoding.of(config, started_ms, self._ingest.batch_size_bytes, self._ingest.compression_type),
            now_ms=started_ms,
            query_id=batch.query,
            batch_id=batch_id,
        )
        staged = self._stager.stage(rows, task)
        self._write_dead_letters(staged, batch, state)
        self._writer.config = config
        committed = self._writer.append(by_partition(staged.runs), batch)
        self._stager.delete(staged)
        self._result.batches += 1
        self._result.records += committed.records
        self._result.dead_letters += staged.reasons
        self._meter.note(f"batch {batch_id}, {shown_number(self._result.dead_letters.total())} dead letters")
        self._meter.advance(committed.records, sum(run.size for run in staged.runs))
        seconds = (self._topics.clock.now_ms() - started_ms) / 1000
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

    def _offsets_hash(self, batch_id: int) -> str:
        offsets = self._storage.read(f"{self._ingest.checkpoint}/offsets/{batch_id}")
        return hashlib.sha256(offsets).hexdigest()

    @contextmanager
    def _until_signalled(self) -> Iterator[None]:
        """Let SIGTERM and Ctrl-C end the run after the micro-batch that is under way; a second one ends it at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(_number: int, _frame: FrameType | None) -> None:
            if self._stop.is_set():
                raise KeyboardInterrupt
            self._stop.set()

        previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def query_id_of(storage: Storage, checkpoint: str) -> str:
    """The query's id in a checkpoint, which is given one where it has none. Spark takes it from there.

    Raises:
        CorruptionError: the checkpoint's metadata file holds no id.
    """
    key = f"{checkpoint}/metadata"
    with suppress(AlreadyExistsError):
        try:
            return _query_id(storage, key)
        except NotFoundError:
            storage.put_new(key, json.dumps({"id": str(uuid.uuid4())}).encode())
    return _query_id(storage, key)


def _query_id(storage: Storage, key: str) -> str:
    try:
        return str(uuid.UUID(json.loads(storage.read(key))["id"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(key, 0, "a query's id as Spark writes it", "something else", "Restore it.") from error
