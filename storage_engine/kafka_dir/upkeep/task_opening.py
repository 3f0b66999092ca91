"""Opens one plain Kafka log directory for `lakelog compact`, `retain` or `append`: only the logs that this task changes.

There is no server.properties, so the settings of a topic are those in __cluster_metadata beside it, and those that the
user gives. The rules of upkeep.treatment decide, as for a log manager. A topic is compacted or retained in these cases:

    __cluster_metadata has its settings            with these settings, and those of the user on top
    the user names it, no __cluster_metadata       compaction: with the settings of the user; by default
                                                   cleanup.policy=compact
                                                   retention: if the user gives one of the task's deciding settings
    the user names it, __cluster_metadata does     if the user gives one of the task's deciding settings
      not tell its settings
    the user gives a deciding setting for all      only in a directory that no broker has used

The deciding setting of compaction is cleanup.policy. Those of retention are retention.ms, retention.bytes and
cleanup.policy. No record is deleted by a default of retention.ms or retention.bytes, because a server.properties can
have another default: without a value in __cluster_metadata or from the user, there is no such limit.

Internal topics must be named. All other logs are not opened, and their files stay as they are. In a broker's directory,
no record at or above the broker's high watermark is compacted or deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from storage_engine.clock import Clock
from storage_engine.config.kafka_dir_keys import LogManagerConfig
from storage_engine.config.server_properties import ServerProperties
from storage_engine.errors import LogError, UsageError
from storage_engine.kafka_dir.log_directory import LogDirectory, TopicPartition
from storage_engine.kafka_dir.log_manager import Choices, LogManager
from storage_engine.kafka_dir.open_directory import CLUSTER_METADATA, OpenDirectory
from storage_engine.kafka_dir.upkeep.metadata_log import MetadataSource, find_cluster_metadata
from storage_engine.kafka_dir.upkeep.opening import properties_of
from storage_engine.kafka_dir.upkeep.treatment import (
    Evidence,
    TopicTreatment,
    Treatment,
    partitions_with_one_copy,
    treat_topics,
    with_metadata,
)
from storage_engine.log.checkpoint import HIGH_WATERMARKS, META_PROPERTIES

_POLICY = "cleanup.policy"
_LIMITS = {"retention.ms": "log.retention.ms", "retention.bytes": "log.retention.bytes"}
"""The limits of retention, and the broker's keys that set their defaults."""


@dataclass(frozen=True)
class CleaningTask:
    """A task that removes records from the logs of a directory.

    verb, done: the name of the task in messages, such as compact and compacted.
    deciding: the settings that the task depends on. If the user gives one of them, the settings of a topic are known.
    presumed: the settings of a topic that the user names in a directory without __cluster_metadata; None if the user must
        give one of the deciding settings.
    """

    verb: str
    done: str
    deciding: tuple[str, ...]
    presumed: Mapping[str, str] | None = None

    @property
    def no_limit(self) -> str:
        """What is said of a topic that is retained without a limit of time or size."""
        limits = " nor ".join(_LIMITS)
        return (
            f"only segments below the log start are deleted, because neither {limits} has a known limit; give one of them"
            " with --config"
        )

    def decided_by(self, settings: Mapping[str, str]) -> str | None:
        """The first deciding setting among these settings; None if there is none."""
        return next((key for key in self.deciding if key in settings), None)


COMPACTION: Final = CleaningTask("compact", "compacted", (_POLICY,), {_POLICY: "compact"})
RETENTION: Final = CleaningTask("retain", "retained", (*_LIMITS, _POLICY))


