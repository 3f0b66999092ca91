"""Appends records to topics, some of them in transactions, until a test stops the appends. Keeps a journal of all
appended records.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import lakelog

PARTITIONS = 3
REPEATED_KEYS = 20
"""Half of the records have one of these keys, so compaction removes many of them. The others have keys of their own."""
MOST_RECORDS = 100
TOMBSTONES = 0.15
"""The share of the tombstones."""
COMMITTED, ABORTED = 0.2, 0.1
"""The shares of the steps that commit or abort a transaction. The others append without a transaction."""
PAUSE_SECONDS = 0.3
LONGEST_OPEN_SECONDS = 0.3
_BEGAN = datetime.now(UTC).replace(microsecond=0)

Where = tuple[str, int]
"""A topic and a partition."""


class Entry(NamedTuple):
    """A record as it is compared."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: datetime

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Entry:
        """From a row of any reader."""
        headers = (each.values() if isinstance(each, dict) else each for each in row["headers"] or [])
        moment = row["timestamp"]
        named = tuple((key, value) for key, value in headers)
        return cls(row["key"], row["value"], named, moment if moment.tzinfo else moment.replace(tzinfo=UTC))


class _AbortedError(Exception):
    """Ends a transaction that is to be aborted."""


class Feeder(threading.Thread):
    """Appends to random partitions. No two entries of one feeder are equal.

    committed: by partition and offset, what a reader of committed records may find.
    aborted: by partition and offset, what it must not find.
    """

    def __init__(self, root: str, topics: Sequence[str], seed: float) -> None:
        super().__init__()
        self._log = lakelog.open(root)
        self._topics = {name: self._log.topic(name) for name in topics}
        self._chance = random.Random(seed)
        self._number = 0
        self._stop_asked = threading.Event()
        self._failure: BaseException | None = None
        self.committed: dict[Where, dict[int, Entry]] = defaultdict(dict)
        self.aborted: dict[Where, dict[int, Entry]] = defaultdict(dict)
        self.transactions = 0

    def run(self) -> None:
        try:
            while not self._stop_asked.wait(PAUSE_SECONDS):
                kind = self._chance.random()
                if kind < COMMITTED + ABORTED:
                    self.transact(commits=kind < COMMITTED)
                else:
                    self.append()
        except BaseException as error:
            self._failure = error
            raise

    def stop(self) -> None:
        """Fails if an append has failed."""
        self._stop_asked.set()
        if self.ident is not None:
            self.join()
        assert self._failure is None, self._failure

    def append(self) -> None:
        where, entries = self._chosen()
        offsets = self._topics[where[0]].append(_rows(entries), partition=where[1])
        _note(self.committed, where, offsets, entries)

    def transact(self, *, commits: bool) -> None:
        """Append to some partitions in a transaction, and meanwhile to one without it."""
        journal = self.committed if commits else self.aborted
        with suppress(_AbortedError), self._log.transaction() as transaction:
            for _ in range(self._chance.randint(1, 3)):
                where, entries = self._chosen()
                offsets = transaction.append(where[0], _rows(entries), partition=where[1])
                _note(journal, where, offsets, entries)
            self.append()
            time.sleep(self._chance.uniform(0, LONGEST_OPEN_SECONDS))
            if not commits:
                raise _AbortedError
        self.transactions += 1

    def _chosen(self) -> tuple[Where, list[Entry]]:
        where = self._chance.choice(list(self._topics)), self._chance.randrange(PARTITIONS)
        return where, [self._entry(where[1]) for _ in range(self._chance.randint(1, MOST_RECORDS))]

    def _entry(self, partition: int) -> Entry:
        self._number += 1
        chance, number = self._chance, b"%d" % self._number
        repeated = chance.random() < 0.5
        key = f"{partition}/{chance.randrange(REPEATED_KEYS)}" if repeated else f"{partition}/once {self._number}"
        timestamp = _BEGAN + timedelta(milliseconds=self._number + chance.randrange(-50, 50))
        if chance.random() < TOMBSTONES:
            return Entry(key.encode(), None, (("number", number),), timestamp)
        headers: tuple[tuple[str, bytes | None], ...] = (("number", number), ("empty", None), ("empty", b""))
        value = number + b" " + b"x" * chance.randrange(200)
        return Entry(key.encode(), value, headers[: chance.randrange(4)], timestamp)


def _rows(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    return [{**entry._asdict(), "headers": list(entry.headers)} for entry in entries]


def _note(
    journal: dict[Where, dict[int, Entry]], where: Where, offsets: Mapping[int, range], entries: Sequence[Entry]
) -> None:
    journal[where] |= dict(zip(offsets[where[1]], entries, strict=True))
