"""Opens all logs of one or several plain Kafka log directories in one process (Kafka's LogManager).

    <directory>/                             one of several
      .lock  meta.properties  *-checkpoint   (kafka_dir.open_directory)
      orders-0/                              a partition (kafka_dir.partition_log)
      orders-1.5f6a0...-delete/              a deleted partition, until file.delete.delay.ms have passed
      orders-2.9b21c...-future/  -stray/     folders that a broker set aside; not touched

If a directory cannot be used, the manager records the error in `offline`, and uses the other directories. An error is
raised if no usable directory is left, if another process holds a lock, or if a partition is in two directories.

There is no background thread. kafka_dir.upkeep does the work that is due: flushes, checkpoints, retention, deletions.
After a crash all logs are loaded as kafka_dir.log_loading describes. Any thread may call any method.

For the directories of a broker, the caller passes the function `choose`. The manager takes the locks and then calls
`choose`. This function decides which logs are opened, and with which settings. In the directories of a broker, the
manager creates no directory and no meta.properties: only the broker creates them.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from storage_engine.cleaner.cleaner import CleanedPartition
from storage_engine.clock import Clock, SystemClock
from storage_engine.config import LONG_MAX
from storage_engine.config.kafka_dir_keys import LogConfig, LogManagerConfig
from storage_engine.errors import (
    ConflictError,
    CorruptionError,
    ExitStatus,
    LockedError,
    LogError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from storage_engine.kafka_dir.log_directory import DELETED_FOLDER, TopicPartition, refuse_root
from storage_engine.kafka_dir.open_directory import OpenDirectory, check_directory, refuse_duplicate_logs
from storage_engine.kafka_dir.partition_log import PartitionLog
from storage_engine.kafka_dir.recovery_report import RecoveryReport
from storage_engine.log.checkpoint import LOCK, META_PROPERTIES, MetaProperties, encode_meta_properties
from storage_engine.storage import Directory
from storage_engine.storage.storage_opening import open_directory
from storage_engine.topic_id import new_topic_id
from storage_engine.topic_name import check_topic_name

_LONGEST_NAME = 255


@dataclass(frozen=True)
class Choices:
    """What is opened in the directories of a broker, and how.

    config: the configuration of the broker.
    topics: overrides of a topic's configuration, by its name.
    left_alone: partitions that are not opened.
    one_copy: partitions without a replica on another node, so that their high watermark is the end of the log.
    truncates: as in log_loading.LoadOptions.
    """

    config: LogManagerConfig
    topics: Mapping[str, Mapping[str, object]]
    left_alone: Set[TopicPartition] = frozenset()
    one_copy: Set[TopicPartition] = frozenset()
    truncates: bool = False


class LogManager:
    """The open logs of all directories. As a context manager, it closes the logs cleanly at the end, even after an
    error.
    """

    def __init__(
        self,
        directories: Sequence[Path | str | Directory],
        config: LogManagerConfig | None = None,
        topics: Mapping[str, Mapping[str, object]] | None = None,
        clock: Clock | None = None,
        choose: Callable[[Sequence[OpenDirectory]], Choices] | None = None,
    ) -> None:
        """Open the directories, create those that are missing, and load all their partitions.

        Args:
            directories: log.dirs.
            topics: overrides of a topic's configuration, by its name.
            choose: for directories of a broker, instead of config and topics: gets the locked directories and returns
                the choices.

        Raises:
            ConfigError: a topic's overrides are invalid.
            UsageError: a directory is the view of a root.
            ConflictError: a partition is in two directories, or the directories belong to different clusters.
            LockedError: another process holds a lock.
            StorageError: no directory can be used; then the first error is raised.
        """
        self._choose = choose
        self._choices = Choices(config or LogManagerConfig(), topics or {})
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._directories: list[OpenDirectory] = []
        self.offline: dict[str, LogError] = {}
        try:
            for each in directories:
                self._open_directory(open_directory(each) if isinstance(each, Path | str) else each)
            self._settle_meta_properties()
            if choose is not None:
                self._choices = choose(self._directories)
            self._config = self._choices.config
            self._overrides = {topic: dict(overrides) for topic, overrides in self._choices.topics.items()}
            for topic in self._overrides:
                self.topic_config(topic)
            refuse_duplicate_logs(self._directories)
            self._load()
        except BaseException:
            self.abandon()
            raise

    # Opening

    def _open_directory(self, storage: Directory) -> None:
        if storage.root is not None:
            refuse_root(storage.root)
        held = ExitStack()
        try:
            if self._choose is None:
                storage.make_folder("")
            check_directory(storage)
            held.enter_context(storage.hold_exclusive(LOCK))
        except LockedError:
            raise
        except StorageError as error:
            self.offline[storage.uri] = error
            return
        directory = OpenDirectory(storage, held, of_broker=self._choose is not None)
        try:
            entries = storage.entries("")
            directory.survey({entry.name: entry.is_folder for entry in entries}, self._clock.now_ms())
        except LogError as error:
            held.close()
            self.offline[storage.uri] = error
            return
        self._directories.append(directory)

    def _settle_meta_properties(self) -> None:
        """Check that all directories belong to one node. Write each missing meta.properties, with a new directory id, and
        the cluster and node of the other directories.
        """
        known: dict[str, MetaProperties] = {}
        for directory in list(self._directories):
            try:
                found = directory.meta_properties()
            except CorruptionError as error:
                self._take_offline(directory, error)
                continue
            if found is not None:
                known[directory.path] = found
        self._check_any_left()
        first = next(iter(known.values()), MetaProperties(cluster_id=new_topic_id(), directory_id=None))
        for path, each in known.items():
            if each.contradicts(first):
                raise ConflictError(
                    f"{path}/{META_PROPERTIES}",
                    f"belongs to node {each.node_id} of cluster {each.cluster_id}, and {next(iter(known))} belongs to"
                    f" node {first.node_id} of cluster {first.cluster_id}",
                    "Open the directories of one node only.",
                )
        for directory in self._directories:
            if directory.path not in known and self._choose is None:
                own = MetaProperties(first.cluster_id or new_topic_id(), new_topic_id(), first.node_id or 0)
                directory.storage.replace(META_PROPERTIES, encode_meta_properties(own))

    def _load(self) -> None:
        """Load the partitions of all directories, with num.recovery.threads.per.data.dir threads for each directory."""
        for directory in list(self._directories):
            directory.left_alone = set(self._choices.left_alone).intersection(directory.found)
            try:
                directory.begin()
            except LogError as error:
                self._take_offline(directory, error)
        self._check_any_left()
        threads = self._config.recovery_threads
        with ExitStack() as pools:
            loads: list[tuple[OpenDirectory, TopicPartition, Future[PartitionLog]]] = []
            for directory in self._directories:
                if self._choose is not None:
                    due_ms = self._clock.now_ms() + self.topic_config("").file_delete_delay_ms
                    directory.deletions = [(due_ms, name) for _, name in directory.deletions]
                pool = pools.enter_context(ThreadPoolExecutor(threads, "load"))
                loads += [(directory, each, pool.submit(self._open_log, directory, each)) for each in directory.to_open]
            failed: dict[str, LogError] = {}
            for directory, partition, load in loads:
                try:
                    directory.add(partition, load.result())
                except LogError as error:
                    failed.setdefault(directory.path, error)
        for directory in list(self._directories):
            if directory.path in failed:
                self._take_offline(directory, failed[directory.path])
        self._check_any_left()

    def _open_log(
        self, directory: OpenDirectory, partition: TopicPartition, topic_id: str | None = None
    ) -> PartitionLog:
        return PartitionLog.open(
            directory.storage, partition.folder, self.topic_config(partition.topic), self._clock,
            clean=directory.clean, recovery_point=directory.recovery_points.get(partition, 0),
            log_start_offset=directory.log_starts.get(partition, 0),
            first_dirty_offset=directory.first_dirty_offsets.get(partition), topic_id=topic_id,
            producer_expiration_ms=self._config.producer_expiration_ms, truncates=self._choices.truncates,
            high_watermark=self._high_watermark(directory, partition), leads=self._choose is None,
        )  # fmt: skip

    def _high_watermark(self, directory: OpenDirectory, partition: TopicPartition) -> int:
        """The high watermark that the broker has written; LONG_MAX if it is the end of the log. If the broker wrote no
        high watermark for this partition, no record of the partition is known to be replicated.
        """
        if not directory.of_broker or partition in self._choices.one_copy:
            return LONG_MAX
        return directory.high_watermarks.get(partition, 0)

    # Properties

    def topic_config(self, topic: str) -> LogConfig:
        """The configuration of a topic.

        Raises:
            ConfigError: its overrides are invalid.
        """
        return self._config.topic(self._overrides.get(topic, {}), f"topic {topic}")

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories in use."""
        return tuple(directory.path for directory in self._directories)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """All open partitions, sorted."""
        with self._lock:
            return tuple(sorted(each for directory in self._directories for each in directory.logs))

    @property
    def reports(self) -> tuple[RecoveryReport, ...]:
        """What loading found in each partition."""
        with self._lock:
            return tuple(log.report for directory in self._directories for log in directory.logs.values())

    @property
    def exit_status(self) -> ExitStatus:
        """PARTIAL if loading found damage or a directory is offline."""
        lost = self.offline or any(report.exit_status is not ExitStatus.DONE for report in self.reports)
        return ExitStatus.PARTIAL if lost else ExitStatus.DONE

    def log(self, topic: str, number: int) -> PartitionLog:
        """An open log.

        Raises:
            UnknownTopicError: there is no such partition.
        """
        with self._lock:
            return self._directory_of(TopicPartition(topic, number)).logs[TopicPartition(topic, number)]

    def directory_of(self, topic: str, number: int) -> str:
        """The directory of a partition. Raises the error of `log`."""
        return self._directory_of(TopicPartition(topic, number)).path

    def _directory_of(self, partition: TopicPartition) -> OpenDirectory:
        for directory in self._directories:
            if partition in directory.logs:
                return directory
        raise UnknownTopicError(
            f"partition {partition.folder}",
            f"is in none of these directories: {', '.join(self.directories)}",
            "Create the partition first.",
        )

    def create(self, topic: str, number: int, topic_id: str | None = None) -> PartitionLog:
        """Create a partition, in the directory with the fewest partitions.

        Args:
            topic_id: for its partition.metadata. Without an id this file is not written.

        Raises:
            InvalidTopicNameError: Kafka would refuse the name.
            TopicExistsError: the partition exists already.
            StorageError: the storage refused.
        """
        check_topic_name(topic)
        partition = TopicPartition(topic, number)
        with self._lock:
            if partition in self.partitions:
                raise TopicExistsError(f"partition {partition.folder}", f"is in {self._directory_of(partition).path}")
            directory = min(self._directories, key=lambda each: len(each.logs))
            directory.forget(partition)
            log = directory.logs[partition] = self._open_log(directory, partition, topic_id)
            return log

    def delete(self, topic: str, number: int) -> None:
        """Delete a partition. Its files are deleted after file.delete.delay.ms.

        Raises:
            UnknownTopicError: there is no such partition.
        """
        partition = TopicPartition(topic, number)
        with self._lock:
            directory = self._directory_of(partition)
            log = directory.logs.pop(partition)
            log.abandon()
            suffix = f"-{number}.{secrets.token_hex(16)}{DELETED_FOLDER}"
            name = topic[: _LONGEST_NAME - len(suffix)] + suffix
            directory.storage.rename(partition.folder, name)
            directory.storage.sync_names("")
            directory.deletions.append((self._clock.now_ms() + log.config.file_delete_delay_ms, name))

    def configure(self, topic: str, overrides: Mapping[str, object]) -> None:
        """Change a topic's overrides. The topic's open logs use the new overrides from their next call on.

        Raises:
            ConfigError: the overrides are invalid; nothing was changed.
        """
        config = self._config.topic(overrides, f"topic {topic}")
        with self._lock:
            self._overrides[topic] = dict(overrides)
            for directory in self._directories:
                for partition, log in directory.logs.items():
                    if partition.topic == topic:
                        log.config = config

    # Work on the directories

    def each_directory(self, work: Callable[[OpenDirectory], None]) -> None:
        """Do something in each directory. A directory that fails goes offline.

        Raises:
            StorageError: the last directory went offline.
        """
        with self._lock:
            for directory in list(self._directories):
                with self.taking_offline(directory):
                    work(directory)
            self._check_any_left()

    @contextmanager
    def taking_offline(self, directory: OpenDirectory) -> Iterator[None]:
        """Do something in one directory. If the storage fails, the directory goes offline."""
        try:
            yield
        except StorageError as error:
            with self._lock:
                if directory in self._directories:
                    self._take_offline(directory, error)

    @property
    def open_directories(self) -> tuple[OpenDirectory, ...]:
        """The directories in use, with their logs."""
        with self._lock:
            return tuple(self._directories)

    @property
    def config(self) -> LogManagerConfig:
        """The configuration of all directories."""
        return self._config

    def compact(
        self, names: Iterable[TopicPartition] | None = None, *, force: bool = False
    ) -> dict[TopicPartition, CleanedPartition | LogError]:
        """Compact the due partitions of compacted topics, one after another, and record their first dirty offsets.

        Args:
            names: only these partitions; by default all.
            force: also compact partitions that are dirty but not due.

        Returns:
            The result for each partition: what was done, or the error. An error does not stop the other partitions.
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
                        directory.write_first_dirty_offsets()
                except LogError as error:
                    done[partition] = error
        return done

    # Closing

    def close(self) -> None:
        """Close all logs cleanly, write the checkpoints and .kafka_cleanshutdown, and release the locks.

        Raises:
            StorageError: from the first directory that could not be closed cleanly. The other directories were closed.
        """
        with self._lock:
            errors = []
            for directory in self._directories:
                try:
                    directory.close(self._config.recovery_threads)
                except StorageError as error:
                    errors.append(error)
                finally:
                    directory.held.close()
            self._directories = []
            if errors:
                raise errors[0]

    def abandon(self) -> None:
        """Release all files and locks without syncing anything, as a crash would."""
        with self._lock:
            for directory in self._directories:
                directory.abandon()
            self._directories = []

    def _take_offline(self, directory: OpenDirectory, error: LogError) -> None:
        self._directories.remove(directory)
        directory.abandon()
        self.offline[directory.path] = error

    def _check_any_left(self) -> None:
        if not self._directories and self.offline:
            raise next(iter(self.offline.values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
