"""Reads all topics of a root in a thread of its own.

A page asks for a look, and waits a moment for it. If the thread needs longer, the page shows what is known: during the
first reading, the topics that were read so far; during a later reading, the look before it. The thread reads only if a
page has asked. Any number of pages that ask during one reading lead to one further reading.

The first reading reads the states of all topics, which takes about three milliseconds per topic. Later readings read
only newer versions. If a version is damaged after it was read, the damage is found when the whole topic is read again.
Each reading reads at most TOPICS_ANEW topics again: the topics that were not read for the longest time, if this time is
longer than ANEW_MS. One reading reads at most MOST_PROBES records to find out whether groups have stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType

from lakelog.ui.root_look import MOST_PROBES, Probes, RootLook, TopicRow, TopicTotals, consumer_rows, totals_of
from storage_engine.errors import LogError, NoRootError
from storage_engine.storage.small_requests import results_of
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.ingest_reports import FoundReports, KeptReports
from storage_engine.topic.readers.consumer_files import KeptConsumers
from storage_engine.topic.topics import Topics, is_root

ANEW_MS = 60_000
TOPICS_ANEW = 100
_STOP_SECONDS = 3


class RootWatcher:
    """Looks at one root again and again. Several threads may use it."""

    def __init__(self, topics: Callable[[], Topics]) -> None:
        """
        Args:
            topics: opens the topics for one reading.
        """
        self._topics = topics
        self._reader = _Reader()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._asked = self._begun = self._ended = 0  # numbers of readings
        self._part = _Part(self._condition)
        self._newest: RootLook | None = None
        self._error: tuple[Exception, TracebackType | None] | None = None

    def begin(self) -> None:
        """Begin to read, so that the first page can show more."""
        with self._condition:
            self._ask()

    def look(self, seconds: float) -> RootLook:
        """Look at the root.

        Args:
            seconds: how long to wait for the newest figures. During the first reading, a page waits half as long.

        Raises:
            NoRootError: the path is an empty directory. If a mount disappears, an empty directory remains.
            StorageError: the root cannot be listed.
        """
        with self._condition:
            wanted = self._ask()
            patience = seconds if self._newest is not None else seconds / 2
            self._condition.wait_for(lambda: self._ended >= wanted or self._is_stopped, patience)
            if self._error is not None:
                error, where = self._error
                raise error.with_traceback(where)
            return replace(self._newest or self._part.look(), is_newest=self._ended >= wanted)

    def stop(self) -> None:
        """Stop reading after the topic that is being read."""
        with self._condition:
            self._is_stopped = self._part.is_stopped = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(_STOP_SECONDS)

    def _ask(self) -> int:
        """Ask for a reading that begins from now on. Returns its number."""
        self._asked = self._begun + 1
        if self._thread is None and not self._is_stopped:
            thread = threading.Thread(target=self._read, name="reading", daemon=True)
            thread.start()
            self._thread = thread  # the caller holds the lock, so the thread has not ended yet
        return self._asked

    def _read(self) -> None:
        while True:
            with self._condition:
                if self._begun >= self._asked or self._is_stopped:
                    self._thread = None
                    return
                self._begun += 1
                part = self._part = _Part(self._condition)
            look, failed = None, None
            try:
                look = self._reader.read(self._topics(), part)
            except _StoppedError:
                continue
            except Exception as error:  # noqa: BLE001 - it is raised again for each page that asks
                failed = error, error.__traceback__
            with self._condition:
                self._ended, self._error, self._newest = self._begun, failed, look or self._newest
                self._condition.notify_all()


class _StoppedError(Exception):
    """The server ends."""


class _Part:
    """What one reading has read so far."""

    def __init__(self, lock: threading.Condition) -> None:
        self._lock = lock
        self._rows: list[TopicRow] = []
        self._unreadable: dict[str, LogError] = {}
        self._unread: dict[str, None] = {}
        self._is_listed = False
        self.now_ms = 0
        self.reports = FoundReports()
        self.is_stopped = False

    def add_name(self, name: str) -> None:
        """A name was found.

        Raises:
            _StoppedError: the server ends. The other methods raise it, too.
        """
        with self._changing():
            self._unread[name] = None

    def all_listed(self) -> None:
        """All names were found."""
        with self._changing():
            self._is_listed = True

    def add(self, name: str, found: TopicRow | LogError | None) -> None:
        """A topic was read; None: it is deleted."""
        with self._changing():
            del self._unread[name]
            if isinstance(found, TopicRow):
                self._rows.append(found)
            elif found is not None:
                self._unreadable[name] = found

    def look(self) -> RootLook:
        """What was read so far. The caller holds the lock."""
        unreadable = dict(sorted(self._unreadable.items()))
        return RootLook(
            self.now_ms, tuple(self._rows), unreadable, tuple(self._unread), self.reports.error, self._is_listed
        )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            if self.is_stopped:
                raise _StoppedError
            yield


class _Reader:
    """Reads a root again and again, one reading after another. It keeps what need not be read again."""

    def __init__(self) -> None:
        self._chains: dict[str, StateChain] = {}
        self._read_ms: dict[str, int] = {}
        self._totals: dict[str, tuple[str, TopicTotals]] = {}
        self._consumers: dict[str, KeptConsumers] = {}
        self._reports = KeptReports()

    def read(self, topics: Topics, part: _Part) -> RootLook:
        """Read all topics. Raises the errors of RootWatcher.look.

        Args:
            part: receives each topic as soon as it was read.
        """
        now_ms = part.now_ms = topics.clock.now_ms()
        self._forget_oldest(now_ms)
        names = list[str]()
        for name in topics.names(with_deleted=True):
            names.append(name)
            part.add_name(name)
        part.all_listed()
        probes = Probes(MOST_PROBES)
        part.reports = self._reports.read(topics.storage)
        rows = results_of(
            topics.storage, lambda name: self._read_topic(topics, name, now_ms, part.reports, probes), names
        )
        for name, row in zip(names, rows, strict=True):
            part.add(name, row)
        known = self._chains.keys() | self._totals.keys() | self._consumers.keys()
        for name in known - set(names):
            self._forget(name)
        look = part.look()
        if not (look.names or is_root(topics.storage)):
            raise NoRootError(
                f"root {topics.storage.uri}", "this path has no topics: the folder meta/ is missing or empty",
                "Check whether the file system is mounted. `lakelog topics create` creates the first topic of a root.",
            )  # fmt: skip
        return look

    def _read_topic(
        self, topics: Topics, name: str, now_ms: int, reports: FoundReports, probes: Probes
    ) -> TopicRow | LogError | None:
        chain = self._chains.setdefault(name, topics.chain(name))
        try:
            state = topics.find(name, chain)
            self._read_ms.setdefault(name, now_ms)
            if state is not None:
                return self._row(topics, state, now_ms, reports, probes)
            self._totals.pop(name, None)
            self._consumers.pop(name, None)
            return None
        except LogError as error:
            self._forget(name)
            return error

    def _row(self, topics: Topics, state: TopicState, now_ms: int, reports: FoundReports, probes: Probes) -> TopicRow:
        known = self._totals.get(state.topic)
        totals = known[1] if known is not None and known[0] == state.id else totals_of(state)
        self._totals[state.topic] = state.id, totals
        consumers = self._consumers.setdefault(state.topic, KeptConsumers()).read(topics.storage, state, now_ms)
        rows = tuple(consumer_rows(topics, state, consumers, now_ms, probes))
        report = reports.of(state.writer.query)
        damaged = consumers.damaged if report.error is None else (*consumers.damaged, report.error)
        return TopicRow(state, totals, rows, damaged)

    def _forget_oldest(self, now_ms: int) -> None:
        oldest = sorted((read_ms, name) for name, read_ms in self._read_ms.items() if now_ms - read_ms > ANEW_MS)
        for _, name in oldest[:TOPICS_ANEW]:
            self._chains.pop(name, None)
            del self._read_ms[name]

    def _forget(self, name: str) -> None:
        for kept in (self._chains, self._read_ms, self._totals, self._consumers):
            kept.pop(name, None)
