"""Does the scheduled tasks of a LogManager: retention, flushes, checkpoints, deletions (Kafka's LogManager).

Retention of compacted topics is not a task of this module. The cleaner applies this retention between two compactions
(upkeep.cleaning), so that no segment disappears while the cleaner reads it. If the storage of a directory fails, this
directory goes offline, and the work on the other directories continues. A full disk is reported for the log that met
it. The work on the other logs continues, because a deletion can free space. If nothing of this log had changed, the
log is tried again when the task is due the next time.

After a crash, each flush and each checkpoint is either complete or not done. Retention first renames files; after a
crash, the next load deletes the renamed files. Any thread may call any method.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

from storage_engine.clock import Clock, SystemClock
from storage_engine.errors import StorageFullError
from storage_engine.kafka_dir.log_directory import TopicPartition
from storage_engine.kafka_dir.log_manager import LogManager
from storage_engine.kafka_dir.open_directory import OpenDirectory
from storage_engine.kafka_dir.partition_log import PartitionLog
from storage_engine.kafka_dir.upkeep.reporting import SILENT, Reporter
from storage_engine.kafka_dir.upkeep.schedule import Schedule, Task
from storage_engine.log.checkpoint import LOG_STARTS, RECOVERY_POINTS
from storage_engine.quantities import counted


class _EveryTopic:
    def __contains__(self, topic: object) -> bool:
        return True


EVERY_TOPIC: Container[str] = _EveryTopic()


class Tasks:
    """The tasks of one LogManager, and the times at which they run."""

    def __init__(
        self,
        logs: LogManager,
        clock: Clock | None = None,
        managed: Container[str] = EVERY_TOPIC,
        reporter: Reporter = SILENT,
    ) -> None:
        """
        Args:
            managed: the topics from which retention may delete.
        """
        self._logs = logs
        self._clock = clock or SystemClock()
        self._managed = managed
        self._reporter = reporter
        self._offline: set[str] = set()
        self._guard = threading.RLock()
        self._schedule = Schedule.beginning_at(self._clock.now_ms(), logs.config)
        self._work: dict[Task, Callable[[OpenDirectory], None]] = {
            Task.RETENTION: self._retain,
            Task.FLUSH: self._flush,
            Task.RECOVERY_POINTS: self._write_recovery_points,
            Task.LOG_STARTS: self._write_log_starts,
            Task.HIGH_WATERMARKS: OpenDirectory.write_high_watermarks,
            Task.PRODUCERS: self._expire_producers,
            Task.DELETION: self._delete,
        }

    @property
    def next_ms(self) -> float:
        """The earliest time at which a task is due."""
        return self._schedule.next_ms

    def run_due(self) -> None:
        """Do the tasks that are due by the clock.

        Raises:
            StorageError: the last directory went offline.
        """
        with self._guard:
            now_ms = self._clock.now_ms()
            schedule = self._schedule.at(now_ms)
            due, self._schedule = schedule.due(now_ms), schedule.after(now_ms)
            for task in due:
                self.run(task)

    def run(self, task: Task) -> None:
        """Do one task now. Raises the errors of run_due."""
        self.each_directory(self._work[task])

    def each_directory(self, work: Callable[[OpenDirectory], None]) -> None:
        """Do something in each directory. Raises the errors of run_due."""

        def unless_full(directory: OpenDirectory) -> None:
            with self._reporting_full():
                work(directory)

        try:
            self._logs.each_directory(unless_full)
        finally:
            self.report_offline()

    def report_offline(self) -> None:
        """Report each directory that went offline since the last report."""
        with self._guard:
            for path, error in list(self._logs.offline.items()):
                if path not in self._offline:
                    self._offline.add(path)
                    self._reporter.failed(error)
                    self._reporter.did(path, "offline: nothing more is done in this directory")

    def retain(self, directory: OpenDirectory, partition: TopicPartition, log: PartitionLog) -> None:
        """Apply retention to one log of a managed topic. A full disk is reported."""
        place = f"{directory.path}/{partition.folder}"
        with self._reporting_full():
            plan = log.apply_retention()
            while plan.deletions:
                for deletion in plan.deletions:
                    self._reporter.did(place, f"retention deletes {deletion}")
                self._delete_files(directory, partition, log)
                plan = log.apply_retention()  # deletes the newest segment, if this needed the space of the others
            if plan.blocked is not None:
                self._reporter.did(place, f"retention keeps old segments: {plan.blocked}")

    @contextmanager
    def _reporting_full(self) -> Iterator[None]:
        try:
            yield
        except StorageFullError as error:
            self._reporter.failed(error)

    def _retain(self, directory: OpenDirectory) -> None:
        for partition, log in directory.logs.items():
            if partition.topic in self._managed and not log.config.compact:
                self.retain(directory, partition, log)

    def _flush(self, directory: OpenDirectory) -> None:
        for partition, log in directory.logs.items():
            with self._reporting_full():
                if log.flush_if_due():
                    place = f"{directory.path}/{partition.folder}"
                    self._reporter.did(place, f"flushed up to offset {log.recovery_point}")

    def _write_recovery_points(self, directory: OpenDirectory) -> None:
        directory.write_recovery_points()
        self._wrote(directory, RECOVERY_POINTS)

    def _write_log_starts(self, directory: OpenDirectory) -> None:
        directory.write_log_starts()
        self._wrote(directory, LOG_STARTS)

    def _wrote(self, directory: OpenDirectory, file: str) -> None:
        self._reporter.did(directory.path, f"wrote {file}")

    def _expire_producers(self, directory: OpenDirectory) -> None:
        for log in directory.logs.values():
            log.expire_producers(self._logs.config.producer_expiration_ms)

    def _delete(self, directory: OpenDirectory) -> None:
        for partition, log in directory.logs.items():
            with self._reporting_full():
                self._delete_files(directory, partition, log)
        for name in directory.delete_folders(self._clock.now_ms()):
            self._reporter.did(f"{directory.path}/{name}", "deleted the folder of a deleted partition")

    def _delete_files(self, directory: OpenDirectory, partition: TopicPartition, log: PartitionLog) -> None:
        count = log.delete_due_files()
        if count:
            self._reporter.did(f"{directory.path}/{partition.folder}", f"deleted {counted(count, 'file')}")