class DirectoryEvidence:
    """What is known about the topics of one directory without its server.properties.

    path: the directory.
    source: the contents of __cluster_metadata.
    of_broker: whether a broker has used the directory.
    properties, config: the defaults of the topics: Kafka's, and those that were changed while the broker ran.
    evidence: what is known about each topic.
    one_copy: the partitions without a replica on another node.
    """

    def __init__(self, directory: OpenDirectory, path: Path, named: Sequence[str]) -> None:
        """
        Args:
            directory: the directory, after its survey.
            named: the topics that the user names; an internal topic must be named.

        Raises:
            ConfigError: as treatment.with_metadata.
            CorruptionError: meta.properties is damaged.
        """
        names = {entry.name for entry in directory.storage.entries("")}
        self.path = path
        self.source: MetadataSource = find_cluster_metadata([path])
        self.of_broker = self.source.folder is not None or not names.isdisjoint((META_PROPERTIES, HIGH_WATERMARKS))
        found = directory.meta_properties()
        node_id = None if found is None else found.node_id
        self.properties: ServerProperties = properties_of([path])
        if self.source.metadata is not None:
            self.properties = with_metadata(self.properties, self.source.metadata, node_id)
        self.config: LogManagerConfig = self.properties.log_manager_config()
        ids = {each: directory.topic_id(each) for each in directory.found}
        self.evidence = Evidence(ids, self.source.metadata, {}, named, tiers=self.properties.tiered, node_id=node_id)
        self.one_copy = partitions_with_one_copy(self.evidence) if self.of_broker else frozenset(ids)


@dataclass
class TaskChoice:
    """What a task does in a directory.

    choices: which logs are opened, and how.
    opened: the partitions that are opened.
    left: what the task leaves alone, and why: a topic or the folder of a partition. If the user names topics, only these.
    unlimited: the topics that are retained without a limit of time or size.
    error: why __cluster_metadata could not be read; None without an error.
    """

    choices: Choices
    opened: frozenset[TopicPartition]
    left: dict[str, str] = field(default_factory=dict)
    unlimited: list[str] = field(default_factory=list)
    error: LogError | None = None


