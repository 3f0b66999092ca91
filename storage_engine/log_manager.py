"""All logs of one or several plain Kafka log directories, open in one process (Kafka's LogManager).

    <directory>/                             one of several
      .lock                                  held exclusively: no broker and no other process works here
      .kafka_cleanshutdown                   written by an orderly close, removed when the directory is opened
      meta.properties                        made where it is missing
      recovery-point-offset-checkpoint       up to where each log is durable; behind it a crash makes loading read
      log-start-offset-checkpoint            log starts above their first segment's base
      replication-offset-checkpoint          high watermarks, which are the logs' ends: there is one replica
      cleaner-offset-checkpoint              up to where compacted logs are clean
      orders-0/                              a partition (log.partition_log)
      orders-1.5f6a0...-delete/              a deleted one, until file.delete.delay.ms have passed
      orders-2.9b21c...-future/  -stray/     what a broker put aside; left alone

A directory that cannot be used goes offline, with the error kept in `offline`; the others go on. None left is fatal, and
so is a lock that somebody else holds, or a partition that lies in two directories.

What is due (flushes, checkpoints, retention, deletions) is done by whoever calls run_due, as often as it likes; there is
no thread behind anybody's back. After a crash everything is loaded as log.recovery tells. Any thread may call anything.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from storage_engine.checkpoint import (
    CLEAN_SHUTDOWN,
    FIRST_DIRTY_OFFSETS,
    HIGH_WATERMARKS,
    LOCK,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    MetaProperties,
    decode_meta_properties,
    decode_offsets,
    encode_meta_properties,
    encode_offsets,
)
from storage_engine.cleaner.cleaner import CleanedPartition
from storage_engine.clock import Clock, SystemClock
from storage_engine.errors import (
    ConflictError,
    CorruptionError,
    ExitStatus,
    LogError,
    NotFoundError,
    StorageAccessError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from storage_engine.log.log_directory import (
    DELETED_FOLDER,
    FUTURE_FOLDER,
    STRAY_FOLDER,
    TopicPartition,
    partition_of,
)
from storage_engine.log.partition_log import PartitionLog
from storage_engine.log.recovery import RecoveryReport
from storage_engine.log_config import LogConfig, LogManagerConfig
from storage_engine.storage import DirectoryStorage
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.topics import new_topic_id
from storage_engine.topic.view import refuse_view
from storage_engine.topic_name import check_topic_name

_CLEAN = b'{"version":0,"brokerEpoch":-1}'
_EXPIRY_CHECK_MS = 600_000
_LONGEST_NAME = 255


@dataclass
class _Directory:
    """One log directory in use. clean: it was left by an orderly close. aside: folders that are left alone.
    deletions: folders to be removed, with the time from which on."""

    storage: DirectoryStorage
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
        return self.storage.uri


@dataclass
class _Duty:
    """Something to do every interval_ms."""

    interval_ms: int
    due_ms: int
    action: Callable[[_Directory], None]


class LogManager:
    """Open logs; see the module. As a context it is closed in order at the end, an error or not."""

    def __init__(
        self,
        directories: Sequence[Path | str | DirectoryStorage],
        config: LogManagerConfig | None = None,
        topics: Mapping[str, Mapping[str, object]] | None = None,
        clock: Clock | None = None,
        *,
        kafka_way: bool = False,
    ) -> None:
        """Open directories, made where they are missing, and load all that lies in them.

        Args:
            directories: log.dirs.
            topics: overrides of a topic's configuration, by its name.
            kafka_way: as in recovery.LoadOptions.

        Raises:
            ConfigError: a topic's overrides are off.
            UsageError: a directory is the view of a root.
            ConflictError: a partition lies in two directories, or these belong to different clusters.
            StorageError: somebody else holds a lock; or no directory can be used, and this is the first one's error.
        """
        self._config = config or LogManagerConfig()
        self._overrides = {topic: dict(overrides) for topic, overrides in (topics or {}).items()}
        for topic in self._overrides:
            self.topic_config(topic)
        self._clock = clock or SystemClock()
        self._kafka_way = kafka_way
        self._lock = threading.RLock()
        self._directories: list[_Directory] = []
        self.offline: dict[str, LogError] = {}
        try:
            for each in directories:
                self._open_directory(PosixStorage(each) if isinstance(each, Path | str) else each)
            self._settle_meta_properties()
            self._refuse_twins()
            self._load()
        except BaseException:
            self.abandon()
            raise
        now_ms = self._clock.now_ms()
        intervals = self._config
        self._duties = [
            _Duty(interval_ms, now_ms + interval_ms, action)
            for interval_ms, action in (
                (intervals.flush_scheduler_interval_ms, self._flush_due),
                (intervals.flush_offset_checkpoint_interval_ms, self._write_recovery_points),
                (intervals.flush_start_offset_checkpoint_interval_ms, self._write_log_starts),
                (intervals.high_watermark_checkpoint_interval_ms, self._write_high_watermarks),
                (intervals.retention_check_interval_ms, self._apply_retention),
                (_EXPIRY_CHECK_MS, self._expire_producers),
            )
        ]

    # Opening.

    def _open_directory(self, storage: DirectoryStorage) -> None:
        if isinstance(storage, PosixStorage):
            refuse_view(storage.root)
        held = ExitStack()
        try:
            storage.make_folder("")
            entries = storage.entries("")
        except StorageError as error:
            self._note_offline(storage.uri, error)
            return
        held.enter_context(storage.hold_exclusive(LOCK))
        directory = _Directory(storage, held)
        try:
            self._survey(directory, {entry.name: entry.is_folder for entry in entries})
        except LogError as error:
            held.close()
            self._note_offline(storage.uri, error)
            return
        self._directories.append(directory)

    def _survey(self, directory: _Directory, names: Mapping[str, bool]) -> None:
        storage = directory.storage
        directory.recovery_points = _read_checkpoint(storage, RECOVERY_POINTS)
        directory.log_starts = _read_checkpoint(storage, LOG_STARTS)
        directory.first_dirty_offsets = _read_checkpoint(storage, FIRST_DIRTY_OFFSETS)
        for name in sorted(name for name, is_folder in names.items() if is_folder):
            partition = partition_of(name)
            if name.endswith(DELETED_FOLDER):
                directory.deletions.append((self._clock.now_ms(), name))
            elif name.endswith((FUTURE_FOLDER, STRAY_FOLDER)):
                directory.aside.append(name)
            elif partition is not None:
                directory.found.append(partition)
            else:
                raise StorageAccessError(
                    f"{storage.uri}/{name}", "is no partition's folder, whose name is topic-partition",
                    "Move it away: a broker stops over it, too.",
                )  # fmt: skip
        directory.clean = CLEAN_SHUTDOWN in names
        if directory.clean:
            # At once, so that a crash while loading counts as one.
            storage.delete(CLEAN_SHUTDOWN)
            storage.sync_names("")

    def _note_offline(self, path: str, error: LogError) -> None:
        self.offline[path] = error

    def _settle_meta_properties(self) -> None:
        """Give an id to each directory that has none, of the same cluster and node as the others."""
        known: dict[str, MetaProperties] = {}
        for directory in list(self._directories):
            with suppress(NotFoundError):
                place = f"{directory.path}/{META_PROPERTIES}"
                try:
                    known[directory.path] = decode_meta_properties(directory.storage.read(META_PROPERTIES), place)
                except CorruptionError as error:
                    self._take_offline(directory, error)
        self._check_any_left()
        first = next(iter(known.values()), MetaProperties(cluster_id=new_topic_id(), directory_id=""))
        for path, found in known.items():
            if (found.cluster_id, found.node_id) != (first.cluster_id, first.node_id):
                raise ConflictError(
                    f"{path}/{META_PROPERTIES}",
                    f"belongs to node {found.node_id} of cluster {found.cluster_id}, and"
                    f" {next(iter(known))} to node {first.node_id} of cluster {first.cluster_id}",
                    "Open the directories of one node only.",
                )
        for directory in self._directories:
            if directory.path not in known:
                own = MetaProperties(first.cluster_id, new_topic_id(), first.node_id)
                directory.storage.replace(META_PROPERTIES, encode_meta_properties(own))

    def _refuse_twins(self) -> None:
        seen: dict[TopicPartition, _Directory] = {}
        for directory in self._directories:
            for partition in directory.found:
                other = seen.setdefault(partition, directory)
                if other is not directory:
                    raise ConflictError(
                        f"{other.path}/{partition.folder} and {directory.path}/{partition.folder}",
                        "are the same partition", "Find out which is the right one and move the other away.",
                    )  # fmt: skip

    def _load(self) -> None:
        """Load the partitions of all directories, of each with num.recovery.threads.per.data.dir."""
        threads = self._config.recovery_threads
        with ExitStack() as pools:
            loads: list[tuple[_Directory, TopicPartition, Future[PartitionLog]]] = []
            for directory in self._directories:
                pool = pools.enter_context(ThreadPoolExecutor(threads, "load"))
                loads += [(directory, each, pool.submit(self._open_log, directory, each)) for each in directory.found]
            failed: dict[str, LogError] = {}
            for directory, partition, load in loads:
                try:
                    directory.logs[partition] = load.result()
                except LogError as error:
                    failed.setdefault(directory.path, error)
        for directory in list(self._directories):
            if directory.path in failed:
                self._take_offline(directory, failed[directory.path])
        self._check_any_left()

    def _open_log(self, directory: _Directory, partition: TopicPartition, topic_id: str | None = None) -> PartitionLog:
        return PartitionLog.open(
            directory.storage, partition.folder, self.topic_config(partition.topic), self._clock,
            clean=directory.clean, recovery_point=directory.recovery_points.get(partition, 0),
            log_start_offset=directory.log_starts.get(partition, 0),
            first_dirty_offset=directory.first_dirty_offsets.get(partition), topic_id=topic_id,
            producer_expiration_ms=self._config.producer_expiration_ms, kafka_way=self._kafka_way,
        )  # fmt: skip

    # What there is.

    def topic_config(self, topic: str) -> LogConfig:
        """What holds for a topic.

        Raises:
            ConfigError: its overrides are off.
        """
        return self._config.topic(self._overrides.get(topic, {}), f"topic {topic}")

    @property
    def directories(self) -> tuple[str, ...]:
        """Those in use."""
        return tuple(directory.path for directory in self._directories)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """All that are open, sorted."""
        with self._lock:
            return tuple(sorted(each for directory in self._directories for each in directory.logs))

    @property
    def reports(self) -> tuple[RecoveryReport, ...]:
        """What loading found, of each partition."""
        with self._lock:
            return tuple(log.report for directory in self._directories for log in directory.logs.values())

    @property
    def exit_status(self) -> ExitStatus:
        """PARTIAL where loading met damage, or a directory is offline."""
        lost = self.offline or any(report.exit_status is not ExitStatus.DONE for report in self.reports)
        return ExitStatus.PARTIAL if lost else ExitStatus.DONE

    def log(self, topic: str, number: int) -> PartitionLog:
        """An open log.

        Raises:
            UnknownTopicError: there is none.
        """
        with self._lock:
            return self._directory_of(TopicPartition(topic, number)).logs[TopicPartition(topic, number)]

    def directory_of(self, topic: str, number: int) -> str:
        """The directory in which a partition lies; raises as `log`."""
        return self._directory_of(TopicPartition(topic, number)).path

    def _directory_of(self, partition: TopicPartition) -> _Directory:
        for directory in self._directories:
            if partition in directory.logs:
                return directory
        raise UnknownTopicError(
            f"partition {partition.folder}", f"lies in none of {', '.join(self.directories)}", "Create it first."
        )

    def create(self, topic: str, number: int, topic_id: str | None = None) -> PartitionLog:
        """Create a partition, in the directory that has the fewest.

        Args:
            topic_id: for its partition.metadata, which is not written without.

        Raises:
            InvalidTopicNameError: Kafka would refuse the name.
            TopicExistsError: it is there already.
            StorageError: the storage refused.
        """
        check_topic_name(topic)
        partition = TopicPartition(topic, number)
        with self._lock:
            if partition in self.partitions:
                raise TopicExistsError(f"partition {partition.folder}", f"lies in {self._directory_of(partition).path}")
            directory = min(self._directories, key=lambda each: len(each.logs))
            for offsets in (directory.recovery_points, directory.log_starts, directory.first_dirty_offsets):
                offsets.pop(partition, None)
            log = directory.logs[partition] = self._open_log(directory, partition, topic_id)
            return log

    def delete(self, topic: str, number: int) -> None:
        """Delete a partition; its files go file.delete.delay.ms later.

        Raises:
            UnknownTopicError: there is none.
        """
        partition = TopicPartition(topic, number)
        with self._lock:
            directory = self._directory_of(partition)
            log = directory.logs.pop(partition)
            log.abandon()
            suffix = f".{secrets.token_hex(16)}{DELETED_FOLDER}"
            name = partition.folder[: _LONGEST_NAME - len(suffix)] + suffix
            directory.storage.rename(partition.folder, name)
            directory.storage.sync_names("")
            directory.deletions.append((self._clock.now_ms() + log.config.file_delete_delay_ms, name))

    def configure(self, topic: str, overrides: Mapping[str, object]) -> None:
        """Change a topic's overrides; felt by its open logs at once.

        Raises:
            ConfigError: they are off; nothing was changed.
        """
        config = self._config.topic(overrides, f"topic {topic}")
        with self._lock:
            self._overrides[topic] = dict(overrides)
            for directory in self._directories:
                for partition, log in directory.logs.items():
                    if partition.topic == topic:
                        log.config = config

    # What is due.

    def run_due(self) -> None:
        """Do what is due by the clock: flushes, checkpoints, retention, and deletions.

        A directory that fails goes offline.

        Raises:
            StorageError: that was the last one.
        """
        with self._lock:
            now_ms = self._clock.now_ms()
            due = [duty for duty in self._duties if duty.due_ms <= now_ms]
            for duty in due:
                duty.due_ms = now_ms + duty.interval_ms
            for directory in list(self._directories):
                try:
                    for duty in due:
                        duty.action(directory)
                    self._delete_due(directory, now_ms)
                except StorageError as error:
                    self._take_offline(directory, error)
            self._check_any_left()

    def compact(
        self, names: Iterable[TopicPartition] | None = None, *, force: bool = False
    ) -> dict[TopicPartition, CleanedPartition | LogError]:
        """Compact the partitions of compacted topics that are due, one after another, and note how far they are clean.

        Args:
            names: only these; all by default.
            force: also those that are dirty and not due.

        Returns:
            What was done, or why it could not be; a partition that fails stops no other.
        """
        done: dict[TopicPartition, CleanedPartition | LogError] = {}
        for partition in self.partitions if names is None else names:
            directory = self._directory_of(partition)
            log = directory.logs[partition]
            if log.config.compact:
                broker = self._config.broker
                try:
                    cleaned = log.compact(
                        force=force, memory_bytes=broker.log_cleaner_dedupe_buffer_bytes,
                        bytes_per_second=broker.log_cleaner_io_max_bytes_per_second,
                    )  # fmt: skip
                    if cleaned is not None:
                        done[partition] = cleaned
                        self._write_first_dirty_offsets(directory)
                except LogError as error:
                    done[partition] = error
        return done

    def checkpoint(self) -> None:
        """Write all checkpoints now.

        Raises:
            StorageError: as run_due.
        """
        with self._lock:
            for directory in list(self._directories):
                try:
                    self._write_checkpoints(directory)
                except StorageError as error:
                    self._take_offline(directory, error)
            self._check_any_left()

    def _write_checkpoints(self, directory: _Directory) -> None:
        self._write_recovery_points(directory)
        self._write_log_starts(directory)
        self._write_high_watermarks(directory)
        self._write_first_dirty_offsets(directory)

    def _flush_due(self, directory: _Directory) -> None:
        for log in directory.logs.values():
            log.flush_if_due()

    def _apply_retention(self, directory: _Directory) -> None:
        for log in directory.logs.values():
            log.apply_retention()

    def _expire_producers(self, directory: _Directory) -> None:
        for log in directory.logs.values():
            log.expire_producers(self._config.producer_expiration_ms)

    def _write_recovery_points(self, directory: _Directory) -> None:
        _write_checkpoint(directory, RECOVERY_POINTS, lambda log: log.recovery_point)

    def _write_log_starts(self, directory: _Directory) -> None:
        def above_first_segment(log: PartitionLog) -> int | None:
            return log.log_start_offset if log.log_start_offset > log.first_base_offset else None

        _write_checkpoint(directory, LOG_STARTS, above_first_segment)

    def _write_high_watermarks(self, directory: _Directory) -> None:
        _write_checkpoint(directory, HIGH_WATERMARKS, lambda log: log.log_end_offset)

    def _write_first_dirty_offsets(self, directory: _Directory) -> None:
        _write_checkpoint(directory, FIRST_DIRTY_OFFSETS, lambda log: log.first_dirty_offset)

    def _delete_due(self, directory: _Directory, now_ms: int) -> None:
        for log in directory.logs.values():
            log.delete_due_files()
        for due_ms, name in list(directory.deletions):
            if due_ms <= now_ms:
                directory.storage.remove_folder(name)
                directory.deletions.remove((due_ms, name))

    def truncate(self, topic: str, number: int, offset: int) -> int:
        """Cut a log off, as PartitionLog.truncate_to, and note its recovery point at once, which may have gone back."""
        with self._lock:
            directory = self._directory_of(TopicPartition(topic, number))
            end = self.log(topic, number).truncate_to(offset)
            self._write_recovery_points(directory)
            return end

    # The end.

    def close(self) -> None:
        """Close all logs in order, write the checkpoints and .kafka_cleanshutdown, and give the locks up.

        Raises:
            StorageError: the first directory's that could not be left in order; the others were.
        """
        with self._lock:
            errors = []
            for directory in self._directories:
                try:
                    self._close_directory(directory)
                except StorageError as error:
                    errors.append(error)
                finally:
                    directory.held.close()
            self._directories = []
            if errors:
                raise errors[0]

    def _close_directory(self, directory: _Directory) -> None:
        with ThreadPoolExecutor(self._config.recovery_threads, "close") as pool:
            closing = [pool.submit(log.close) for log in directory.logs.values()]
        for each in closing:
            each.result()
        self._write_checkpoints(directory)
        directory.storage.replace(CLEAN_SHUTDOWN, _CLEAN)

    def abandon(self) -> None:
        """Let go of everything as it is, as a crash would."""
        with self._lock:
            for directory in self._directories:
                for log in directory.logs.values():
                    log.abandon()
                directory.held.close()
            self._directories = []

    def _take_offline(self, directory: _Directory, error: LogError) -> None:
        self._directories.remove(directory)
        for log in directory.logs.values():
            log.abandon()
        directory.held.close()
        self._note_offline(directory.path, error)

    def _check_any_left(self) -> None:
        if not self._directories and self.offline:
            raise next(iter(self.offline.values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()


def _read_checkpoint(storage: DirectoryStorage, file: str) -> dict[tuple[str, int], int]:
    try:
        return decode_offsets(storage.read(file), f"{storage.uri}/{file}")
    except NotFoundError:
        return {}


def _write_checkpoint(directory: _Directory, file: str, offset_of: Callable[[PartitionLog], int | None]) -> None:
    """Write the offset of each log that has one."""
    offsets = {each: offset_of(log) for each, log in directory.logs.items()}
    directory.storage.replace(file, encode_offsets({each: at for each, at in offsets.items() if at is not None}))
