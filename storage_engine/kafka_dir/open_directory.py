"""Defines OpenDirectory: one log directory in use, with its lock, its open logs, and the files beside the partitions.

    .lock                                  locked exclusively: no broker and no other process works here
    .kafka_cleanshutdown                   written by an orderly close, removed when the loading of the logs begins
    meta.properties                        created if it is missing
    recovery-point-offset-checkpoint       each log is durable below this offset; after a crash, reading starts at this
                                           offset
    log-start-offset-checkpoint            log start offsets that are above the first segment's base offset
    replication-offset-checkpoint          high watermarks; with one replica they are the ends of the logs
    cleaner-offset-checkpoint              compacted logs are clean below this offset

If of_broker is set, the directories belong to a broker, which uses them at other times. In these directories, only
the broker writes the high watermarks, and no record above its high watermark is deleted or compacted. If the broker
wrote none, they are 0. The checkpoints keep the lines of partitions that are not opened. .kafka_cleanshutdown keeps the
broker's epoch.

Each checkpoint is replaced as a whole, so a crash leaves the old or the new checkpoint. The class is not thread-safe:
the LogManager makes one call at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

from storage_engine.errors import ConflictError, CorruptionError, NotFoundError, StorageAccessError
from storage_engine.kafka_dir.log_directory import (
    DELETED_FOLDER,
    FUTURE_FOLDER,
    TopicPartition,
    partition_of,
    set_aside_as,
)
from storage_engine.kafka_dir.log_files import LogFiles
from storage_engine.kafka_dir.log_loading import settle_topic_id
from storage_engine.kafka_dir.partition_log import PartitionLog
from storage_engine.kafka_dir.recovery_report import RecoveryReport, lost_end
from storage_engine.log.checkpoint import (
    CLEAN_SHUTDOWN,
    FIRST_DIRTY_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    MetaProperties,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    encode_offsets,
)
from storage_engine.storage import Directory

CLUSTER_METADATA = TopicPartition("__cluster_metadata", 0)
"""The partition with KRaft's records. Its folder has files of its own, and KRaft alone opens it for writing."""
REMOTE_INDEX_CACHE = "remote-log-index-cache"
"""The folder in which a broker stores indexes of segments in a remote storage. It contains no partition."""
_NO_EPOCH = -1


