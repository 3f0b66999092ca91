"""Makes roots for the tests of monitoring: topics, records, consumers and damage, all at chosen times."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lakelog.metrics.figures import RootFigures
from lakelog.metrics.root_watch import RootWatch
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.storage import FolderEntry, StoredFile
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.append.topic_writer import take_over
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.version_files import version_key
from storage_engine.topic.ingest_reports import INGEST_REPORTS, IngestReport, put_report
from storage_engine.topic.readers.consumer_files import (
    EXPORT_KIND,
    GROUP_KIND,
    Consumer,
    PositionSample,
    put_consumer,
    put_positions,
)
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table

NOW = 1_700_000_000_000
MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


class CountingStorage(PosixStorage):
    """Counts the calls, by verb."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.counts: Counter[str] = Counter()

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.counts["read log/" if key.startswith(("log/", "meta/@view")) else "read"] += 1
        return super().read(key, start, length)

    def list(self, prefix: str, after: str = "") -> Iterator[StoredFile]:
        self.counts["list"] += 1
        return super().list(prefix, after)

    def entries(self, folder: str) -> Sequence[FolderEntry]:
        self.counts["entries"] += 1
        return super().entries(folder)

    def taken(self) -> dict[str, int]:
        """The counts since the last call."""
        counts, self.counts = dict(self.counts), Counter()
        return counts


class WatchedRoot:
    """A root, its clock, and a watch over the root."""

    def __init__(self, folder: Path, now_ms: int = NOW) -> None:
        self.folder = folder
        self.storage = CountingStorage(folder)
        self.clock = ManualClock(now_ms)
        self.topics = Topics(self.storage, BrokerConfig(), self.clock)
        self.watch = RootWatch(self.topics, "lakelog")

    def look(self) -> RootFigures:
        return self.watch.look()

    def topic(self, name: str, partitions: int = 1, **configs: str) -> TopicState:
        return self.topics.create(name, partitions, {key.replace("_", "."): value for key, value in configs.items()})

    def append(self, name: str, *ages_ms: int, partition: int = 0) -> TopicState:
        """One commit of records with these ages."""
        chain = self.topics.chain(name)
        now_ms = self.clock.now_ms()
        records = to_table([Row(b"key", b"value", timestamp=now_ms - age) for age in ages_ms])
        config = self.topics.config(chain.newest())
        return append_records(self.storage, chain, config, self.clock, records, partition).state

    def take_over(self, name: str, query: str = "q") -> TopicState:
        return take_over(self.topics.chain(name), query)

    def report_ingest(self, name: str, lag: int | None, *, is_running: bool = True, age_ms: int = 0) -> IngestReport:
        """A report of the ingest that feeds a topic."""
        query, now_ms = self.topics.state(name).writer.query, self.clock.now_ms() - age_ms
        assert query is not None
        report = IngestReport(
            query=query, updated_ms=now_ms, is_running=is_running, batch_id=41, batch_ms=now_ms, lag_records=lag
        )
        put_report(self.storage, report)
        return report

    def tear_report(self, name: str) -> None:
        """Cut off the second half of the report of the ingest that feeds a topic."""
        key = f"{INGEST_REPORTS}/{self.topics.state(name).writer.query}.json"
        data = self.storage.read(key)
        self.storage.replace(key, data[: len(data) // 2])

    def hide_reports(self) -> None:
        """Make the folder of the reports of ingests unreadable: it becomes a link to itself."""
        folder = self.folder / INGEST_REPORTS
        shutil.rmtree(folder, ignore_errors=True)
        folder.symlink_to(folder.name)

    def export(
        self, name: str, positions: Mapping[int, int], table: str = "tables/orders", kind: str = EXPORT_KIND
    ) -> None:
        state = self.topics.state(name)
        put_positions(self.storage, state, f"export {table}", kind, positions, self.clock.now_ms(), holds_back=True)

    def group(self, name: str, group: str, positions: Mapping[int, int]) -> None:
        put_positions(self.storage, self.topics.state(name), group, GROUP_KIND, positions, self.clock.now_ms())

    def group_with(self, name: str, group: str, positions: dict[int, int], *samples: tuple[int, int, int]) -> None:
        """A group with these samples: age of the sample, position, end."""
        now_ms = self.clock.now_ms()
        made = tuple(PositionSample(now_ms - age, position, end) for age, position, end in samples)
        state = self.topics.state(name)
        consumer = Consumer(
            name=group, kind=GROUP_KIND, topic_id=state.topic_id, positions=positions, registered_ms=made[0].ms,
            updated_ms=made[-1].ms, holds_back=False, samples=made,
        )  # fmt: skip
        put_consumer(self.storage, name, consumer)

    def state_file(self, name: str) -> Path:
        """The file of the newest version, also if the file is damaged."""
        return self.folder / version_key(name, max(self.topics.chain(name).versions()))

    def damage(self, name: str) -> None:
        """Change one byte of the newest version."""
        path = self.state_file(name)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    def set_time(self, path: Path, ms: int) -> None:
        os.utime(path, ns=(ms * 1_000_000, ms * 1_000_000))
