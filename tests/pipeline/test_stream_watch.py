"""What an ingest says while nothing happens, and the report that it leaves in the root."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.ingest.stream_watch import StreamWatch
from pipeline.settings.source_settings import SourceSettings
from storage_engine.clock import ManualClock
from storage_engine.errors import CorruptionError
from storage_engine.progress import Meter
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.ingest_reports import INGEST_REPORTS, NO_REPORT, IngestReport, read_report

QUERY = "6f2c8a94-2a40-4a54-9a3e-0a7f1c6f5f10"
START = 1_795_233_600_000


class Event:
    """An event of Spark, as py4j gives it to the watch."""

    def __init__(self, query: str, progress: dict[str, Any]) -> None:
        self._query = query
        self._progress = progress

    def progress(self) -> Event:
        return self

    def json(self) -> str:
        rows = {"numInputRows": 1, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 2.0, "timestamp": ""}
        sink = {"description": "", "numOutputRows": 0}
        found: dict[str, Any] = {
            "id": self._query,
            "runId": QUERY,
            "name": None,
            "stateOperators": [],
            "sources": [],
            "sink": sink,
        }
        return json.dumps(found | rows | {"batchDuration": 5, "durationMs": {"addBatch": 4}} | self._progress)

    def id(self) -> Event:
        return self

    def toString(self) -> str:  # noqa: N802
        return self._query


def source(end: int, latest: int) -> dict[str, Any]:
    rates = {"numInputRows": 1, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 2.0}
    offsets = {"startOffset": None, "endOffset": {"t": {"0": end}}, "latestOffset": {"t": {"0": latest}}}
    return {"description": "kafka", **rates, **offsets}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path))


def test_an_ingest_says_once_a_minute_what_it_does(storage: Storage) -> None:
    clock = ManualClock(START)
    watch = StreamWatch(QUERY, storage, clock, Meter("ingest", clock), is_read_when_idle=True)
    events: Any = watch.listener
    clock.advance(59_999)
    assert watch.line_after_silence() is None
    clock.advance(1)
    assert watch.line_after_silence() == "waiting for new rows for 1 min"
    assert watch.line_after_silence() is None
    watch.begin(7)
    clock.advance(90_000)
    assert watch.line_after_silence() == "batch 7 has been running for 1 min 30 s"
    clock.advance(40_000)
    watch.done()
    watch.said()  # the line of the micro-batch
    events._events.onQueryProgress(Event(QUERY, {"batchId": 7, "sources": [source(10, 1_510)]}))
    clock.advance(60_000)
    assert watch.line_after_silence() == "waiting for new rows for 1 min; 1,500 records behind the source"
    events._events.onQueryIdle(Event(QUERY, {}))
    clock.advance(120_000)
    assert watch.line_after_silence() == "waiting for new rows for 3 min; 0 records behind the source"


def test_the_report_is_written_every_half_minute_and_at_the_end(storage: Storage) -> None:
    clock = ManualClock(START)
    meter = Meter("ingest", clock)
    watch = StreamWatch(QUERY, storage, clock, meter, is_read_when_idle=True)
    events: Any = watch.listener
    assert read_report(storage, QUERY) == NO_REPORT
    for batch_id, other in enumerate((QUERY, "another-query", QUERY, QUERY)):
        events._events.onQueryProgress(Event(other, {"batchId": batch_id, "sources": [source(batch_id, 100)]}))
        clock.advance(15_000)
    running = IngestReport(
        query=QUERY, updated_ms=START + 30_000, is_running=True, batch_id=2, batch_ms=START + 30_000, lag_records=98
    )
    assert read_report(storage, QUERY).report == running
    facts = meter.facts()
    assert (facts["source_lag_records"], facts["expected_records"], facts["input_rows"]) == (97, 97, 3)
    events._events.onQueryTerminated(Event(QUERY, {}))
    watch.end(waits=True)
    ended = IngestReport(
        query=QUERY, updated_ms=START + 60_000, is_running=False, batch_id=3, batch_ms=START + 45_000, lag_records=97
    )
    assert read_report(storage, QUERY).report == ended


def test_a_report_that_cannot_be_read_is_an_error_and_old_reports_are_deleted(storage: Storage, tmp_path: Path) -> None:
    clock = ManualClock(START)
    StreamWatch(QUERY, storage, clock, Meter("ingest", clock), is_read_when_idle=True).end(waits=False)
    (file,) = (tmp_path / INGEST_REPORTS).iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"batch_id":-1', b'"batch_id":-2'))
    found = read_report(storage, QUERY)
    assert (found.report, type(found.error)) == (None, CorruptionError)
    file.write_bytes(whole)
    assert read_report(storage, "../@ingests/" + QUERY) == NO_REPORT
    later = ManualClock(round(file.stat().st_mtime * 1000) + 31 * 86_400_000)
    StreamWatch("next", storage, later, Meter("ingest", later), is_read_when_idle=True)
    assert list((tmp_path / INGEST_REPORTS).iterdir()) == []


@pytest.mark.parametrize(
    ("options", "lag"),
    [
        ({"format": "kafka"}, 0), ({"format": "lakelog"}, 0), ({"format": "rate"}, None),
        ({"format": "kafka", "options": {"minoffsetsPerTrigger": "100"}}, None),
    ],
)  # fmt: skip
def test_an_ingest_without_new_rows_has_no_lag_or_does_not_know_its_lag(
    storage: Storage, options: dict[str, object], lag: int | None
) -> None:
    """With minOffsetsPerTrigger, the source waits until it has enough new records, and Spark does not say how many it has."""
    clock = ManualClock(START)
    meter = Meter("ingest", clock)
    is_read = SourceSettings.model_validate(options).is_read_when_idle
    events: Any = StreamWatch(QUERY, storage, clock, meter, is_read_when_idle=is_read).listener
    events._events.onQueryProgress(Event(QUERY, {"batchId": 0, "sources": [source(93, 100)]}))
    assert (meter.facts()["source_lag_records"], meter.facts()["expected_records"]) == (7, 7)
    clock.advance(30_000)
    events._events.onQueryIdle(Event(QUERY, {}))
    report = read_report(storage, QUERY).report
    assert report is not None
    assert (report.updated_ms, report.lag_records) == (clock.now_ms(), lag)
    facts = meter.facts()
    assert (facts.get("source_lag_records"), facts["expected_records"]) == (lag, lag)


def test_rates_that_spark_leaves_out_are_0(storage: Storage) -> None:
    clock = ManualClock(START)
    meter = Meter("ingest", clock)
    events: Any = StreamWatch(QUERY, storage, clock, meter, is_read_when_idle=True).listener
    event = Event(QUERY, {"batchId": 0, "sources": [source(10, 15)]})
    found = json.loads(event.json())
    for part in (found, found["sources"][0]):
        del part["inputRowsPerSecond"], part["processedRowsPerSecond"]
    event.json = lambda: json.dumps(found)  # type: ignore[method-assign]
    events._events.onQueryProgress(event)
    facts = meter.facts()
    assert (facts["input_rows_per_second"], facts["processed_rows_per_second"], facts["source_lag_records"]) == (
        0,
        0,
        5,
    )


def test_a_slow_report_delays_no_micro_batch(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(START)
    watch = StreamWatch(QUERY, storage, clock, Meter("ingest", clock), is_read_when_idle=True)
    events: Any = watch.listener
    writes, may_go_on = threading.Event(), threading.Event()

    def replace(key: str, data: bytes) -> None:
        writes.set()
        assert may_go_on.wait(60)

    monkeypatch.setattr(storage, "replace", replace)
    report = threading.Thread(target=events._events.onQueryIdle, args=[Event(QUERY, {})])
    report.start()
    assert writes.wait(60)

    def micro_batch() -> None:
        watch.begin(1)
        watch.done()
        clock.advance(60_000)
        assert watch.line_after_silence() is not None

    batch = threading.Thread(target=micro_batch, daemon=True)
    batch.start()
    batch.join(60)
    has_ended = not batch.is_alive()
    may_go_on.set()
    report.join()
    assert has_ended
