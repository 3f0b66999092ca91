"""Runs the lives of a random case: by Kafka's LogManager in a JVM, and by `lakelog log-manager`, both by a simulated clock.

The two sides have the same verbs and give the same answers. `open` and `tick` return a Seen: the offsets of each open
log, the directories that went offline, and the partitions that are not cleaned any more because a cleaning failed.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.turns import Peer
from storage_engine.clock import ManualClock
from storage_engine.config.server_properties import read_server_properties
from storage_engine.errors import CorruptionError, LogError
from storage_engine.kafka_dir.partition_log import PartitionLog
from storage_engine.kafka_dir.upkeep.cleaning import Cleaning
from storage_engine.kafka_dir.upkeep.opening import BrokerLogs, Options
from storage_engine.kafka_dir.upkeep.tasks import Tasks
from storage_engine.log.checkpoint import HIGH_WATERMARKS, decode_offsets
from storage_engine.log.log_reader import LogReader
from tests.kafka.log_manager.random_directories import Case
from tests.storage_engine.record_tables import to_rows

_KEYS = {
    "retention": "log.retention.check.interval.ms",
    "flush": "log.flush.scheduler.interval.ms",
    "recovery_points": "log.flush.offset.checkpoint.interval.ms",
    "log_starts": "log.flush.start.offset.checkpoint.interval.ms",
    "initial_delay": "log.initial.task.delay.ms",
    "producer_expiration": "producer.id.expiration.ms",
}


class Offsets(NamedTuple):
    """The offsets of an open log."""

    start: int
    end: int
    recovery_point: int
    high_watermark: int
    last_stable_offset: int


class Seen(NamedTuple):
    """What a side shows. logs, uncleanable: by the folder of a partition. offline: names of log directories."""

    logs: Mapping[str, Offsets]
    offline: frozenset[str]
    uncleanable: frozenset[str]


class KafkaError(Exception):
    """Kafka's LogManager failed."""


_IDLE_ROUNDS = 2
"""A round can delete segments below the log start, so that a log is due in the next round."""


class KafkaSide:
    """Kafka's own LogManager and LogCleaner."""

    def __init__(self, parent: Path, case: Case, peer: Peer) -> None:
        self._parent = parent
        self._case = case
        self._peer = peer

    def open(self, now_ms: int) -> Seen:
        settings = {topic: _for_kafka(own) for topic, own in self._case.settings.items()}
        dirs = [self._parent / f"d{number}" for number in range(self._case.directories)]
        return self._seen(
            self._ask(
                "open", dirs=[str(each) for each in dirs], broker={}, topics=settings, intervals=self._case.intervals,
                now=now_ms, marks=high_watermarks(dirs),
            )
        )  # fmt: skip

    def tick(self, now_ms: int, left_out: Collection[str] = ()) -> Seen:
        """Run what is due. left_out: the folders of logs that are not cleaned."""
        return self._seen(self._ask("tick", now=now_ms, leftOut=sorted(left_out)))

    def append(self, folder: str, batch: bytes) -> None:
        self._ask("append", folder=folder, batch=base64.b64encode(batch).decode())

    def records(self) -> dict[str, dict[int, int]]:
        return {folder: dict(found) for folder, found in self._ask("records").items()}

    def end(self, *, clean: bool) -> None:
        self._ask("end", clean=clean)

    def _ask(self, verb: str, **more: Any) -> Any:
        answer = self._peer.ask({"what": verb, **more})
        if isinstance(answer, dict) and "error" in answer:
            raise KafkaError(answer["error"])
        return answer

    def _seen(self, answer: Mapping[str, Any]) -> Seen:
        logs = {folder: Offsets(*offsets) for folder, offsets in answer["logs"].items()}
        return Seen(logs, frozenset(answer["offline"]), frozenset(answer["uncleanable"]))


def _for_kafka(settings: Mapping[str, str]) -> dict[str, str]:
    """Kafka has another key for segments that are smaller than a mebibyte."""
    return {"internal.segment.bytes" if key == "segment.bytes" else key: value for key, value in settings.items()}


def high_watermarks(directories: Sequence[Path]) -> dict[str, int]:
    """The high watermarks that a broker has written, by folder."""
    files = [each / HIGH_WATERMARKS for each in directories if (each / HIGH_WATERMARKS).exists()]
    found = {key: at for file in files for key, at in decode_offsets(file.read_bytes(), file.name).items()}
    return {f"{topic}-{number}": at for (topic, number), at in found.items()}


