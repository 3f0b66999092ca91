"""Opens one plain Kafka log directory for `lakelog compact --kafka-dir`: only the logs that are compacted.

There is no server.properties, so the settings of a topic are those in __cluster_metadata beside it, and those that the
user gives. The rules of upkeep.treatment decide, as for a log manager. A topic is compacted in these cases:

    __cluster_metadata has its settings            with these settings, and those of the user on top
    the user names it, no __cluster_metadata       with the settings of the user; by default cleanup.policy=compact
    the user names it, __cluster_metadata does     if the user gives its cleanup.policy
      not tell its settings
    the user gives a cleanup.policy for all        only in a directory that no broker has used

Internal topics must be named. All other logs are not opened, and their files stay as they are. In a broker's directory,
no record at or above the broker's high watermark is compacted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from storage_engine.clock import Clock
from storage_engine.config.kafka_dir_keys import LogManagerConfig
from storage_engine.config.server_properties import ServerProperties
from storage_engine.errors import LogError, UsageError
from storage_engine.kafka_dir.log_directory import LogDirectory, TopicPartition
from storage_engine.kafka_dir.log_manager import Choices, LogManager
from storage_engine.kafka_dir.open_directory import CLUSTER_METADATA, REMOTE_INDEX_CACHE, OpenDirectory
from storage_engine.kafka_dir.upkeep.metadata_log import MetadataSource, find_cluster_metadata
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


class LogsToCompact:
    """The open logs of a directory that are compacted. As a context manager, it closes them cleanly.

    logs: the open logs.
    left: what is not compacted, and why: a topic or the folder of a partition. If the user names topics, only of these.
    error: why __cluster_metadata could not be read; None without an error.
    """

    def __init__(self, path: Path, named: Sequence[str], settings: Mapping[str, str], clock: Clock) -> None:
        """Lock the directory and open the logs.

        Args:
            named: the topics that the user names; if there are none, all topics whose settings are known are compacted.
            settings: the settings that the user gives.

        Raises:
            UnknownTopicError: the directory has no partition of a named topic.
            UsageError: no topic is named, and no settings are known. Or no topic is named, and the user gives a
                cleanup.policy for all topics of a broker.
            ConfigError: the settings are not allowed.
            LogError: as LogManager.
        """
        self.left: dict[str, str] = {}
        self.error: LogError | None = None
        self._path = path
        self._named = named
        self._settings = settings
        directory = LogDirectory(path)
        for topic in named:
            directory.partitions_of(topic)
        self.logs = LogManager([path], clock=clock, choose=self._choose)

    def _choose(self, directories: Sequence[OpenDirectory]) -> Choices:
        (directory,) = directories
        names = {entry.name for entry in directory.storage.entries("")}
        source = find_cluster_metadata([self._path])
        self.error = source.error
        of_broker = source.folder is not None or not names.isdisjoint((META_PROPERTIES, HIGH_WATERMARKS))
        properties = directory.meta_properties()
        node_id = None if properties is None else properties.node_id
        config = self._config(source, node_id)
        ids = {each: directory.topic_id(each) for each in directory.found}
        evidence = Evidence(ids, source.metadata, {}, self._named, tiers=REMOTE_INDEX_CACHE in names, node_id=node_id)
        given = self._given(treat_topics(evidence, config), source, of_broker=of_broker)
        if ids and not given and not self._named and source.folder is None:
            raise UsageError(
                str(self._path), f"has no {CLUSTER_METADATA.folder}, so the settings of its topics are not known",
                "Name the topics to compact with --topic.",
            )  # fmt: skip
        if _POLICY in self._settings and of_broker and not self._named:
            raise UsageError(
                f"--config {_POLICY}", f"is given without --topic, and {self._path} is the directory of a broker",
                "Name the topics to compact with --topic.",
            )  # fmt: skip
        treatments = treat_topics(replace(evidence, given=given), config)
        compacted = {name: each.settings for name, each in treatments.items() if self._is_compacted(each, config)}
        one_copy = partitions_with_one_copy(evidence) if of_broker else frozenset(ids)
        opened = {each for each in ids if each.topic in compacted and self._is_known(each, directory, one_copy)}
        # Replaced files can be deleted without a delay: while the lock is held, no broker reads them.
        topics = {name: {**own, "file.delete.delay.ms": "0"} for name, own in compacted.items()}
        return Choices(config, topics, left_alone=ids.keys() - opened, one_copy=one_copy)

    def _config(self, source: MetadataSource, node_id: int | None) -> LogManagerConfig:
        """The defaults of the topics: Kafka's, and those that were changed while the broker ran."""
        properties = ServerProperties(str(self._path), (self._path,), None, None, tiered=False, settings={}, ignored=())
        if source.metadata is not None:
            properties = with_metadata(properties, source.metadata, node_id)
        return properties.log_manager_config()

    def _given(
        self, known: Mapping[str, TopicTreatment], source: MetadataSource, *, of_broker: bool
    ) -> dict[str, Mapping[str, str]]:
        """The settings of the topics that may be compacted."""
        given: dict[str, Mapping[str, str]] = {}
        for name, each in known.items():
            if self._named and name not in self._named:
                continue
            if each.treatment is Treatment.MANAGED:
                given[name] = {**each.settings, **self._settings}
            elif _POLICY in self._settings and (self._named or not of_broker):
                given[name] = dict(self._settings)
            elif self._named and source.folder is None:
                given[name] = {_POLICY: "compact", **self._settings}
        return given

    def _is_compacted(self, topic: TopicTreatment, config: LogManagerConfig) -> bool:
        """Whether a topic is compacted; if it is not, the reason is noted."""
        wanted = topic.topic in self._named
        if self._named and not wanted:
            return False
        if topic.treatment is not Treatment.MANAGED:
            unsaid = wanted and topic.treatment is Treatment.KEPT and _POLICY not in self._settings
            self.left[topic.topic] = topic.reason + (f"; give its {_POLICY} with --config" if unsaid else "")
            return False
        compacts = config.topic(topic.settings, f"topic {topic.topic}").compact
        if wanted and not compacts:
            self.left[topic.topic] = f"its {_POLICY} does not contain compact"
        return compacts

    def _is_known(
        self, partition: TopicPartition, directory: OpenDirectory, one_copy: frozenset[TopicPartition]
    ) -> bool:
        """Whether the high watermark of a partition is known; if it is not, this is noted."""
        known = partition in one_copy or partition in directory.high_watermarks
        if not known:
            self.left[partition.folder] = (
                f"{HIGH_WATERMARKS} has no line for it, so no record is known to be replicated"
            )
        return known

    def __enter__(self) -> LogsToCompact:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.logs.close()
