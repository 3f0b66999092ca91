"""Runs an ingest into one or more topics: commits each micro-batch of a stream exactly once.

    query_checkpoint.py   the query's id and a batch's identity, from Spark's checkpoint; is it the right checkpoint
    claim.py              may the query take the topics over
    source_positions.py   the positions of rows in their source: which rows are committed, without a checkpoint
    fed_topic.py          a topic: created if it is missing, and taken over
    rows/                 the rows that the stream reads, and the records made from them
    micro_batch.py        one micro-batch: staged, then committed on each topic
    storage_patience.py   waits for a storage that is full or unreachable
    stop_request.py       SIGTERM and Ctrl-C

This module joins these parts, and watches the stream until it ends, is asked to stop, fails, or is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lakelog.spark.task_progress import records_behind
from pipeline.ingest.claim import Claim, ClaimRequest, decide_claim
from pipeline.ingest.fed_topic import PlannedTopic, make_topic, plan_topic, settle_lists, take_over_all
from pipeline.ingest.micro_batch import IngestResult, MicroBatches, TopicResult
from pipeline.ingest.query_checkpoint import CheckpointFiles, checkpoint_files, look_at_checkpoint, query_id_of
from pipeline.ingest.rows.dropped_fields import DroppedFields
from pipeline.ingest.rows.record_rows import record_rows
from pipeline.ingest.rows.source import SourceRows, reads_files, shown_source, source_rows
from pipeline.ingest.source_positions import PositionedSource
from pipeline.ingest.stop_request import StopRequest
from pipeline.ingest.storage_patience import StoragePatience
from pipeline.settings import Settings
from pipeline.spark.failures import SPARK_ERRORS, failure_reason, missing_python, stream_reason
from pipeline.spark.session import start_python_daemon
from pipeline.topic_model import changed_model, record_model, topic_schema
from schemas.event_schema import EventSchema
from storage_engine.errors import ConfigError, LogError, StorageError, TopicExistsError
from storage_engine.progress import Meter
from storage_engine.quantities import counted
from storage_engine.topic.chain.state import RecordedModel, TopicState
from storage_engine.topic.kafka.view_folder import hold_lock
from storage_engine.topic.topics import Topics

_LOOK_SECONDS = 1
"""How often a running ingest looks whether it was fenced or asked to stop."""
_NAMED = 3
"""So many source partitions are named in a note."""


class IngestError(LogError):
    """Spark ended the stream for a reason of its own."""


@dataclass(frozen=True)
class _Planned:
    """The plan of an ingest.

    models: by topic, the model to record. files: those of the checkpoint. read: the source's rows. rows: the records.
    """

    topics: Sequence[PlannedTopic]
    models: Mapping[str, RecordedModel | None]
    files: CheckpointFiles
    read: SourceRows
    rows: DataFrame


class Ingest:
    """One run of the ingest job."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        topics: Topics,
        report: Callable[[str], None],
        take_over_others: bool = False,
        accept_new_checkpoint: bool = False,
        accept_schema: bool = False,
        meter: Meter | None = None,
    ) -> None:
        """
        Args:
            report: is given a line after each micro-batch.
            take_over_others: replace the topic's recorded writer, if it is another query.
            accept_new_checkpoint: accept a checkpoint that would be refused as new, copied or rolled back, and drop the
                record of what earlier queries have committed.
            accept_schema: accept a change of a topic's model that keeps readers from reading older records.
            meter: is given what is committed, and how far the source is ahead if the source says so.
        """
        self._spark = spark
        self._settings = settings
        self._ingest = settings.required_ingest()
        self._topics = topics
        self._report = report
        self._take_over_others = take_over_others
        self._accept_new_checkpoint = accept_new_checkpoint
        self._accept_schema = accept_schema
        self._meter = meter or Meter("ingest", topics.clock)
        self._failure: BaseException | None = None
        self._stop = StopRequest()
        self._query: StreamingQuery | None = None

    def run(self) -> IngestResult:
        """Run the stream: to its present end for available-now, else until it is stopped.

        Raises:
            FencedError: another ingest has taken the topic, or one of them, over.
            CheckpointError, WriterRefusedError: the checkpoint is not the one that fed the topic; says what to do.
            LogError: nothing of the batch in question was committed.
        """
        start_python_daemon(self._spark)
        storage = self._topics.storage
        schemas = self._schemas_to_validate()
        source = PositionedSource.of(self._settings)
        while True:
            planned = self._plan(source)
            # Nothing was changed until here: settings that cannot be leave no topic that they would describe.
            # A topic that another process made since it was planned may not fit these settings: it is planned again.
            with suppress(TopicExistsError):
                states = [make_topic(self._topics, self._settings, topic) for topic in planned.topics]
                break
        query_id = query_id_of(storage, self._ingest.checkpoint, states)
        claim = self._claim(query_id, states, planned.files, source)
        left = settle_lists(self._topics, query_id, self._ingest.fed_topics, claim.source)
        self._fed = take_over_all(self._topics, self._ingest.fed_topics, claim)
        for state in states:
            if (wanted := planned.models[state.topic]) is not None:
                record_model(self._topics, state, wanted)
        result = IngestResult(query_id, {name: TopicResult(fed.epoch) for name, fed in self._fed.items()})
        result.dropped_fields = DroppedFields.of(self._settings, planned.read)
        result.notes += [note for topic in planned.topics for note in topic.notes] + left
        patience = StoragePatience(self._ingest.storage_retry_timeout_ms, self._stop.wait, self._report)
        self._batches = MicroBatches(
            self._topics,
            self._ingest,
            source,
            self._fed,
            result,
            self._report,
            self._meter,
            patience,
            schemas,
            self._settings.source_schema_setting,
        )
        try:
            with self._stop.listening(), hold_lock(storage):
                self._query = self._stream(planned.rows).start()
                self._await(self._query)
        finally:
            for fed in self._fed.values():
                fed.close()
        result.notes += _notes_of_positions(result)
        return result

    def _stream(self, rows: DataFrame) -> DataStreamWriter:
        """The stream of these rows, to be started."""
        stream = rows.writeStream.foreachBatch(self._on_batch).option(
            "checkpointLocation", f"{self._topics.storage.uri}/{self._ingest.checkpoint}"
        )
        interval = self._ingest.processing_time
        stream = stream.trigger(processingTime=interval) if interval else stream.trigger(availableNow=True)
        return stream.queryName(f"ingest {self._ingest.name}")

    def _plan(self, source: PositionedSource | None) -> _Planned:
        """See what is to be done, and that it can be, of the topics as they are now. Nothing is changed."""
        topics = [plan_topic(self._topics, self._settings, name) for name in self._ingest.fed_topics]
        models = {topic.name: self._changed_model(topic) for topic in topics}
        files = checkpoint_files(self._topics.storage, self._ingest.checkpoint)
        # A new checkpoint goes on where the positions end, and a stream from the latest on would begin behind that.
        known = source is not None and any(topic.state and source.name in topic.state.positions for topic in topics)
        anew = known and files.finished < 0 and not self._accept_new_checkpoint
        read = source_rows(self._spark, self._settings, from_earliest=anew)
        configs = [topic.config for topic in topics]
        rows = record_rows(read, self._settings, configs, source.columns if source else ())
        return _Planned(topics, models, files, read, rows)

    def _changed_model(self, topic: PlannedTopic) -> RecordedModel | None:
        """What is to be recorded of a topic's model."""
        before = topic.state.model if topic.state else None
        found = topic_schema(self._settings, topic.name)
        return changed_model(self._settings, topic.name, before, found, self._accept_schema)

    def _schemas_to_validate(self) -> Mapping[str, EventSchema]:
        """By topic, the schema that each value has to be an event of; empty if the settings do not ask for it.

        Raises:
            ConfigError: they ask for it, and a topic has no schema.
        """
        if not self._ingest.validates:
            return {}
        schemas = {}
        for name in self._ingest.fed_topics:
            schema = topic_schema(self._settings, name)
            if schema is None:
                setting = f"topics.{name}.schema"
                raise ConfigError(
                    self._settings.place_of("ingest.validate"),
                    f"values of topic {name} are to be validated, and {setting} is not given",
                    f"Set {setting} to the name of a model, module:Class, or columns such as `id BIGINT, name STRING`.",
                )
            schemas[name] = schema
        return schemas

    def _claim(
        self, query_id: str, states: Sequence[TopicState], files: CheckpointFiles, source: PositionedSource | None
    ) -> Claim:
        """By what right this query takes the topics over.

        Raises:
            CheckpointError: by none.
            ConfigError: positions would be kept from the middle of the source on, or no more.
        """
        request = ClaimRequest(
            source,
            self._settings.place_of("ingest.position.columns"),
            self._settings.place_of("ingest.position.source"),
            self._take_over_others,
            self._accept_new_checkpoint,
        )
        seen = look_at_checkpoint(self._topics.storage, self._ingest.checkpoint, query_id, files, states)
        claim = decide_claim(request, seen, states)
        if isinstance(claim, LogError):
            raise claim
        return claim

    def _await(self, query: StreamingQuery) -> None:
        stop_noticed = False
        try:
            while not query.awaitTermination(_LOOK_SECONDS):
                with suppress(StorageError):  # the micro-batch waits for the storage, or says what is wrong with it
                    self._check_fenced()
                if progress := query.lastProgress:
                    self._meter.expect(records_behind(progress.sources))
                if self._stop.asked and not stop_noticed:
                    stop_noticed = True
                    self._report("stopping after the current micro-batch; once more stops at once")
                if self._stop.asked and not query.status["isTriggerActive"]:
                    return
            # It calls itself ended while it still notes its last micro-batch: Spark must not be stopped under it.
            query.awaitTermination()
        except StreamingQueryException as error:
            # What fails in a fenced ingest fails because it is: the two stumble over each other's checkpoint and files.
            with suppress(StorageError):
                self._check_fenced()
            if self._failure is not None and not isinstance(self._failure, SPARK_ERRORS):
                raise self._failure from error
            raise self._ended(error) from self._failure or error
        finally:
            if query.isActive:
                query.stop()

    def _ended(self, error: StreamingQueryException) -> LogError:
        """Why Spark ended the stream, in the words of an operator. No restart is promised to help: the cause may stay."""
        place = f"ingest of {self._ingest.name} from {shown_source(self._settings)}"
        failure = self._failure or error
        if (missing := missing_python(failure)) is not None:
            return IngestError(place, missing, "Nothing of the micro-batch was committed.")
        if self._failure is None:
            return IngestError(
                place, f"Spark ended the stream: {stream_reason(error)}",
                "What was committed stays. Until the cause is mended, the ingest ends like this again; then it goes on after"
                " its last commit.",
            )  # fmt: skip
        where = f"{self._settings.source_schema_setting} ({self._settings.place_of('ingest.source')})"
        return IngestError(
            place, f"a micro-batch failed: {failure_reason(failure)}",
            f"Nothing of it was committed. If a file cannot be read, compare it with {where} or take it away, and start again."
            if reads_files(self._settings) else
            f"Nothing of it was committed. Look at the source and at {self._settings.place_of('ingest.source')}, and start"
            " again.",
        )  # fmt: skip

    def _check_fenced(self) -> None:
        for fed in self._fed.values():
            fed.check_fenced()

    def _stop_after_this(self) -> None:
        """Let this micro-batch be the last: triggers may follow one another so closely that no look falls between them.

        Spark is in the middle of it. Told from its own thread, it notes the micro-batch as done, begins no other one,
        and does not wait for itself to end: that wait is what is interrupted here.
        """
        if self._query is not None:
            with suppress(Py4JJavaError):
                self._query.stop()

    def _on_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Spark calls this from a thread of its own, one micro-batch at a time."""
        try:
            self._batches.ingest(rows, batch_id)
            if self._stop.asked:
                self._stop_after_this()
        except BaseException as error:
            self._failure = error  # Spark passes on its text only
            raise


def _notes_of_positions(result: IngestResult) -> list[str]:
    """A line for each topic that has come further in the source than this checkpoint."""
    return [
        f"topic {name} has rows of {counted(len(behind), 'source partition')} up to a later position than this"
        f" checkpoint has come to, {', '.join(behind[:_NAMED])}: until then rows are dropped. If the source counts anew,"
        " give it another name, ingest.position.source"
        for name, behind in result.behind.items()
        if behind
    ]
