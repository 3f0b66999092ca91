"""Runs an ingest into one or more topics: commits each micro-batch of a stream exactly once.

    checkpoint_check.py   reads and checks Spark's checkpoint: the query's id and the identity of each batch
    claim.py              decides whether the query may take the topics over
    source_positions.py   stores the positions of rows in their source, so that the checkpoint is not needed
    ingest_topic.py       creates missing topics, and takes topics over
    rows/                 reads the rows of the source, and makes records of them
    micro_batch.py        stages one micro-batch, and commits it on each topic
    storage_retry.py      waits for a storage that is full or unreachable
    stream_watch.py       passes what Spark reports to the job's metrics, and to the report in the root

This module joins these parts. This module watches the stream until the stream ends by itself, is stopped, fails, or is
fenced. A stream is fenced if another ingest has taken over one of its topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipeline.ingest.checkpoint_check import CheckpointFiles, checkpoint_files, look_at_checkpoint, query_id_of
from pipeline.ingest.claim import Claim, ClaimRequest, decide_claim
from pipeline.ingest.ingest_topic import PlannedTopic, make_topic, plan_topic, settle_lists, take_over_all
from pipeline.ingest.micro_batch import IngestResult, MicroBatches, TopicResult
from pipeline.ingest.rows.dropped_fields import DroppedFields
from pipeline.ingest.rows.record_rows import record_rows
from pipeline.ingest.rows.source_options import shown_source
from pipeline.ingest.rows.source_rows import SourceRows, reads_files, source_rows
from pipeline.ingest.source_positions import PositionedSource
from pipeline.ingest.storage_retry import StorageRetry
from pipeline.ingest.stream_watch import StreamWatch
from pipeline.model_changes import NO_SCHEMAS, TopicSchemas
from pipeline.settings import Settings
from pipeline.spark.failures import SPARK_ERRORS, failure_reason, missing_python, stream_reason
from pipeline.spark.session import complete_session, start_python_daemon
from pipeline.stop_request import StopRequest
from pipeline.topic_model import changed_model, record_model, topic_schemas
from storage_engine.errors import ConfigError, LogError, StorageError, TopicExistsError
from storage_engine.progress import Meter
from storage_engine.quantities import counted
from storage_engine.topic.chain.topic_state import RecordedModel, TopicState
from storage_engine.topic.kafka.view_folder import hold_lock
from storage_engine.topic.topics import Topics

_LOOK_SECONDS = 1
"""Seconds between two checks whether the ingest was fenced or asked to stop."""
_NAMED = 3
"""The largest number of source partitions that a note names."""


class IngestError(LogError):
    """Spark ended the stream."""


@dataclass(frozen=True)
class _Planned:
    """The plan of an ingest.

    models: by topic, the model to record.
    files: the files of the checkpoint.
    read: the rows of the source.
    rows: the records that are made from the rows of the source.
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
        report_wait: Callable[[str], None] | None = None,
    ) -> None:
        """
        Args:
            report: receives a line after each micro-batch.
            report_wait: receives a line before each pause, if the storage is full or unreachable; by default `report`.
            take_over_others: replace the topic's recorded writer if the writer is another query.
            accept_new_checkpoint: accept a checkpoint that would be refused as new, copied or rolled back, and drop the
                recorded batches and positions of earlier queries.
            accept_schema: accept a change of a topic's model that breaks older records or their readers.
            meter: receives the number of committed records, the number of records that are still in the source (if it
                is known), and the figures of the micro-batches (pipeline/job_metrics/job_figures.py).
        """
        self._spark = spark
        self._settings = settings
        self._ingest = settings.required_ingest()
        self._topics = topics
        self._report = report
        self._report_wait = report_wait or report
        self._take_over_others = take_over_others
        self._accept_new_checkpoint = accept_new_checkpoint
        self._accept_schema = accept_schema
        self._meter = meter or Meter("ingest", topics.clock)
        self._failure: BaseException | None = None
        self._stop = StopRequest()
        self._query: StreamingQuery | None = None
        self._watch: StreamWatch | None = None

    def run(self) -> IngestResult:
        """Run the stream. With available-now, the stream ends at the current end of the source; otherwise the stream
        runs until it is stopped.

        Raises:
            FencedError: another ingest has taken a topic over.
            CheckpointError, WriterRefusedError: the topic was fed with another checkpoint or query. The message has the
                choices.
            LogError: the ingest failed. The next run can commit the batch in which the ingest failed.
        """
        complete_session(self._spark)  # for sources that users have written, and for format("lakelog")
        start_python_daemon(self._spark)
        storage = self._topics.storage
        schemas = self._schemas_to_validate()
        source = PositionedSource.of(self._settings)
        while True:
            planned = self._plan(source)
            # Nothing was changed before this point, so a run with wrong settings creates no topic. If another process
            # has created a topic meanwhile, that topic may differ from these settings. So all topics are planned again.
            with suppress(TopicExistsError):
                states = [make_topic(self._topics, self._settings, topic) for topic in planned.topics]
                break
        query_id = query_id_of(storage, self._ingest.checkpoint, states)
        claim = self._claim(query_id, states, planned.files, source)
        left = settle_lists(self._topics, query_id, self._ingest.ingest_topics, claim.source)
        self._ingest_topics = take_over_all(self._topics, self._ingest.ingest_topics, claim)
        for state in states:
            if (wanted := planned.models[state.topic]) is not None:
                record_model(self._topics, state, wanted)
        result = IngestResult(query_id, {name: TopicResult(each.epoch) for name, each in self._ingest_topics.items()})
        result.dropped_fields = DroppedFields.of(self._settings, planned.read)
        result.notes += [note for topic in planned.topics for note in topic.notes] + left
        storage_retry = StorageRetry(self._ingest.storage_retry_timeout_ms, self._stop.wait, self._say_wait)
        self._batches = MicroBatches(
            self._topics,
            self._ingest,
            source,
            self._ingest_topics,
            result,
            self._say,
            self._meter,
            storage_retry,
            schemas,
            self._settings.source_schema_setting,
        )
        try:
            with self._stop.listening(), hold_lock(storage), self._watched(query_id):
                self._query = self._stream(planned.rows).start()
                self._await(self._query)
        finally:
            for ingest_topic in self._ingest_topics.values():
                ingest_topic.close()
        result.notes += _notes_of_positions(result)
        return result

    @contextmanager
    def _watched(self, query_id: str) -> Iterator[None]:
        """Watch the query that is started in this context."""
        self._watch = watch = StreamWatch(
            query_id, self._topics.storage, self._topics.clock, self._meter,
            is_read_when_idle=self._ingest.source.is_read_when_idle,
        )  # fmt: skip
        listener = watch.listener
        self._spark.streams.addListener(listener)
        has_ended = False
        try:
            yield
            has_ended = True
        finally:
            watch.end(waits=has_ended)
            with suppress(*SPARK_ERRORS, OSError):  # Spark has ended
                self._spark.streams.removeListener(listener)

    def _say(self, line: str) -> None:
        """Print a line."""
        if self._watch is not None:
            self._watch.said()
        self._report(line)

    def _say_wait(self, line: str) -> None:
        """Print why the ingest pauses."""
        if self._watch is not None:
            self._watch.said()
        self._report_wait(line)

    def _stream(self, rows: DataFrame) -> DataStreamWriter:
        """The stream of these rows, not started yet."""
        stream = rows.writeStream.foreachBatch(self._on_batch).option(
            "checkpointLocation", f"{self._topics.storage.uri}/{self._ingest.checkpoint}"
        )
        interval = self._ingest.processing_time
        stream = stream.trigger(processingTime=interval) if interval else stream.trigger(availableNow=True)
        return stream.queryName(f"ingest {self._ingest.name}")

    def _plan(self, source: PositionedSource | None) -> _Planned:
        """Plan and check the ingest with the current topics. Changes nothing."""
        topics = [plan_topic(self._topics, self._settings, name) for name in self._ingest.ingest_topics]
        models = {topic.name: self._changed_model(topic) for topic in topics}
        files = checkpoint_files(self._topics.storage, self._ingest.checkpoint)
        # A new checkpoint continues after the stored positions. A stream that begins where the options say could skip
        # rows after these positions.
        known = source is not None and any(topic.state and source.is_known(topic.state) for topic in topics)
        anew = known and files.finished < 0 and not self._accept_new_checkpoint
        read = source_rows(self._spark, self._settings, from_earliest=anew)
        configs, partitions = [topic.config for topic in topics], min(topic.partitions for topic in topics)
        rows = record_rows(read, self._settings, configs, source.columns if source else (), partitions)
        return _Planned(topics, models, files, read, rows)

    def _changed_model(self, topic: PlannedTopic) -> RecordedModel | None:
        """The model to record for a topic, or None."""
        before = topic.state.model if topic.state else None
        found = topic_schemas(self._settings, topic.name)
        return changed_model(self._settings, topic.name, before, found, self._accept_schema)

    def _schemas_to_validate(self) -> Mapping[str, TopicSchemas]:
        """By topic, the schemas that check each value and each key; empty if the settings do not ask for checks.

        Raises:
            ConfigError: the settings ask for checks, and a topic has no schema.
        """
        if not self._ingest.validates:
            return {}
        found = {}
        for name in self._ingest.ingest_topics:
            schemas = topic_schemas(self._settings, name)
            if schemas == NO_SCHEMAS:
                setting = f"topics.{name}.schema"
                raise ConfigError(
                    self._settings.place_of("ingest.validate"),
                    f"validation of the values of topic {name} needs a schema, but {setting} is not given",
                    f"Set {setting} to a model, given as `module:Class`, or to columns such as `id BIGINT, name STRING`.",
                )
            found[name] = schemas
        return found

    def _claim(
        self, query_id: str, states: Sequence[TopicState], files: CheckpointFiles, source: PositionedSource | None
    ) -> Claim:
        """The claim of this query on the topics.

        Raises:
            CheckpointError: the checkpoint does not allow the claim.
            ConfigError: positions would be stored only from the middle of the source on, or would no longer be stored.
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
                with suppress(StorageError):  # the micro-batch meets the same error, and waits or reports it
                    self._check_fenced()
                if self._watch is not None and (line := self._watch.line_after_silence()) is not None:
                    self._report(line)
                if self._stop.asked and not stop_noticed:
                    stop_noticed = True
                    self._say("stopping after the current micro-batch; a second signal stops immediately")
                if self._stop.asked and not query.status["isTriggerActive"]:
                    return
            # The query reports its end before it has recorded its last micro-batch. Spark must run until the
            # micro-batch is recorded.
            query.awaitTermination()
        except StreamingQueryException as error:
            # If the ingest is fenced, the other ingest is the cause of the error, because both use the same checkpoint
            # and files.
            with suppress(StorageError):
                self._check_fenced()
            if self._failure is not None and not isinstance(self._failure, SPARK_ERRORS):
                raise self._failure from error
            raise self._ended(error) from self._failure or error
        finally:
            if query.isActive:
                query.stop()

    def _ended(self, error: StreamingQueryException) -> LogError:
        """The error for the operator if Spark ended the stream. The cause may persist, so the error does not promise
        that a restart helps."""
        place = f"ingest of {self._ingest.name} from {shown_source(self._settings)}"
        failure = self._failure or error
        if (missing := missing_python(failure)) is not None:
            return IngestError(place, missing, "Nothing of the micro-batch was committed.")
        if self._failure is None:
            return IngestError(
                place, f"Spark ended the stream: {stream_reason(error)}",
                "Nothing that was committed is lost. Fix the cause, and start the ingest again: it continues after its last"
                " commit.",
            )  # fmt: skip
        where = f"{self._settings.source_schema_setting} ({self._settings.place_of('ingest.source')})"
        return IngestError(
            place, f"a micro-batch failed: {failure_reason(failure)}",
            f"Nothing of the micro-batch was committed. If a file cannot be read, compare the file with {where} or remove the"
            " file, and start again."
            if reads_files(self._settings) else
            f"Nothing of the micro-batch was committed. Check the source and {self._settings.place_of('ingest.source')}, and"
            " start again.",
        )  # fmt: skip

    def _check_fenced(self) -> None:
        for ingest_topic in self._ingest_topics.values():
            ingest_topic.check_fenced()

    def _stop_after_this(self) -> None:
        """Make the current micro-batch the last one. Called in Spark's thread, at the end of the micro-batch.

        `_await` may never see a pause between two micro-batches, if they follow one another closely. A stop from
        Spark's own thread lets Spark record this micro-batch as done, and begin no other micro-batch. The call then
        raises the error that is suppressed here, because a thread cannot wait for its own end.
        """
        if self._query is not None:
            with suppress(Py4JJavaError):
                self._query.stop()

    def _on_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Spark calls this method in a thread of Spark, for one micro-batch after another."""
        assert self._watch is not None, "the watch begins before the query"
        self._watch.begin(batch_id)
        try:
            self._batches.ingest(rows, batch_id)
            if self._stop.asked:
                self._stop_after_this()
        except BaseException as error:
            self._failure = error  # the error that Spark passes to _await has only the text of this error
            raise
        finally:
            self._watch.done()


def _notes_of_positions(result: IngestResult) -> list[str]:
    """A line for each topic whose positions are ahead of this checkpoint."""
    return [
        f"topic {name} is ahead of this checkpoint in {counted(len(behind), 'source partition')}"
        f" ({', '.join(behind[:_NAMED])}): Lakelog skips the rows up to the topic's positions, because they are committed. If the"
        " positions of the source began again, give the source another name with ingest.position.source"
        for name, behind in result.behind.items()
        if behind
    ]
