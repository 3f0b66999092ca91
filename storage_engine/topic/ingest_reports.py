"""Stores what each ingest last reported about its stream, so that other programs can show it.

    meta/@ingests/<query id>.json    {"format":2,"query":"6f2c...","updated_ms":...,"is_running":true,"batch_id":41,
                                      "batch_ms":...,"lag_records":1200,"digest":"..."}

Only the source of a stream knows how many of its records the stream has not read, and only the running stream can ask
the source. So the ingest writes this report every half minute while it runs, and once at its end. The report is
replaced each time. No commit depends on it: it may be old, missing or damaged. So a report that cannot be read is never
raised as an error, but returned as one: whoever shows the topic shows the error in place of the report, and shows all
else as usual. A report whose ingest was killed keeps `is_running`, and its time `updated_ms` does not change any more.
If two runs of one query run at the same time, the report is that of the run that wrote last.

A new query has a new id, so reports of old queries remain. Each ingest deletes the reports that are older than 30 days
when it starts. A topic's name cannot contain `@`, so no topic uses the folder meta/@ingests/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from storage_engine.errors import CorruptionError, LogError, NotFoundError, StorageError
from storage_engine.log.partition_state import Frozen, Long
from storage_engine.quantities import counted
from storage_engine.storage import Storage, StoredFile
from storage_engine.storage.small_requests import results_of
from storage_engine.topic.chain.documents import FORMAT, decode_document, encode_document

INGEST_REPORTS: Final = "meta/@ingests"
"""The folder of the reports."""
REPORT_EVERY_MS: Final = 30_000
"""A running ingest writes its report this often. Some of the times may be late, because a micro-batch takes longer."""
_KEPT_MS = 30 * 86_400_000
_QUERY_ID = re.compile(r"[0-9A-Za-z-]{1,64}")
_KEY = re.compile(rf"{INGEST_REPORTS}/({_QUERY_ID.pattern})\.json")
_WHAT = "the report of an ingest"
DELETE_REPORT: Final = (
    "`lakelog verify --repair` removes the file: it is only a report, which a running ingest writes again."
)


class IngestReport(Frozen):
    """What an ingest last reported.

    query: the id of the streaming query.
    updated_ms: when the report was written, by the clock of the ingest.
    is_running: False if the ingest ended by itself, or was stopped.
    batch_id: the newest micro-batch that Spark has recorded; -1 if this run has recorded none.
    batch_ms: when Spark recorded that micro-batch; 0 if this run has recorded none.
    lag_records: how many records of its source the stream had not read; None if that is not known, because the source does not
        report how many records it has, has reported nothing in this run, or holds back records (minOffsetsPerTrigger).
    """

    format: int = FORMAT
    query: str
    updated_ms: Long
    is_running: bool
    batch_id: int = -1
    batch_ms: Long = 0
    lag_records: Long | None = None


@dataclass(frozen=True)
class FoundReport:
    """What was found in the place of a report. If there is no report, both fields are None.

    error: why the report cannot be read.
    """

    report: IngestReport | None = None
    error: LogError | None = None


NO_REPORT: Final = FoundReport()
"""What is found if there is no report."""


@dataclass(frozen=True)
class FoundReports:
    """The reports of a root, by the id of the query.

    error: why the folder of the reports cannot be listed. Then no report is known.
    """

    by_query: Mapping[str, FoundReport] = field(default_factory=dict)
    error: LogError | None = None

    def of(self, query: str | None) -> FoundReport:
        """The report of a query; NO_REPORT if there is none."""
        return self.by_query.get(query or "", NO_REPORT)


def shown_report(report: IngestReport) -> str:
    """The report as a phrase, without its time."""
    does = "runs" if report.is_running else "has ended"
    batch = "no micro-batch yet" if report.batch_id < 0 else f"micro-batch {report.batch_id} is recorded"
    lag = (
        "its lag is not known"
        if report.lag_records is None
        else f"{counted(report.lag_records, 'record')} behind its source"
    )
    return f"{does}, {batch}, {lag}"


def put_report(storage: Storage, report: IngestReport) -> None:
    """Replace the report of a query. A query whose id cannot be a part of a file name gets no report.

    Raises:
        StorageError: the storage refused or failed.
    """
    if (key := _key(report.query)) is not None:
        storage.replace(key, encode_document(key, report.model_dump_json().encode()))


def read_report(storage: Storage, query: str | None) -> FoundReport:
    """The report of a query.

    Args:
        query: the writer of a topic; None if the topic has no ingest.
    """
    if query is None or (key := _key(query)) is None:
        return NO_REPORT
    return _read(storage, key)


def is_report(key: str) -> bool:
    """Whether a key is the key of a report."""
    return _KEY.fullmatch(key) is not None


def list_reports(storage: Storage) -> Iterator[StoredFile]:
    """The files in the folder of the reports.

    Raises:
        StorageError: the folder cannot be listed.
    """
    return storage.list(f"{INGEST_REPORTS}/")


def delete_old_reports(storage: Storage, now_ms: int) -> None:
    """Delete the reports of ingests that have written nothing for 30 days.

    Raises:
        StorageError: the storage refused or failed.
    """
    for file in list_reports(storage):
        if now_ms - file.modified_ms > _KEPT_MS:
            storage.delete(file.key)


class KeptReports:
    """Reads the reports of a root repeatedly. A file is read again only if a listing shows that it has changed."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[StoredFile, FoundReport]] = {}

    def read(self, storage: Storage) -> FoundReports:
        """The reports of the root."""
        try:
            listed = {named[1]: file for file in list_reports(storage) if (named := _KEY.fullmatch(file.key))}
        except LogError as error:
            return FoundReports(error=error)

        def found(query: str) -> FoundReport:
            file, kept = listed[query], self._files.get(query)
            if kept is not None and kept[0] == file and not isinstance(kept[1].error, StorageError):
                return kept[1]
            return _read(storage, file.key)

        reports = dict(zip(listed, results_of(storage, found, list(listed)), strict=True))
        self._files = {query: (listed[query], each) for query, each in reports.items()}
        return FoundReports(reports)


def _read(storage: Storage, key: str) -> FoundReport:
    try:
        return FoundReport(_decoded(storage, key, storage.read(key)))
    except NotFoundError:
        return NO_REPORT
    except LogError as error:
        return FoundReport(error=error)


def _decoded(storage: Storage, key: str, data: bytes) -> IngestReport:
    document = decode_document(storage, key, data, _WHAT, DELETE_REPORT)
    try:
        return IngestReport.model_validate(document)
    except ValidationError as error:
        raise CorruptionError(key, 0, _WHAT, "other fields", DELETE_REPORT) from error


def _key(query: str) -> str | None:
    return f"{INGEST_REPORTS}/{query}.json" if _QUERY_ID.fullmatch(query) else None
