"""Watches the stream of an ingest: what Spark reports about each micro-batch, and how long nothing has happened.

Spark calls a StreamingQueryListener after each micro-batch, and every ten seconds while the source has no new rows. Its
thread is not the thread of the micro-batches, so a slow report delays no commit. PySpark would make an object of each
event with about a hundred calls to the JVM, which takes 14 ms. So `_Events` takes the event as one JSON document.

From each event, the watch updates the meter of the job: the rows that Spark has read, the rates, Spark's phases, and
the lag behind the source, if the source reports it. Every half minute, the watch writes the ingest's report into the root
(storage_engine/topic/ingest_reports.py). If an ingest has printed no line for a minute, `line_after_silence` says what
the ingest does.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from lakelog.spark.task_progress import records_behind
from storage_engine.clock import Clock
from storage_engine.errors import StorageError
from storage_engine.progress import Meter
from storage_engine.quantities import counted, shown_duration
from storage_engine.storage import Storage
from storage_engine.topic.ingest_reports import REPORT_EVERY_MS, IngestReport, delete_old_reports, put_report

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_RATES = ("inputRowsPerSecond", "processedRowsPerSecond")
_SILENT_MS = 60_000
_END_SECONDS = 10.0
"""Longest wait for Spark's last events after the end of the stream."""


class StreamWatch:
    """The watch over one query. Several threads may use it.

    Use it as a context around the query: at its end, the last report is written.
    """

    def __init__(self, query_id: str, storage: Storage, clock: Clock, meter: Meter, *, is_read_when_idle: bool) -> None:
        """
        Args:
            is_read_when_idle: whether the stream has read all records of the source if the source has no new rows. If not,
                the lag is not known then.
        """
        self._query_id = query_id
        self._storage = storage
        self._clock = clock
        self._meter = meter
        self._is_read_when_idle = is_read_when_idle
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # a storage can be slow, and must not hold up the micro-batches
        self._ended = threading.Event()
        self._rows = 0
        self._lag: int | None = None
        self._batch_id = -1
        self._batch_ms = 0
        self._running: tuple[int, int] | None = None
        self._heard_ms = self._said_ms = clock.now_ms()
        self._written_ms = 0
        with suppress(StorageError):  # a report is not worth a failure
            delete_old_reports(storage, self._heard_ms)

    @property
    def listener(self) -> StreamingQueryListener:
        """The listener for Spark."""
        return _Listener(_Events(self._query_id, self._take, self._take_idle, self._ended.set))

    @property
    def lag(self) -> int | None:
        """How many records of the source were not read after the last micro-batch; None if that is not known."""
        return self._lag

    def said(self) -> None:
        """The ingest has printed a line."""
        self._said_ms = self._clock.now_ms()

    def begin(self, batch_id: int) -> None:
        """A micro-batch begins."""
        with self._lock:
            self._running = batch_id, self._clock.now_ms()

    def done(self) -> None:
        """The micro-batch has ended."""
        with self._lock:
            self._running = None
            self._heard_ms = self._clock.now_ms()

    def line_after_silence(self) -> str | None:
        """What the ingest does; None if a line was printed less than a minute ago."""
        now_ms = self._clock.now_ms()
        with self._lock:
            if now_ms - self._said_ms < _SILENT_MS:
                return None
            self._said_ms = now_ms
            if self._running is not None:
                batch_id, began_ms = self._running
                return f"batch {batch_id} has been running for {shown_duration((now_ms - began_ms) / 1000)}"
            waited = shown_duration((now_ms - self._heard_ms) / 1000)
            behind = "" if self._lag is None else f"; {counted(self._lag, 'record')} behind the source"
            return f"waiting for new rows for {waited}{behind}"

    def end(self, *, waits: bool) -> None:
        """Write the last report.

        Args:
            waits: wait for Spark's last events, because the stream has ended as intended. After a failure or a second
                signal, the job must end at once.
        """
        if waits:
            self._ended.wait(_END_SECONDS)
        self._write(is_running=False)

    def _take(self, progress: StreamingQueryProgress) -> None:
        """Pass what Spark reports about a micro-batch to the meter."""
        with self._lock:
            self._lag = records_behind(progress.sources)
            self._rows += progress.numInputRows
            if progress.numInputRows or progress.batchId > self._batch_id:
                self._batch_id, self._batch_ms = progress.batchId, self._clock.now_ms()
        self._meter.figure("spark_seconds", {name: ms / 1000 for name, ms in progress.durationMs.items()})
        self._meter.figure("input_rows", self._rows)
        self._meter.figure("input_rows_per_second", progress.inputRowsPerSecond)
        self._meter.figure("processed_rows_per_second", progress.processedRowsPerSecond)
        self._tell_lag()
        self._write_sometimes()

    def _take_idle(self) -> None:
        """The source has no new rows for the stream. After a restart, this can be the first event."""
        with self._lock:
            self._lag = 0 if self._is_read_when_idle else None
        self._tell_lag()
        self._write_sometimes()

    def _tell_lag(self) -> None:
        self._meter.expect(self._lag)
        self._meter.figure("source_lag_records", self._lag)

    def _write_sometimes(self) -> None:
        if self._clock.now_ms() - self._written_ms >= REPORT_EVERY_MS:
            self._write(is_running=True)

    def _write(self, *, is_running: bool) -> None:
        with suppress(StorageError), self._writing:  # a report is not worth a failure
            with self._lock:
                self._written_ms = self._clock.now_ms()
                report = IngestReport(
                    query=self._query_id, updated_ms=self._written_ms, is_running=is_running, batch_id=self._batch_id,
                    batch_ms=self._batch_ms, lag_records=self._lag,
                )  # fmt: skip
            put_report(self._storage, report)


class _Listener(StreamingQueryListener):
    """A listener whose events are taken as JSON. The methods of PySpark's events are not called."""

    def __init__(self, events: _Events) -> None:
        self._events = events
        self._of_java: JavaObject | None = None

    @property
    def _jlistener(self) -> JavaObject:
        """The object that PySpark's StreamingQueryManager gives to Spark."""
        if self._of_java is None:
            from pyspark import SparkContext

            jvm: Any = SparkContext._jvm  # noqa: SLF001 - as PySpark's own listener does
            self._of_java = jvm.PythonStreamingQueryListenerWrapper(self._events)
        return self._of_java

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Not called."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Not called."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Not called."""


class _Events:
    """Receives the events of all queries of a Spark session, and passes those of one query on. Spark calls it."""

    def __init__(
        self,
        query_id: str,
        take: Callable[[StreamingQueryProgress], None],
        idle: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self._query_id = query_id
        self._take = take
        self._idle = idle
        self._ended = ended

    def onQueryStarted(self, event: JavaObject) -> None:  # noqa: N802
        """Nothing to do: the ingest knows that it has started."""

    def onQueryProgress(self, event: JavaObject) -> None:  # noqa: N802
        found = json.loads(event.progress().json())
        if found["id"] == self._query_id:
            for part in (found, *found["sources"]):  # Spark leaves out a rate that is not finite
                part.update({name: part.get(name, 0.0) for name in _RATES})
            self._take(StreamingQueryProgress.fromJson(found))

    def onQueryIdle(self, event: JavaObject) -> None:  # noqa: N802
        if event.id().toString() == self._query_id:
            self._idle()

    def onQueryTerminated(self, event: JavaObject) -> None:  # noqa: N802
        if event.id().toString() == self._query_id:
            self._ended()

    class Java:
        """For py4j."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)
