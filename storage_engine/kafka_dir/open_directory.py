"""One log directory in use: the lock that is held, the logs that are open, and the files beside the partitions.

    .lock                                  held exclusively: no broker and no other process works here
    .kafka_cleanshutdown                   written by an orderly close, removed when the directory is opened
    meta.properties                        made where it is missing
    recovery-point-offset-checkpoint       up to where each log is durable; behind it a crash makes loading read
    log-start-offset-checkpoint            log starts above their first segment's base
    replication-offset-checkpoint          high watermarks, which are the logs' ends: there is one replica
    cleaner-offset-checkpoint              up to where compacted logs are clean

Each checkpoint is replaced as a whole, so that a crash leaves the one before. Not synchronised; the LogManager sees to that.
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
    """See the module.

    held: the lock. clean: the directory was left by an orderly close. recovery_points, log_starts, first_dirty_offsets:
    what the checkpoints said when it was opened. found: the partitions that were there. aside: folders that are left
    alone. logs: what is open. deletions: folders to be removed, with the time from which on.
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
        """Where it lies."""
        return self.storage.uri

    def survey(self, names: Mapping[str, bool], now_ms: int) -> None:
        """Take in what lies in the directory, and count it as not closed in order from now on.

        Args:
            names: of all entries, and whether each is a folder.

        Raises:
            CorruptionError: a checkpoint is damaged.
            StorageAccessError: a folder is no partition's. StorageError: the storage refused.
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
                    f"{storage.uri}/{name}", "is no partition's folder, whose name is topic-partition",
                    "Move it away: a broker stops over it, too.",
                )  # fmt: skip
        self.clean = CLEAN_SHUTDOWN in names
        if self.clean:
            # At once, so that a crash while loading counts as one.
            storage.delete(CLEAN_SHUTDOWN)
            storage.sync_names("")

    def forget(self, partition: TopicPartition) -> None:
        """Drop what the checkpoints said about a partition: another of its name begins."""
        for offsets in (self.recovery_points, self.log_starts, self.first_dirty_offsets):
            offsets.pop(partition, None)

    def meta_properties(self) -> MetaProperties | None:
        """What meta.properties says; None where it is missing.

        Raises:
            CorruptionError: it is damaged.
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
        """Write the offset of each log that has one."""
        offsets = {each: offset_of(log) for each, log in self.logs.items()}
        self.storage.replace(file, encode_offsets({each: at for each, at in offsets.items() if at is not None}))

    def write_recovery_points(self) -> None:
        """Up to where each log is durable."""
        self._write_checkpoint(RECOVERY_POINTS, lambda log: log.recovery_point)

    def write_log_starts(self) -> None:
        """The log starts that lie above the base of their first segment."""

        def above_first_segment(log: PartitionLog) -> int | None:
            return log.log_start_offset if log.log_start_offset > log.first_base_offset else None

        self._write_checkpoint(LOG_STARTS, above_first_segment)

    def write_high_watermarks(self) -> None:
        """The logs' ends."""
        self._write_checkpoint(HIGH_WATERMARKS, lambda log: log.log_end_offset)

    def write_first_dirty_offsets(self) -> None:
        """Up to where each log was compacted."""
        self._write_checkpoint(FIRST_DIRTY_OFFSETS, lambda log: log.first_dirty_offset)

    def write_checkpoints(self) -> None:
        """All of them."""
        self.write_recovery_points()
        self.write_log_starts()
        self.write_high_watermarks()
        self.write_first_dirty_offsets()

    def flush_due(self) -> None:
        """Flush the logs for which it is time."""
        for log in self.logs.values():
            log.flush_if_due()

    def apply_retention(self) -> None:
        """Drop what the logs need not keep any more."""
        for log in self.logs.values():
            log.apply_retention()

    def delete_due(self, now_ms: int) -> None:
        """Delete the files of logs, and the folders of deleted partitions, for which it is time."""
        for log in self.logs.values():
            log.delete_due_files()
        for due_ms, name in list(self.deletions):
            if due_ms <= now_ms:
                self.storage.remove_folder(name)
                self.deletions.remove((due_ms, name))

    def close(self, threads: int) -> None:
        """Close the logs in order, and leave the checkpoints and .kafka_cleanshutdown; the lock is still held.

        Raises:
            StorageError: the storage refused; the directory then counts as not closed in order.
        """
        with ThreadPoolExecutor(threads, "close") as pool:
            closing = [pool.submit(log.close) for log in self.logs.values()]
        for each in closing:
            each.result()
        self.write_checkpoints()
        self.storage.replace(CLEAN_SHUTDOWN, _CLEAN)

    def abandon(self) -> None:
        """Let go of the logs and of the lock, as a crash would."""
        for log in self.logs.values():
            log.abandon()
        self.held.close()


def refuse_twins(directories: Iterable[OpenDirectory]) -> None:
    """
    Raises:
        ConflictError: a partition lies in two directories.
    """
    seen: dict[TopicPartition, OpenDirectory] = {}
    for directory in directories:
        for partition in directory.found:
            other = seen.setdefault(partition, directory)
            if other is not directory:
                raise ConflictError(
                    f"{other.path}/{partition.folder} and {directory.path}/{partition.folder}",
                    "are the same partition", "Find out which is the right one and move the other away.",
                )  # fmt: skip
