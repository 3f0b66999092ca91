"""Opens one plain Kafka log directory for `lakelog append --kafka-dir`: only the partitions that get records.

An append is refused if a broker could contradict it later:

    an internal topic, __cluster_metadata   coordinators and controllers keep their own state about their records
    a tiered topic                          some of its segments are in a remote storage
    a partition with replicas elsewhere     another replica can become the leader, and the new records are then cut off
    settings with a value that Lakelog      the records would not be what the topic requires
      does not accept

In a directory that no broker has used, nobody else has a replica. In a broker's directory, __cluster_metadata must say
that the node has the only replica. The broker's next start then counts the records as replicated: with one replica, the
high watermark is the end of the log.

The settings of the topic are those in __cluster_metadata, and those of the user on top; else Kafka's defaults. After a
crash, the partitions are recovered before the append. A crash during the append leaves none of the records, or the first
of them, in each partition.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.clock import Clock
from storage_engine.config.kafka_dir_keys import LogConfig
from storage_engine.errors import InvalidRecordError, StorageError, UnknownTopicError, UsageError
from storage_engine.kafka_dir.log_directory import LogDirectory, TopicPartition
from storage_engine.kafka_dir.log_manager import Choices, LogManager
from storage_engine.kafka_dir.open_directory import CLUSTER_METADATA, OpenDirectory
from storage_engine.kafka_dir.upkeep.task_opening import DirectoryEvidence
from storage_engine.kafka_dir.upkeep.treatment import INTERNAL_TOPICS, Treatment, treat_topics
from storage_engine.log.validator import Verdict, judge_records, refusal
from storage_engine.record.partitioner import partition_keys

_BY_BROKER = "Start the broker, and append with a producer."


class LogsToAppend:
    """The open partitions of one topic in a directory. As a context manager, it closes them cleanly.

    logs: the open logs.
    config: the configuration of the topic.
    """

    def __init__(
        self, path: Path, topic: str, partition: int | None, settings: Mapping[str, str], clock: Clock
    ) -> None:
        """Lock the directory and open the partitions.

        Args:
            partition: the only partition that gets records; None for the partitions that the keys determine.
            settings: the settings of the topic that the user gives.

        Raises:
            UnknownTopicError: the directory has no such topic or partition.
            UsageError: the topic or a partition is refused, or it is not known how many partitions the topic has.
            ConfigError: the settings are not allowed.
            LogError: as LogManager; or __cluster_metadata cannot be read.
        """
        self._path = path
        self._topic = topic
        self._partition = partition
        self._settings = settings
        self._clock = clock
        if topic in INTERNAL_TOPICS or topic == CLUSTER_METADATA.topic:
            raise UsageError(
                f"{path}: topic {topic}", "is an internal topic", "Only a broker writes to its internal topics."
            )
        found = LogDirectory(path).partitions_of(topic)
        self._open = tuple(each for each in found if partition in (None, each.number))
        if not self._open:
            numbers = ", ".join(str(each.number) for each in found)
            raise UnknownTopicError(f"{path}: topic {topic}", f"has partitions {numbers}, but no partition {partition}")
        self._count = 0
        self.logs = LogManager([path], clock=clock, choose=self._choose)
        self.config: LogConfig = self.logs.topic_config(topic)

    def _choose(self, directories: Sequence[OpenDirectory]) -> Choices:
        (directory,) = directories
        known = DirectoryEvidence(directory, self._path, [self._topic])
        if known.source.error is not None:
            raise known.source.error
        stored = treat_topics(known.evidence, known.config)[self._topic]
        if stored.treatment is Treatment.LEFT_ALONE:
            raise UsageError(f"{self._path}: topic {self._topic}", stored.reason, _BY_BROKER)
        if known.of_broker and stored.treatment is not Treatment.MANAGED:
            problem = f"may have replicas on other nodes: {stored.reason}"
            raise UsageError(f"{self._path}: topic {self._topic}", problem, _BY_BROKER)
        replicated = next((each for each in self._open if each not in known.one_copy), None)
        if replicated is not None:
            raise UsageError(
                f"{self._path / replicated.folder}",
                f"may have replicas on other nodes: {CLUSTER_METADATA.topic} does not say that this node has the only one",
                f"{_BY_BROKER} Or name a partition without other replicas with --partition.",
            )  # fmt: skip
        own = {**stored.settings, **self._settings}
        treat_topics(replace(known.evidence, given={self._topic: own}), known.config)  # checks the settings
        if self._partition is None:
            self._count = self._partition_count(known)
        left = frozenset(each for each in known.evidence.topic_ids if each not in self._open)
        return Choices(known.config, {self._topic: own}, left_alone=left, one_copy=known.one_copy)

    def _partition_count(self, known: DirectoryEvidence) -> int:
        """How many partitions the topic has in the cluster: the partition of a key depends on this number.

        Raises:
            UsageError: it is not known.
        """
        topic = None if known.source.metadata is None else known.source.metadata.topic(self._topic)
        if topic is not None:
            return len(topic.replicas)
        numbers = [each.number for each in self._open]
        if numbers != list(range(len(numbers))):
            raise UsageError(
                f"{self._path}: topic {self._topic}",
                f"has only the partitions {', '.join(map(str, numbers))} here, so the partition of a key is not known",
                "Name the partition of all records with --partition.",
            )  # fmt: skip
        return len(numbers)

    def append(self, records: pa.RecordBatch, name_row: Callable[[int], str]) -> dict[int, range]:
        """Append records, with one append for each partition. All records are checked before the first append.

        Args:
            records: columns as in record.record_columns.TO_APPEND.
            name_row: returns the name of a row's record for error messages.

        Returns:
            The offsets of the records, by partition in order.

        Raises:
            RecordError: the topic refuses a record, or its key belongs to a partition that is not in the directory.
                Nothing was appended.
            StorageError: the storage failed. The error names the records that are in the logs already.
        """
        refused = np.flatnonzero(verdicts := judge_records(records, self.config, self._clock.now_ms()))
        if len(refused):
            row = int(refused[0])
            raise refusal(Verdict(int(verdicts[row])), name_row(row), self.config)
        numbers = [each.number for each in self._open]
        if self._partition is None:
            chosen = partition_keys(records["key"], self._count, secrets.choice(numbers))
        else:
            chosen = np.full(records.num_rows, self._partition, np.int32)
        if len(elsewhere := np.flatnonzero(~np.isin(chosen, numbers))):
            row = int(elsewhere[0])
            raise InvalidRecordError(
                name_row(row), f"its key belongs to partition {chosen[row]}, which is not in {self._path}",
                "Nothing was appended. Append this record in the directory with the partition.",
            )  # fmt: skip
        offsets: dict[int, range] = {}
        for number in numbers:
            if len(rows := np.flatnonzero(chosen == number)):
                log = self.logs.log(*TopicPartition(self._topic, number))
                first = log.log_end_offset
                try:
                    log.become_leader(log.leader_epoch)  # begins epoch 0 if the log has no epoch
                    offsets[number] = range(*log.append_records(records.take(pa.array(rows))))
                except StorageError as error:
                    offsets[number] = range(first, log.log_end_offset)
                    raise _with_appended(error, offsets, chosen, name_row) from error
        return offsets

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.logs.close()
        except StorageError:
            if error is None:  # otherwise, the first error is the one to show
                raise


def _with_appended(
    error: StorageError, offsets: Mapping[int, range], chosen: npt.NDArray[np.int32], name_row: Callable[[int], str]
) -> StorageError:
    """The error, which also names the records that were appended before it.

    Args:
        offsets: by partition, the offsets of the records that are in its log.
        chosen: the partition of each row, of shape (rows,).
        name_row: as in LogsToAppend.append.
    """
    there = []
    for number, given in offsets.items():
        if given:
            last = name_row(int(np.flatnonzero(chosen == number)[len(given) - 1]))
            there.append(
                f"of partition {number} the first {len(given)}, up to {last} (offsets {given[0]} to {given[-1]})"
            )
    if not there:
        return error
    remedy = f"Some of the records are in the logs now: {'; '.join(there)}. Append only the others."
    return type(error)(error.place, error.problem, f"{error.remedy} {remedy}".strip())