@dataclass
class OpenDirectory:
    """One directory, while it is in use.

    held: the lock.
    of_broker: whether the directory belongs to a broker.
    clean: whether the directory was closed cleanly.
    broker_epoch: from .kafka_cleanshutdown; -1 if it is not known.
    recovery_points, log_starts, first_dirty_offsets, high_watermarks: the contents of the checkpoints when the directory
        was opened.
    found: the partitions that existed when the directory was opened.
    left_alone: those of them that are not opened.
    aside: folders that a broker set aside; not touched.
    logs: the open logs.
    deletions: folders to remove, each with the earliest time at which it may be removed.
    """

    storage: Directory
    held: ExitStack
    of_broker: bool = False
    clean: bool = False
    broker_epoch: int = _NO_EPOCH
    recovery_points: dict[tuple[str, int], int] = field(default_factory=dict)
    log_starts: dict[tuple[str, int], int] = field(default_factory=dict)
    first_dirty_offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    high_watermarks: dict[tuple[str, int], int] = field(default_factory=dict)
    found: list[TopicPartition] = field(default_factory=list)
    left_alone: set[TopicPartition] = field(default_factory=set)
    aside: list[str] = field(default_factory=list)
    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict)
    deletions: list[tuple[int, str]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The path of the directory."""
        return self.storage.uri

    @property
    def to_open(self) -> list[TopicPartition]:
        """The found partitions that are not left alone."""
        return [each for each in self.found if each not in self.left_alone]

    def survey(self, names: Mapping[str, bool], deletion_ms: int) -> None:
        """Read the contents of the directory, and change nothing.

        Args:
            names: the names of all entries, and whether each is a folder.
            deletion_ms: the earliest time at which folders of deleted partitions may be removed.

        Raises:
            CorruptionError: a checkpoint is damaged.
            StorageAccessError: a folder is not the folder of a partition.
            StorageError: the storage refused.
        """
        storage = self.storage
        self.recovery_points = self._read_checkpoint(RECOVERY_POINTS)
        self.log_starts = self._read_checkpoint(LOG_STARTS)
        self.first_dirty_offsets = self._read_checkpoint(FIRST_DIRTY_OFFSETS)
        if self.of_broker:
            self.high_watermarks = self._read_checkpoint(HIGH_WATERMARKS)
        for name in sorted(name for name, is_folder in names.items() if is_folder):
            partition, suffix = partition_of(name), set_aside_as(name)
            if suffix == DELETED_FOLDER:
                self.deletions.append((deletion_ms, name))
            elif suffix is not None:
                self.aside.append(name)
            elif partition is not None:
                self.found.append(partition)
            elif name != REMOTE_INDEX_CACHE:
                raise StorageAccessError(
                    f"{storage.uri}/{name}",
                    "is not a partition's folder, because its name does not have the form <topic>-<partition>",
                    "Move this folder away. A broker also refuses to start while this folder is here.",
                )  # fmt: skip
        self.clean = CLEAN_SHUTDOWN in names
        if self.clean:
            self.broker_epoch = self._broker_epoch()

    def begin(self) -> None:
        """The loading of the logs begins. From now on, the directory counts as not closed cleanly, so that a crash
        during loading is recognised as a crash. The folders are checked first, so an error has changed nothing.

        Raises:
            CorruptionError: a folder has a file because of which its log cannot be loaded.
            StorageError: the storage refused.
        """
        for partition in self.to_open:
            LogFiles(self.storage, partition.folder, self.storage.entries(partition.folder), now_ms=0)
            settle_topic_id(self.storage, partition.folder, None)
        if self.clean:
            self.storage.delete(CLEAN_SHUTDOWN)
            self.storage.sync_names("")

    def add(self, partition: TopicPartition, log: PartitionLog) -> None:
        """Add a log that was loaded. If the recovery point is above the log's end, the report of the log gets this
        loss."""
        self.logs[partition] = log
        lost = lost_end(partition, log.log_end_offset, self.recovery_points)
        if lost is not None:
            log.report.lost.append(lost)

    def _broker_epoch(self) -> int:
        """The epoch in .kafka_cleanshutdown. Older brokers leave the file empty; only its existence matters then."""
        try:
            epoch = json.loads(self.storage.read(CLEAN_SHUTDOWN))["brokerEpoch"]
        except (ValueError, TypeError, KeyError):
            return _NO_EPOCH
        return epoch if isinstance(epoch, int) else _NO_EPOCH

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

    def topic_id(self, partition: TopicPartition) -> str | None:
        """The id in a partition's folder. None if it is missing or damaged; loading reports the damage."""
        key = f"{partition.folder}/{PARTITION_METADATA}"
        try:
            return decode_partition_metadata(self.storage.read(key), f"{self.path}/{key}")
        except (NotFoundError, CorruptionError):
            return None

    def _read_checkpoint(self, file: str) -> dict[tuple[str, int], int]:
        try:
            return decode_offsets(self.storage.read(file), f"{self.storage.uri}/{file}")
        except NotFoundError:
            return {}

    def _write_checkpoint(
        self, file: str, before: Mapping[tuple[str, int], int], offset_of: Callable[[PartitionLog], int | None]
    ) -> None:
        """Write a checkpoint with the offset of each log that has an offset."""
        offsets = {each: offset_of(log) for each, log in self.logs.items()}
        written = {each: at for each, at in offsets.items() if at is not None}
        self.storage.replace(file, encode_offsets(self._of_others(before) | written))

    def _of_others(self, before: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """The lines of partitions that are not opened. Only the broker knows when these lines lose their meaning."""
        return {each: at for each, at in before.items() if each not in self.logs} if self.of_broker else {}

    def write_recovery_points(self) -> None:
        """Write the offsets below which the logs are durable."""
        self._write_checkpoint(RECOVERY_POINTS, self.recovery_points, lambda log: log.recovery_point)

    def write_log_starts(self) -> None:
        """Write the log start offsets that are above the base offset of the first segment."""

        def above_first_segment(log: PartitionLog) -> int | None:
            return log.log_start_offset if log.log_start_offset > log.first_base_offset else None

        self._write_checkpoint(LOG_STARTS, self.log_starts, above_first_segment)

    def write_high_watermarks(self) -> None:
        """Write the ends of the logs as high watermarks. In a broker's directory nothing is written."""
        if not self.of_broker:
            self._write_checkpoint(HIGH_WATERMARKS, {}, lambda log: log.log_end_offset)

    def write_first_dirty_offsets(self) -> None:
        """Write the offsets below which the logs are compacted."""
        self._write_checkpoint(FIRST_DIRTY_OFFSETS, self.first_dirty_offsets, lambda log: log.first_dirty_offset)

    def write_checkpoints(self) -> None:
        """Write all four checkpoints."""
        self.write_recovery_points()
        self.write_log_starts()
        self.write_high_watermarks()
        self.write_first_dirty_offsets()

    def delete_folders(self, now_ms: int) -> list[str]:
        """Delete the folders that were marked as deleted and whose delay has passed. Returns their names."""
        due = [each for each in self.deletions if each[0] <= now_ms]
        for each in due:
            self.storage.remove_folder(each[1])
            self.deletions.remove(each)
        return [name for _, name in due]

    @property
    def reports(self) -> list[RecoveryReport]:
        """What loading found in each log."""
        return [log.report for log in self.logs.values()]

    @property
    def vouches(self) -> bool:
        """Whether all logs of the directory are whole, so that .kafka_cleanshutdown may be written. After a crash, logs
        that were not opened may be torn: only the broker recovers them. __cluster_metadata does not count, because
        KRaft always recovers it.
        """
        unopened = self.left_alone - {CLUSTER_METADATA} or any(name.endswith(FUTURE_FOLDER) for name in self.aside)
        return self.clean or not self.of_broker or not unopened

    def close(self, threads: int) -> None:
        """Close the logs cleanly, and write the checkpoints. Also write .kafka_cleanshutdown, unless a log that was not
        opened may be torn. The lock is kept.

        Raises:
            StorageError: the storage refused. The directory then counts as not closed cleanly.
        """
        with ThreadPoolExecutor(threads, "close") as pool:
            closing = [pool.submit(log.close) for log in self.logs.values()]
        for each in closing:
            each.result()
        self.write_checkpoints()
        if self.vouches:
            lost = any(report.losses for report in self.reports)
            epoch = _NO_EPOCH if lost else self.broker_epoch
            self.storage.replace(CLEAN_SHUTDOWN, b'{"version":0,"brokerEpoch":%d}' % epoch)

    def abandon(self) -> None:
        """Release the logs and the lock without syncing anything, as a crash would."""
        for log in self.logs.values():
            log.abandon()
        self.held.close()


def check_directory(storage: Directory) -> None:
    """Check that a directory exists and can be listed.

    Raises:
        StorageAccessError: there is no directory.
        StorageError: the storage refused.
    """
    if storage.root is not None and not storage.root.is_dir():
        raise StorageAccessError(storage.uri, "is not a directory", "Give the directories in the broker's log.dirs.")
    storage.entries("")


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
