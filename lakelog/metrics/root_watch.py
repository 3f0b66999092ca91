"""Follows all topics of a root, and makes the figures of the root.

A look at the root makes the figures once. Most looks are short. A short look makes one read and one listing for each
topic, and on an object store only one listing (lakelog.metrics.topic_watch). For the root, it makes one listing of
meta/ and reads the checkpoints in log/. Every five minutes, and after a change in meta/ that may be a new topic, a look
is long. A long look reads each topic as a job does when it starts, including the witnesses. So a damaged state is found
within five minutes, and so is a new topic on an object store, where meta/ is not listed. If a topic cannot be read, the
look reports its error, and still measures all other topics.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace

from lakelog.metrics.figures import RootFigures, TopicFigures
from lakelog.metrics.table_counts import Counts, count_tables, with_counts
from lakelog.metrics.topic_watch import TopicWatch
from storage_engine.errors import LogError, NoRootError
from storage_engine.log.checkpoint import HIGH_WATERMARKS
from storage_engine.storage import Storage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.ingest_reports import INGEST_REPORTS, FoundReports, KeptReports
from storage_engine.topic.readers.consumer_files import read_consumers
from storage_engine.topic.topics import Topics, is_root
from storage_engine.topic.view_record import VIEW
from storage_engine.topic.witnesses import ShownOffsets, shown_offsets
from storage_engine.topic_name import is_topic_name

LONG_WAY_MS = 300_000
"""The time between two long looks."""


class RootWatch:
    """The watch over a root. Several threads may use it; they look one after another."""

    def __init__(self, topics: Topics, cluster: str | None = None, *, counts_tables: bool = False) -> None:
        """
        Args:
            cluster: the name of the root on boards; None: the name of its directory.
            counts_tables: also count dead letters and stale rows, which reads Delta tables.
        """
        self._topics = topics
        self._cluster = topics.storage.uri.rstrip("/").rpartition("/")[2] if cluster is None else cluster
        self._counts_tables = counts_tables
        self._lock = threading.Lock()
        self._reports = KeptReports()
        self._watches: dict[str, TopicWatch] = {}
        self._unreadable: dict[str, LogError] = {}
        self._counts: dict[str, Counts] = {}
        self._table_errors: list[str] = []
        self._folders: dict[str, int] = {}
        self._next_long_ms = 0

    def look(self, now_ms: int | None = None) -> RootFigures:
        """Look at the root.

        Args:
            now_ms: the current time; None: the clock's time.
        """
        with self._lock:
            now_ms = self._topics.clock.now_ms() if now_ms is None else now_ms
            figures = RootFigures(cluster=self._cluster, now_ms=now_ms)
            try:
                return self._look(figures)
            except LogError as error:
                self._next_long_ms = 0
                return replace(figures, problem=str(error))

    def _look(self, figures: RootFigures) -> RootFigures:
        storage, now_ms = self._topics.storage, figures.now_ms
        shown = shown_offsets(storage)  # before the states, as a witness must be
        folders = _topic_folders(storage)
        if not (folders or is_root(storage)):  # an unmounted root is an empty directory, which must not look healthy
            raise NoRootError(
                f"root {storage.uri}", "this path has no topics: the folder meta/ is missing or empty",
                "Check whether the file system is mounted.",
            )  # fmt: skip
        if now_ms >= self._next_long_ms or self._may_have_new_topics(folders):
            self._read_anew(shown)
            self._folders = folders
            self._next_long_ms = now_ms + LONG_WAY_MS
        else:
            self._unreadable = {name: each for name, each in self._unreadable.items() if name not in self._watches}
            self._follow()
        has_reports = storage.folders is None or INGEST_REPORTS.removeprefix("meta/") in folders
        reports = self._reports.read(storage) if has_reports else FoundReports()
        topics: list[TopicFigures] = []
        for name, watch in sorted(self._watches.items()):
            if name in self._unreadable:
                continue
            try:
                found = watch.figures(shown, reports, now_ms)
            except LogError as error:
                self._unreadable[name] = error
            else:
                topics.append(with_counts(found, self._counts[name]) if name in self._counts else found)
        free, capacity = _disk(storage)
        return replace(
            figures,
            topics=tuple(topics),
            unreadable={name: str(error) for name, error in sorted(self._unreadable.items())},
            table_errors=tuple(self._table_errors),
            reports_error="" if reports.error is None else str(reports.error),
            free_bytes=free,
            capacity_bytes=capacity,
            view_settled_ms=_settled_ms(storage, shown),
        )

    def _may_have_new_topics(self, folders: Mapping[str, int]) -> bool:
        """Whether a folder was added or removed, or a folder without a watch has changed. The folder of a deleted topic
        stays, and changes when a new topic gets its name."""
        return folders.keys() != self._folders.keys() or any(
            modified_ns != self._folders[name] and name not in self._watches and is_topic_name(name)
            for name, modified_ns in folders.items()
        )

    def _read_anew(self, shown: ShownOffsets) -> None:
        """Read all topics as a job does when it starts."""
        chains: dict[str, StateChain] = {}
        states, unreadable = self._topics.states(shown, chains)
        watches: dict[str, TopicWatch] = {}
        self._counts, self._table_errors = {}, []
        for state in states:
            name, chain = state.topic, chains[state.topic]
            try:
                if (watch := self._watches.get(name)) is not None:
                    watch.restart(chain, state)
                else:
                    watch = TopicWatch(self._topics, chain, state)
                watches[name] = watch
                if self._counts_tables:
                    consumers = read_consumers(self._topics.storage, state).known
                    self._counts[name], errors = count_tables(self._topics.storage, name, consumers)
                    self._table_errors += map(str, errors)
            except LogError as error:
                unreadable[name] = error
        self._watches, self._unreadable = watches, unreadable

    def _follow(self) -> None:
        for name, watch in list(self._watches.items()):
            try:
                if not watch.follow():
                    del self._watches[name]
            except LogError as error:
                self._unreadable[name] = error


def _topic_folders(storage: Storage) -> dict[str, int]:
    """The names in meta/, and when each last changed, in nanoseconds; nothing if the storage has no folders."""
    if storage.folders is None:
        return {}
    return {entry.name: entry.modified_ns for entry in storage.folders.entries("meta")}


def _disk(storage: Storage) -> tuple[int | None, int | None]:
    """The free bytes and the capacity of the root's file system; None for a storage that does not report them."""
    if storage.root is None:
        return None, None
    try:
        found = os.statvfs(storage.root)
    except OSError:
        return None, None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _settled_ms(storage: Storage, shown: ShownOffsets) -> int | None:
    """When the offsets that log/ shows last changed; None if there is no view."""
    if storage.view is None or not shown.ends:
        return None
    return next((each.modified_ms for each in storage.view.entries(VIEW) if each.name == HIGH_WATERMARKS), None)


def all_errors(figures: RootFigures) -> Mapping[str, str]:
    """Everything that could not be read, by its place: the root, a topic, a consumer's file, the report of an ingest, a
    part of a log, a table."""
    errors = {"root": figures.problem} if figures.problem else {}
    errors |= {"reports of ingests": figures.reports_error} if figures.reports_error else {}
    errors |= dict(figures.unreadable)
    for topic in figures.topics:
        errors |= {f"{topic.name}, consumer {number}": text for number, text in enumerate(topic.damaged_consumers)}
        errors |= {f"{topic.name}, ingest": str(topic.ingest.error)} if topic.ingest.error is not None else {}
        errors |= {f"{topic.name}, lag": topic.lag_error} if topic.lag_error else {}
    return errors | {f"table {number}": text for number, text in enumerate(figures.table_errors)}