class OurSide:
    """The log manager of `lakelog log-manager`."""

    def __init__(self, parent: Path, case: Case) -> None:
        self._parent = parent
        self._case = case
        self.errors: list[LogError] = []

    def did(self, place: str, what: str) -> None:
        """As a Reporter: ignore what was done."""

    def failed(self, error: LogError) -> None:
        """As a Reporter: note an error."""
        self.errors.append(error)

    def open(self, now_ms: int) -> Seen:
        dirs = ",".join(str(self._parent / f"d{number}") for number in range(self._case.directories))
        lines = [f"log.dirs={dirs}", *(f"{_KEYS[name]}={at}" for name, at in self._case.intervals.items())]
        file = self._parent / "server.properties"
        file.write_text("\n".join(lines) + "\n")
        self._clock = ManualClock(now_ms)
        options = Options(given=self._case.settings, truncates=self._case.truncates)
        self._opened = BrokerLogs(read_server_properties(file), options, self._clock, self)
        managed = self._opened.managed
        self._tasks = Tasks(self._opened.logs, self._clock, managed, self)
        self._cleaning = Cleaning(self._opened.logs, self._tasks, self._clock, managed, self)
        return self.seen()

    def tick(self, now_ms: int, left_out: Collection[str] = ()) -> Seen:
        """Run what is due. left_out: the folders of logs that are cleaned after all others."""
        self._clock.advance(now_ms - self._clock.now_ms())
        self._tasks.run_due()
        for skipped in ({each for each in self._opened.logs.partitions if each.folder in left_out}, ()):
            idle = 0
            while idle < _IDLE_ROUNDS:
                idle = 0 if self._cleaning.clean_next(skipped) is not None else idle + 1
        return self.seen()

    def append(self, folder: str, batch: bytes) -> None:
        topic, _, number = folder.rpartition("-")
        log = self._opened.logs.log(topic, int(number))
        log.become_leader(log.leader_epoch)  # begins epoch 0 if the log has no epoch
        log.append_batches(np.frombuffer(batch, np.uint8))

    def seen(self) -> Seen:
        logs = self._opened.logs
        states = {each.folder: _offsets(logs.log(*each)) for each in logs.partitions}
        damaged = {_folder_of(error) for error in self.errors if isinstance(error, CorruptionError)}
        return Seen(states, frozenset(Path(path).name for path in logs.offline), frozenset(damaged))

    def records(self) -> dict[str, dict[int, int]]:
        logs = self._opened.logs
        return {each.folder: _records(logs.log(*each)) for each in logs.partitions}

    def damaged(self) -> frozenset[str]:
        """The folders in which loading cut damaged bytes out."""
        return frozenset(report.place for report in self._opened.logs.reports if report.cuts)

    def recovered(self) -> dict[str, list[int]]:
        """The base offsets of the segments that loading has recovered, by folder."""
        reports = self._opened.logs.reports
        return {Path(report.place).name: sorted(report.recovered) for report in reports if report.recovered}

    def end(self, *, clean: bool) -> None:
        if clean:
            self._opened.close()
        else:
            self._opened.logs.abandon()


def _offsets(log: PartitionLog) -> Offsets:
    state = log.state()
    return Offsets(
        state.log_start_offset, log.log_end_offset, log.recovery_point, state.high_watermark, state.last_stable_offset
    )


def _folder_of(error: CorruptionError) -> str:
    return Path(error.file).parent.name


def _records(log: PartitionLog) -> dict[int, int]:
    """A CRC-32 for each record of the log, by offset; also of those above the high watermark."""
    found: dict[int, int] = {}
    whole = log.state().model_copy(update={"high_watermark": log.log_end_offset})
    reader = LogReader(log._storage, whole, lambda segment: f"{log.folder}/{segment.name}", log.folder)
    for part in reader.read(log.log_start_offset, log.log_end_offset):
        for offset, row in zip(part["offset"].to_pylist(), to_rows(part), strict=True):
            parts = [_marked(row.key), _marked(row.value)]
            parts += [name.encode() + _marked(value) for name, value in row.headers]
            found[offset] = zlib.crc32(b"".join(parts) + row.timestamp.to_bytes(8, "big", signed=True))
    return found


def _marked(data: bytes | None) -> bytes:
    return b"\0" if data is None else b"\1" + data
