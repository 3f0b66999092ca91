"""Compacts the logs of a LogManager (Kafka's LogCleaner). The log with the largest dirty ratio is compacted first.

Each call of `clean_next` compacts at most one log, and then applies retention to the compacted topics. Several
threads may call `clean_next` at the same time: no two threads work on one log. If the contents of a log cannot be
compacted, the log is reported once. As in Kafka, the log is not tried again until the next start. If the disk is full,
the log is not tried again for log.cleaner.backoff.ms, and other logs are compacted meanwhile.
kafka_dir.segment_swap describes which files remain after a crash.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container

from storage_engine.cleaner.cleaner import CleanedPartition
from storage_engine.clock import Clock, SystemClock
from storage_engine.errors import CorruptionError, InterruptedWorkError, LogError, StorageError, StorageFullError
from storage_engine.kafka_dir.log_directory import TopicPartition
from storage_engine.kafka_dir.log_manager import LogManager
from storage_engine.kafka_dir.open_directory import OpenDirectory
from storage_engine.kafka_dir.upkeep.due_compaction import filthiest, select_in_place
from storage_engine.kafka_dir.upkeep.reporting import SILENT, Reporter
from storage_engine.kafka_dir.upkeep.tasks import EVERY_TOPIC, Tasks
from storage_engine.log.checkpoint import FIRST_DIRTY_OFFSETS
from storage_engine.quantities import counted, shown_number, shown_size


class Cleaning:
    """The compaction of the logs of one LogManager."""

    def __init__(
        self,
        logs: LogManager,
        tasks: Tasks,
        clock: Clock | None = None,
        managed: Container[str] = EVERY_TOPIC,
        reporter: Reporter = SILENT,
    ) -> None:
        """
        Args:
            tasks: applies retention to compacted topics.
            managed: the topics that may be compacted.
        """
        self._logs = logs
        self._tasks = tasks
        self._clock = clock or SystemClock()
        self._managed = managed
        self._reporter = reporter
        self._guard = threading.Lock()
        self._busy: set[TopicPartition] = set()
        self._uncleanable: set[TopicPartition] = set()
        self._full_ms: dict[TopicPartition, int] = {}
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Stop the running compactions, and begin no other. Their new files are deleted."""
        self._stopping.set()

    def clean_next(
        self, skipped: Container[TopicPartition] = (), stops: Callable[[], bool] = lambda: False
    ) -> TopicPartition | None:
        """Compact the log with the largest dirty ratio of those whose compaction is due, and apply retention to compacted
        topics.

        Args:
            skipped: logs that are not compacted now.
            stops: returns whether the compaction must stop. It is called again and again while the compaction runs.

        Returns:
            The log, even if its compaction failed. None if no compaction was due.

        Raises:
            StorageError: the last directory went offline.
        """
        with self._guard:
            chosen = None if self._stopping.is_set() else self._choose(skipped)
            if chosen is not None:
                self._busy.add(chosen[1])
        try:
            if chosen is not None:
                self._clean(*chosen, stops)
        finally:
            if chosen is not None:
                with self._guard:
                    self._busy.discard(chosen[1])
        self._retain_compacted()
        return None if chosen is None else chosen[1]

    def _choose(self, skipped: Container[TopicPartition]) -> tuple[OpenDirectory, TopicPartition] | None:
        plans = {}
        for directory in self._logs.open_directories:
            for partition, log in list(directory.logs.items()):
                passed_over = partition in skipped or partition in self._busy or self._is_given_up(partition)
                is_compacted = log.config.compact and log.is_writable
                if is_compacted and partition.topic in self._managed and not passed_over:
                    with self._logs.taking_offline(directory):
                        try:
                            plans[directory.path, partition] = select_in_place(
                                directory.storage, log.state(), log.config, log.folder, self._clock.now_ms()
                            )
                        except StorageError:
                            raise
                        except LogError as error:
                            self._give_up(directory, partition, error)
        found = filthiest(plans)
        if found is None:
            return None
        return next(each for each in self._logs.open_directories if each.path == found[0]), found[1]

    def _clean(self, directory: OpenDirectory, partition: TopicPartition, stops: Callable[[], bool]) -> None:
        place = f"{directory.path}/{partition.folder}"
        config = self._logs.config
        threads = max(1, config.cleaner_threads)
        cleaned: CleanedPartition | None = None
        with self._logs.taking_offline(directory):
            try:
                cleaned = directory.logs[partition].compact(
                    memory_bytes=max(1024, config.broker.log_cleaner_dedupe_buffer_bytes // threads),
                    bytes_per_second=config.broker.log_cleaner_io_max_bytes_per_second / threads,
                    progress=_UntilStopped(lambda: self._stopping.is_set() or stops()),
                )
            except InterruptedWorkError:
                self._reporter.did(place, "the compaction was stopped, and nothing changed")
            except StorageFullError as error:
                self._full_ms[partition] = self._clock.now_ms()
                self._reporter.failed(error)
            except StorageError:
                raise
            except LogError as error:
                self._give_up(directory, partition, error)
        self._tasks.report_offline()
        if cleaned is not None:
            self._reporter.did(place, _line(cleaned))
            self._tasks.each_directory(lambda each: self._checkpoint(each, directory))

    def _checkpoint(self, each: OpenDirectory, cleaned: OpenDirectory) -> None:
        if each is cleaned:
            each.write_first_dirty_offsets()
            self._reporter.did(each.path, f"wrote {FIRST_DIRTY_OFFSETS}")

    def _is_given_up(self, partition: TopicPartition) -> bool:
        """Whether the log cannot be compacted, or must wait because its last compaction met a full disk."""
        full_ms = self._full_ms.get(partition)
        if full_ms is not None and 0 <= self._clock.now_ms() - full_ms < self._logs.config.cleaner_backoff_ms:
            return True
        return partition in self._uncleanable

    def _give_up(self, directory: OpenDirectory, partition: TopicPartition, error: LogError) -> None:
        self._uncleanable.add(partition)
        if isinstance(error, CorruptionError) and error.file.startswith(f"{partition.folder}/"):
            file = f"{directory.path}/{error.file}"
            error = type(error)(file, error.position, error.expected, error.found, error.remedy)
        self._reporter.failed(error)

    def _retain_compacted(self) -> None:
        with self._guard:  # no thread may wait for the guard while it works in the directories
            chosen = {
                partition
                for directory in self._logs.open_directories
                for partition, log in list(directory.logs.items())
                if log.config.compact and log.is_writable
                if partition.topic in self._managed and partition not in self._busy
            }
            self._busy |= chosen

        def retain(directory: OpenDirectory) -> None:
            for partition, log in directory.logs.items():
                if partition in chosen:
                    self._tasks.retain(directory, partition, log)

        try:
            self._tasks.each_directory(retain)
        finally:
            with self._guard:
                self._busy -= chosen


class _UntilStopped:
    """A Progress that stops the work when the program ends."""

    def __init__(self, stops: Callable[[], bool]) -> None:
        self._stops = stops

    def expect(self, records: int | None = None, size: int | None = None) -> None:
        """Ignore the report."""

    def advance(self, records: int = 0, size: int = 0) -> None:  # noqa: ARG002 (as in Progress)
        """Stop the work if the program is exiting."""
        if self._stops():
            raise InterruptedWorkError("compaction", "was stopped because the program is exiting")


def _line(cleaned: CleanedPartition) -> str:
    before, after = (counted(len(each), "segment") for each in (cleaned.replaced, cleaned.segments))
    return (
        f"compacted up to offset {cleaned.first_dirty_offset}, {shown_number(cleaned.records_before)} records to"
        f" {shown_number(cleaned.records_after)}, {shown_size(cleaned.bytes_before)} in {before} to"
        f" {shown_size(cleaned.bytes_after)} in {after}"
    )
