"""Computes what `lakelog recover`, `retain` and `compact` would do to a plain Kafka log directory, and changes nothing.

No lock is taken and no file is created, so a directory can be planned while it is read-only, or while a broker runs on
it. In the second case, files can change while they are read: the plan says that the directory is locked, and a log that
changed meanwhile is reported as a failure.

The rules are those of the commands: upkeep.task_opening chooses the topics, log.segment_retention and
upkeep.due_compaction decide about the segments. Each command is planned alone, on the logs as they are now. A log of a
directory that was not closed cleanly is planned as it is after its recovery, except for damage: a damaged log is not
planned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from storage_engine.cleaner.selection import CompactionPlan
from storage_engine.config import LONG_MAX
from storage_engine.config.kafka_dir_keys import LogConfig
from storage_engine.errors import CorruptionError, LogError
from storage_engine.kafka_dir.log_directory import FoundPartition, LogDirectory, TopicPartition, refuse_root
from storage_engine.kafka_dir.log_files import LogFiles
from storage_engine.kafka_dir.open_directory import OpenDirectory
from storage_engine.kafka_dir.producers_at import KnownProducers
from storage_engine.kafka_dir.upkeep.due_compaction import select_in_place
from storage_engine.kafka_dir.upkeep.task_opening import (
    COMPACTION,
    RETENTION,
    CleaningTask,
    DirectoryEvidence,
    TaskChoice,
    TopicChoice,
)
from storage_engine.kafka_dir.upkeep.treatment import Treatment, treat_topics
from storage_engine.log.checkpoint import LOCK
from storage_engine.log.filenames import LOG, offsets_in
from storage_engine.log.partition_state import PartitionState
from storage_engine.log.segment_retention import RetentionPlan, decide_retention
from storage_engine.storage.record_locks import is_locked


@dataclass(frozen=True)
class LogToRecover:
    """A log of a directory that was not closed cleanly.

    segments: how many segments the log has.
    unflushed: how many of them are read and checked: the segment with the recovery point, and all later segments.
    recovery_point: the log is known to be durable below this offset.
    torn_bytes: the bytes at the end that are not a complete batch.
    damage: the first damage before the end, as a reader finds it; None without damage.
    """

    partition: TopicPartition
    segments: int
    unflushed: int
    recovery_point: int
    torn_bytes: int = 0
    damage: LogError | None = None


@dataclass
class DirectoryPlan:
    """What the commands would do.

    is_locked: whether a broker or another program works in the directory now.
    is_clean: whether the directory was closed cleanly.
    to_recover: the logs that a recovery would load; empty if the directory was closed cleanly.
    retention, compaction: the decision on each log that is chosen, even if nothing would be changed.
    not_recovered: the topics that a recovery leaves alone, and why.
    retaining, compacting: which topics the two commands choose, and why they leave others alone.
    failures: what could not be planned.
    """

    path: Path
    now_ms: int
    is_locked: bool
    is_clean: bool
    retaining: TaskChoice
    compacting: TaskChoice
    to_recover: list[LogToRecover] = field(default_factory=list)
    not_recovered: dict[str, str] = field(default_factory=dict)
    retention: dict[TopicPartition, RetentionPlan] = field(default_factory=dict)
    compaction: dict[TopicPartition, CompactionPlan] = field(default_factory=dict)
    failures: list[LogError] = field(default_factory=list)


def plan_directory(
    path: Path, named: Sequence[str], settings: Mapping[str, str], now_ms: int, *, force: bool = False
) -> DirectoryPlan:
    """Plan the work on a directory.

    Args:
        named: the topics that the user names; if there are none, all topics whose settings are known.
        settings: the settings that the user gives.
        force: plan to compact dirty logs even if this is not due.

    Raises:
        UnknownTopicError: the directory has no partition of a named topic.
        UsageError: the directory is a root, or a setting decides about all topics of a broker.
        ConfigError: the settings are not allowed.
        CorruptionError: a checkpoint or meta.properties is damaged.
        StorageError: the directory cannot be read.
    """
    refuse_root(path)
    directory = LogDirectory(path)
    for topic in named:
        directory.partitions_of(topic)
    return _Planning(directory, named, settings, now_ms, force=force).plan()


class _Planning:
    """One plan of a directory. Each log is inspected once."""

    def __init__(
        self, directory: LogDirectory, named: Sequence[str], settings: Mapping[str, str], now_ms: int, *, force: bool
    ) -> None:
        self._directory = directory
        self._now_ms = now_ms
        self._force = force
        storage = directory.storage
        self._survey = OpenDirectory(storage, ExitStack(), of_broker=True)
        self._survey.survey({entry.name: entry.is_folder for entry in storage.entries("")}, now_ms)
        self._known = DirectoryEvidence(self._survey, directory.path, named)
        self._choices = {}
        for task in (RETENTION, COMPACTION):
            topics = TopicChoice(task, self._survey, self._known, named, settings)
            topics.check_settings()
            self._choices[task.verb] = topics.choose()
        self._found: dict[TopicPartition, FoundPartition | LogError] = {}

    def plan(self) -> DirectoryPlan:
        lock = (self._directory.path / LOCK).resolve()
        retaining, compacting = self._choices[RETENTION.verb], self._choices[COMPACTION.verb]
        planned = DirectoryPlan(
            self._directory.path, self._now_ms, is_locked(lock), self._survey.clean, retaining, compacting
        )
        if self._known.source.error is not None:
            planned.failures.append(self._known.source.error)
        self._plan_recovery(planned)
        for partition in sorted(retaining.opened | compacting.opened):
            found = self._inspect(partition)
            if isinstance(found, LogError):
                planned.failures.append(found)
                continue
            try:
                state = self._state(found)
                if partition in retaining.opened:
                    config = self._config(RETENTION, partition)
                    planned.retention[partition] = decide_retention(state, config, self._now_ms)
                if partition in compacting.opened:
                    config = self._config(COMPACTION, partition)
                    planned.compaction[partition] = select_in_place(
                        self._directory.storage, state, config, partition.folder, self._now_ms, force=self._force
                    )
            except LogError as error:
                planned.failures.append(error)
        return planned

    def _plan_recovery(self, planned: DirectoryPlan) -> None:
        treatments = treat_topics(replace(self._known.evidence, included=()), self._known.config)
        alone = {name: each.reason for name, each in treatments.items() if each.treatment is Treatment.LEFT_ALONE}
        planned.not_recovered = alone
        if not planned.is_clean:
            opened = (each for each in self._survey.found if each.topic not in alone)
            planned.to_recover = [self._to_recover(each) for each in sorted(opened)]

    def _to_recover(self, partition: TopicPartition) -> LogToRecover:
        bases = offsets_in((entry.name for entry in self._directory.storage.entries(partition.folder)), LOG)
        point = self._survey.recovery_points.get(partition, 0)
        trusted = max(0, bisect_right(bases, point) - 1)
        log = LogToRecover(partition, len(bases), len(bases) - trusted, point)
        found = self._inspect(partition)
        return replace(log, damage=found) if isinstance(found, LogError) else replace(log, torn_bytes=found.torn)

    def _inspect(self, partition: TopicPartition) -> FoundPartition | LogError:
        if partition not in self._found:
            try:
                self._found[partition] = self._directory.inspect(partition)
            except CorruptionError as error:
                remedy = "`lakelog recover` cuts out the damaged bytes."
                self._found[partition] = error if self._survey.clean else error.with_remedy(remedy)
            except LogError as error:
                self._found[partition] = error
        return self._found[partition]

    def _config(self, task: CleaningTask, partition: TopicPartition) -> LogConfig:
        choices = self._choices[task.verb].choices
        return choices.config.topic(choices.topics[partition.topic], f"topic {partition.topic}")

    def _state(self, found: FoundPartition) -> PartitionState:
        """The state of a log as a LogManager has it: up to the broker's high watermark."""
        state, partition = found.state, found.name
        watermark = LONG_MAX
        if partition not in self._known.one_copy:
            watermark = self._survey.high_watermarks.get(partition, 0)
        if watermark >= state.high_watermark:
            return state
        storage = self._directory.storage
        files = _FilesLeftAlone(storage, partition.folder, storage.entries(partition.folder), self._now_ms)
        known = KnownProducers(files, self._now_ms, self._known.config.producer_expiration_ms)
        producers = known.at(watermark).entries()
        return state.model_copy(
            update={"high_watermark": max(watermark, state.log_start_offset), "producers": producers}
        )


class _FilesLeftAlone(LogFiles):
    """The listing of a folder. A change is made only in the listing."""

    def write(self, name: str, data: bytes) -> None:
        self.note_size(name, len(data))

    def remove(self, name: str) -> None:
        del self.entries[name]
