"""Defines OpenDirectory: one log directory in use, with its lock, its open logs, and the files beside the partitions.

    .lock                                  locked exclusively: no broker and no other process works here
    .kafka_cleanshutdown                   written by an orderly close, removed when the directory is opened
    meta.properties                        created if it is missing
    recovery-point-offset-checkpoint       each log is durable below this offset; after a crash, reading starts at this
                                           offset
    log-start-offset-checkpoint            log start offsets that are above the first segment's base offset
    replication-offset-checkpoint          high watermarks; with one replica they are the ends of the logs
    cleaner-offset-checkpoint              compacted logs are clean below this offset

Each checkpoint is replaced as a whole, so a crash leaves the old or the new checkpoint. The class is not thread-safe:
the LogManager makes one call at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

from storage_engine.errors import ConflictError, NotFoundError, StorageAccessError
from storage_engine.kafka_dir.log_directory import (
    DELETED_FOLDER,
    FUTURE_FOLDER,
    STRAY_FOLDER,
    TopicPartition,
    partition_of,
)
from storage_engine.kafka_dir.partition_log import PartitionLog
from storage_engine.log.checkpoint import (
    CLEAN_SHUTDOWN,
    FIRST_DIRTY_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    MetaProperties,
    decode_meta_properties,
    decode_offsets,
    encode_offsets,
)
from storage_engine.storage import Directory

_CLEAN = b'{"version":0,"brokerEpoch":-1}'


@dataclass
class OpenDirectory:
    """One directory, while it is in use.

    held: the lock.
    clean: whether the directory was closed cleanly.
    recovery_points, log_starts, first_dirty_offsets: the contents of the checkpoints when the directory was opened.
    found: the partitions that existed then.
    aside: folders that a broker set aside; not touched.
    logs: the open logs.
    deletions: folders to remove, each with the earliest time at which it may be removed.
    """

    storage: Directory
    held: ExitStack
    clean: bool = False
    recovery_points: dict[tuple[str, int], int] = field(default_factory=dict)
    log_starts: dict[tuple[str, int], int] = field(default_factory=dict)
    first_dirty_offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    found: list[TopicPartition] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict)
    deletions: list[tuple[int, str]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The path of the directory."""
        return self.storage.uri

    def survey(self, names: Mapping[str, bool], now_ms: int) -> None:
        """Read the contents of the directory. From now on, the directory counts as not closed cleanly.

        Args:
            names: the names of all entries, and whether each is a folder.

        Raises:
            CorruptionError: a checkpoint is damaged.
            StorageAccessError: a folder is not the folder of a partition.
            StorageError: the storage refused.
        """
        storage = self.storage
        self.recovery_points = self._read_checkpoint(RECOVERY_POINTS)
        self.log_starts = self._read_checkpoint(LOG_STARTS)
        self.first_dirty_offsets = self._read_checkpoint(FIRST_DIRTY_OFFSETS)
        for name in sorted(name for name, is_folder in names.items() if is_folder):
            partition = partition_of(name)
            if name.endswith(DELETED_FOLDER):
                self.deletions.append((now_ms, name))
            elif name.endswith((FUTURE_FOLDER, STRAY_FOLDER)):
                self.aside.append(name)
            elif partition is not None:
                self.found.append(partition)
            else:
                raise StorageAccessError(
                    f"{storage.uri}/{name}", "is not a partition's folder, because its name is not topic-partition",
                    "Move this folder away. A broker also refuses to start while this folder is here.",
                )  # fmt: skip
        self.clean = CLEAN_SHUTDOWN in names
        if self.clean:
            # This comes before anything is loaded, so that a crash during loading is recognised as a crash.
            storage.delete(CLEAN_SHUTDOWN)
            storage.sync_names("")

    def forget(self, partition: TopicPartition) -> None:
        """Drop what the checkpoints recorded for a partition, because a new partition of the same name begins."""
        for offsets in (self.recovery_points, self.log_starts, self.first_dirty_offsets):
            offsets.pop(partition, None)

    def meta_properties(self) -> MetaProperties | None:
        """The contents of meta.properties; None if it is missing.

        Raises:
            CorruptionError: the file is damaged.
        """
        try:
            return decode_meta_properties(self.storage.read(META_PROPERTIES), f"{self.path}/{META_PROPERTIES}")
        except NotFoundError:
            return None

    def _read_checkpoint(self, file: str) -> dict[tuple[str, int], int]:
        try:
            return decode_offsets(self.storage.read(file), f"{self.storage.uri}/{file}")
        except NotFoundError:
            return {}

    def _write_checkpoint(self, file: str, offset_of: Callable[[PartitionLog], int | None]) -> None:
        """Write a checkpoint with the offset of each log that has an offset."""
        offsets = {each: offset_of(log) for each, log in self.logs.items()}
        self.storage.replace(file, encode_offsets({each: at for each, at in offsets.items() if at is not None}))

    def write_recovery_points(self) -> None:
        """Write the offsets below which the logs are durable."""
        self._write_checkpoint(RECOVERY_POINTS, lambda log: log.recovery_point)

    def write_log_starts(self) -> None:
        """Write the log start offsets that are above the base offset of the first segment."""

        def above_first_segment(log: PartitionLog) -> int | None:
            return log.log_start_offset if log.log_start_offset > log.first_base_offset else None

        self._write_checkpoint(LOG_STARTS, above_first_segment)

    def write_high_watermarks(self) -> None:
        """Write the ends of the logs as high watermarks."""
        self._write_checkpoint(HIGH_WATERMARKS, lambda log: log.log_end_offset)

    def write_first_dirty_offsets(self) -> None:
        """Write the offsets below which the logs are compacted."""
        self._write_checkpoint(FIRST_DIRTY_OFFSETS, lambda log: log.first_dirty_offset)

    def write_checkpoints(self) -> None:
        """Write all four checkpoints."""
        self.write_recovery_points()
        self.write_log_starts()
        self.write_high_watermarks()
        self.write_first_dirty_offsets()

    def flush_due(self) -> None:
        """Flush the logs whose flush.ms have passed."""
        for log in self.logs.values():
            log.flush_if_due()

    def apply_retention(self) -> None:
        """Apply retention to all logs."""
        for log in self.logs.values():
            log.apply_retention()

    def delete_due(self, now_ms: int) -> None:
        """Delete the files and folders that were marked as deleted and whose delay has passed."""
        for log in self.logs.values():
            log.delete_due_files()
        for due_ms, name in list(self.deletions):
            if due_ms <= now_ms:
                self.storage.remove_folder(name)
                self.deletions.remove((due_ms, name))

    def close(self, threads: int) -> None:
        """Close the logs cleanly, write the checkpoints and .kafka_cleanshutdown. The lock is kept.

        Raises:
            StorageError: the storage refused. The directory then counts as not closed cleanly.
        """
        with ThreadPoolExecutor(threads, "close") as pool:
            closing = [pool.submit(log.close) for log in self.logs.values()]
        for each in closing:
            each.result()
        self.write_checkpoints()
        self.storage.replace(CLEAN_SHUTDOWN, _CLEAN)

    def abandon(self) -> None:
        """Release the logs and the lock without syncing anything, as a crash would."""
        for log in self.logs.values():
            log.abandon()
        self.held.close()


def refuse_duplicate_logs(directories: Iterable[OpenDirectory]) -> None:
    """Check that no partition is in two directories.

    Raises:
        ConflictError: a partition is in two directories.
    """
    seen: dict[TopicPartition, OpenDirectory] = {}
    for directory in directories:
        for partition in directory.found:
            other = seen.setdefault(partition, directory)
            if other is not directory:
                raise ConflictError(
                    f"{other.path}/{partition.folder} and {directory.path}/{partition.folder}",
                    "are the same partition",
                    "Find out which folder has the right contents, and move the other folder away.",
                )  # fmt: skip
