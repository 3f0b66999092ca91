"""Tests that the cost of operations grows at most in proportion to the number of partitions and topics.

The tests compare a number of partitions or topics with four times that number. The tests count the calls of the
storage, the files and folder entries that the storage returned, and the bytes that the storage read. The tests measure
no time. If the work for a single partition or topic grows with the number of all partitions or topics, one of the three
counts shows this.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.log.isolation import Isolation
from storage_engine.storage import FolderEntry, StoredFile
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.chain.transaction_files import newest_decided
from storage_engine.topic.clean.cleaning_plan import plan_topics
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from storage_engine.verify.root.root_check import check_root
from storage_engine.verify.segment_check import Options
from tests.storage_engine.record_tables import Row, to_table

NOW_MS = 1_700_000_000_000
FEW, MANY = 40, 160
TOLERANCE = 1.03
"""Numbers have more digits where there are more partitions."""


class CountingStorage(PosixStorage):
    """Counts what is asked of it, and what it gives."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.counts: Counter[str] = Counter()

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = super().read(key, start, length)
        self.counts.update(calls=1, bytes=len(data))
        return data

    def list(self, prefix: str, after: str = "") -> Iterator[StoredFile]:
        self.counts.update(calls=1)
        return super().list(prefix, after)

    def _walk(self, folder: Path, key: str, after: str) -> Iterator[StoredFile]:
        # All of a folder is looked at, also where little of it is given.
        self.counts.update(entries=len(os.listdir(folder)) if folder.is_dir() else 0)  # noqa: PTH208
        return super()._walk(folder, key, after)

    def entries(self, folder: str) -> Sequence[FolderEntry]:
        found = super().entries(folder)
        self.counts.update(calls=1, entries=len(found))
        return found

    def show_folders(self, files: Mapping[str, Any], folders: Sequence[str]) -> Sequence[str]:
        self.counts.update(calls=1, entries=len(files) * len(folders))
        return super().show_folders(files, folders)


def _counted(verb: str) -> Callable[..., object]:
    def call(self: CountingStorage, *args: Any, **kwargs: Any) -> object:
        self.counts.update(calls=1)
        return getattr(super(CountingStorage, self), verb)(*args, **kwargs)

    return call


for _verb in (
    "put_new", "replace", "create", "new_file", "write_derivable", "link", "delete", "sync_names", "sync_file", "show",
    "show_copy", "show_bytes", "remove_folder",
):  # fmt: skip
    setattr(CountingStorage, _verb, _counted(_verb))


class Root:
    """A topic, and what each use of it cost."""

    def __init__(self, path: Path, partitions: int) -> None:
        self.costs: dict[str, Counter[str]] = {}
        self._storage = CountingStorage(path)
        self._partitions = partitions
        with self._use("create"):
            self._topics().create("t", partitions, {"segment.bytes": "4096"})
        with self._use("settle"):
            settle(self._topics())
        with self._use("verify when empty"):
            self._verify()
        for name in ("first append", "append"):
            with self._use(name):
                self._append()
        with self._use("settle with records"):
            settle(self._topics())
        with self._use("settle again"):
            settle(self._topics())
        with self._use("describe"):
            self._topics().state("t")
        with self._use("read"):
            self._read()
        with self._use("plan"):
            topics = self._topics()
            plan_topics(topics, [topics.state("t")], NOW_MS)
        with self._use("verify"):
            self._verify()
        with self._use("alter"):
            self._topics().alter("t", partitions + partitions // FEW)
        with self._use("delete"):
            self._topics().delete("t")
        with self._use("settle after deleting"):
            settle(self._topics())

    def _topics(self) -> Topics:
        return Topics(self._storage, BrokerConfig(), ManualClock(NOW_MS))

    @contextmanager
    def _use(self, name: str) -> Iterator[None]:
        self._storage.counts.clear()
        yield
        self.costs[name] = Counter(self._storage.counts)

    def _append(self) -> None:
        topics = self._topics()
        state = topics.state("t")
        rows = [Row(b"%06d" % number, bytes(30), (), NOW_MS) for number in range(12 * self._partitions)]
        chain, config = topics.chain("t"), topics.config(state)
        append_records(topics.storage, chain, config, topics.clock, to_table(rows))

    def _read(self) -> None:
        topics = self._topics()
        state = newest_decided(topics.storage, topics.chain("t"))
        for number in range(self._partitions):
            reader = PartitionReader(topics.storage, topics.chain("t"), number, state)
            for _ in reader.read(0, isolation=Isolation.READ_COMMITTED):
                pass

    def _verify(self) -> None:
        assert check_root(self._topics(), None, None, Options(), 1).findings == []


def test_what_many_partitions_cost_grows_with_their_number_and_no_faster(tmp_path: Path) -> None:
    few, many = Root(tmp_path / "few", FEW), Root(tmp_path / "many", MANY)
    more = {
        (name, what): (cost, many.costs[name][what])
        for name, costs in few.costs.items()
        for what, cost in costs.items()
        if many.costs[name][what] > cost * MANY / FEW * TOLERANCE
    }
    assert more == {}
    assert few.costs["verify"]["calls"] > FEW
    assert few.costs["append"]["calls"] > FEW


def test_what_many_topics_cost_grows_with_their_number_and_no_faster(tmp_path: Path) -> None:
    costs = []
    for count in (FEW, MANY):
        storage = CountingStorage(tmp_path / str(count))
        topics = Topics(storage, BrokerConfig(), ManualClock(NOW_MS))
        for number in range(count):
            topics.create(f"t{number}", 1, {})
        settle(topics)
        storage.counts.clear()
        assert len(topics.states()[0]) == count
        costs.append(dict(storage.counts))
    few, many = costs
    assert [what for what, cost in few.items() if many[what] > cost * MANY / FEW * TOLERANCE] == []