class TopicChoice:
    """Decides which topics of a directory a task changes. Nothing is written."""

    def __init__(
        self,
        task: CleaningTask,
        directory: OpenDirectory,
        known: DirectoryEvidence,
        named: Sequence[str],
        settings: Mapping[str, str],
    ) -> None:
        """
        Args:
            directory: the directory, after its survey.
            named: the topics that the user names; if there are none, all topics whose settings are known are chosen.
            settings: the settings that the user gives.
        """
        self._task = task
        self._directory = directory
        self._known = known
        self._named = named
        self._settings = settings
        self._left: dict[str, str] = {}

    def check_settings(self) -> None:
        """Check that no setting decides about all topics of a broker.

        Raises:
            UsageError: no topic is named, and the user gives a deciding setting for all topics of a broker.
        """
        key = self._task.decided_by(self._settings)
        if key is not None and self._known.of_broker and not self._named:
            raise UsageError(
                f"--config {key}", f"is given without --topic, and {self._known.path} is the directory of a broker",
                f"Name the topics to {self._task.verb} with --topic.",
            )  # fmt: skip

    def check_topics(self) -> None:
        """Check that something can be known about the topics.

        Raises:
            UsageError: no topic is named, and no settings are known.
        """
        is_known = self._known.source.folder is not None or self._given(self._treatments({}))
        if self._known.evidence.topic_ids and not self._named and not is_known:
            raise UsageError(
                str(self._known.path), f"has no {CLUSTER_METADATA.folder}, so the settings of its topics are not known",
                f"Name the topics to {self._task.verb} with --topic.",
            )  # fmt: skip

    def choose(self) -> TaskChoice:
        """Decide about each topic.

        Raises:
            ConfigError: the settings are not allowed.
        """
        known, self._left = self._known, {}
        treatments = self._treatments(self._given(self._treatments({})))
        chosen = {name: self._limited(each) for name, each in treatments.items() if self._is_chosen(each)}
        ids = known.evidence.topic_ids
        opened = frozenset(each for each in ids if each.topic in chosen and self._has_high_watermark(each))
        # Replaced files can be deleted without a delay: while the lock is held, no broker reads them.
        topics = {name: {**own, "file.delete.delay.ms": "0"} for name, own in chosen.items()}
        unlimited = [name for name, own in chosen.items() if self._is_unlimited(own)]
        choices = Choices(known.config, topics, left_alone=ids.keys() - opened, one_copy=known.one_copy)
        return TaskChoice(choices, opened, self._left, unlimited, known.source.error)

    def _treatments(self, given: Mapping[str, Mapping[str, str]]) -> dict[str, TopicTreatment]:
        return treat_topics(replace(self._known.evidence, given=given), self._known.config)

    def _given(self, known: Mapping[str, TopicTreatment]) -> dict[str, Mapping[str, str]]:
        """The settings of the topics that may be chosen."""
        given: dict[str, Mapping[str, str]] = {}
        is_decided = self._task.decided_by(self._settings) is not None
        for name, each in known.items():
            if self._named and name not in self._named:
                continue
            if each.treatment is Treatment.MANAGED:
                given[name] = {**each.settings, **self._settings}
            elif is_decided and (self._named or not self._known.of_broker):
                given[name] = dict(self._settings)
            elif self._named and self._known.source.folder is None and self._task.presumed is not None:
                given[name] = {**self._task.presumed, **self._settings}
        return given

    def _is_chosen(self, topic: TopicTreatment) -> bool:
        """Whether the task changes a topic; if it does not, the reason is noted."""
        wanted = topic.topic in self._named
        if self._named and not wanted:
            return False
        if topic.treatment is not Treatment.MANAGED:
            unsaid = wanted and topic.treatment is Treatment.KEPT and self._task.decided_by(self._settings) is None
            *others, last = self._task.deciding
            keys = f"{', '.join(others)} or {last}" if others else last
            self._left[topic.topic] = topic.reason + (f"; give its {keys} with --config" if unsaid else "")
            return False
        if self._task is not COMPACTION:
            return True
        compacts = self._known.config.topic(topic.settings, f"topic {topic.topic}").compact
        if wanted and not compacts:
            self._left[topic.topic] = f"its {_POLICY} does not contain compact"
        return compacts

    def _limited(self, topic: TopicTreatment) -> dict[str, str]:
        """The settings of a topic. For retention, without limits that are not known."""
        settings = dict(topic.settings)
        if self._task is RETENTION:
            for key, default in _LIMITS.items():
                if default not in self._known.properties.settings:
                    settings.setdefault(key, "-1")
        return settings

    def _is_unlimited(self, settings: Mapping[str, str]) -> bool:
        config = self._known.config.topic(settings)
        return self._task is RETENTION and config.delete and config.retention_ms < 0 and config.retention_bytes < 0

    def _has_high_watermark(self, partition: TopicPartition) -> bool:
        """Whether the high watermark of a partition is known; if it is not, this is noted."""
        known = partition in self._known.one_copy or partition in self._directory.high_watermarks
        if not known:
            self._left[partition.folder] = (
                f"{HIGH_WATERMARKS} has no line for it, so no record is known to be replicated"
            )
        return known


class LogsOfTask:
    """The open logs of a directory that a task changes. As a context manager, it closes them cleanly.

    logs: the open logs.
    choice: which logs these are, and why the other logs are left alone.
    """

    def __init__(
        self, task: CleaningTask, path: Path, named: Sequence[str], settings: Mapping[str, str], clock: Clock
    ) -> None:
        """Lock the directory and open the logs.

        Args:
            named, settings: as in TopicChoice.

        Raises:
            UnknownTopicError: the directory has no partition of a named topic.
            UsageError: as TopicChoice.check_settings and TopicChoice.check_topics.
            ConfigError: the settings are not allowed.
            LogError: as LogManager.
        """
        self.choice: TaskChoice
        self._arguments = (path, named, settings)
        self._task = task
        directory = LogDirectory(path)
        for topic in named:
            directory.partitions_of(topic)
        self.logs = LogManager([path], clock=clock, choose=self._choose)

    def _choose(self, directories: Sequence[OpenDirectory]) -> Choices:
        (directory,) = directories
        path, named, settings = self._arguments
        topics = TopicChoice(self._task, directory, DirectoryEvidence(directory, path, named), named, settings)
        topics.check_topics()
        topics.check_settings()
        self.choice = topics.choose()
        return self.choice.choices

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.logs.close()
