"""Opens the log directories that a server.properties names, in the same way as a broker with this file.

All directories are locked first. Then the metadata is read, upkeep.treatment decides what may be done with each
topic, and the logs are loaded. If __cluster_metadata has a directory of its own, this directory is also locked, so
that no controller runs there.

Without a server.properties, `properties_of` gives the properties for some directories. With Options.recovers_only, the
caller only loads and closes the logs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from storage_engine.clock import Clock
from storage_engine.config.kafka_dir_keys import LogManagerConfig
from storage_engine.config.server_properties import METADATA_LOG_DIR, STATIC_KEYS, ServerProperties
from storage_engine.errors import ConfigError
from storage_engine.kafka_dir.log_manager import Choices, LogManager
from storage_engine.kafka_dir.open_directory import (
    CLUSTER_METADATA,
    REMOTE_INDEX_CACHE,
    OpenDirectory,
    check_directory,
)
from storage_engine.kafka_dir.upkeep.cluster_metadata import ClusterMetadata
from storage_engine.kafka_dir.upkeep.metadata_log import find_cluster_metadata
from storage_engine.kafka_dir.upkeep.reporting import Reporter
from storage_engine.kafka_dir.upkeep.treatment import (
    Evidence,
    TopicTreatment,
    Treatment,
    partitions_with_one_copy,
    treat_topics,
    with_metadata,
)
from storage_engine.log.checkpoint import HIGH_WATERMARKS, LOCK, META_PROPERTIES
from storage_engine.quantities import counted
from storage_engine.storage.storage_opening import open_directory

_DELAYS = ("log.segment.delete.delay.ms", "file.delete.delay.ms")


@dataclass(frozen=True)
class Options:
    """The user's options, in addition to the server.properties.

    given: settings of topics, by topic. They replace those in __cluster_metadata.
    included: the internal topics that are treated like all others.
    truncates: whether a damaged log ends at the damage, as in Kafka.
    deletes_at_once: whether files are deleted without the delay of file.delete.delay.ms.
    recovers_only: whether the caller only loads and closes the logs. Then only the topics that are not opened are
        reported.
    """

    given: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    included: Collection[str] = ()
    truncates: bool = False
    deletes_at_once: bool = False
    recovers_only: bool = False


def properties_of(directories: Sequence[Path]) -> ServerProperties:
    """The properties for log directories without a server.properties: Kafka's defaults. Topics may have segments in a
    remote storage if a directory has the folder in which a broker stores the indexes of these segments.
    """
    return ServerProperties(
        file=", ".join(map(str, directories)),
        log_dirs=tuple(directories),
        metadata_log_dir=None,
        node_id=None,
        tiered=any(os.path.exists(each / REMOTE_INDEX_CACHE) for each in directories),  # noqa: PTH110 - never raises
        settings={},
        ignored=(),
    )


class BrokerLogs:
    """The open logs of a broker's directories. As a context manager, it closes the logs cleanly.

    logs: the open logs.
    treatments: what is done with each topic, by its name.
    managed: the topics that are retained and compacted.
    complete: whether the metadata could be read.
    """

    def __init__(self, properties: ServerProperties, options: Options, clock: Clock, reporter: Reporter) -> None:
        """Lock and open the directories.

        Raises:
            ConfigError: settings that an option gives are not allowed, or the file belongs to another node.
            LogError: as LogManager.
        """
        self._properties = properties
        self._options = options
        self._reporter = reporter
        self.complete = True
        self.treatments: dict[str, TopicTreatment] = {}
        with ExitStack() as held:
            separate = properties.metadata_log_dir
            if separate is not None and separate.resolve() not in {each.resolve() for each in properties.log_dirs}:
                storage = open_directory(separate)
                check_directory(storage)
                held.enter_context(storage.hold_exclusive(LOCK))
            self.logs = LogManager(properties.log_dirs, clock=clock, choose=self._choose)
            self._held = held.pop_all()
        self.managed = frozenset(each.topic for each in self.treatments.values() if each.treatment is Treatment.MANAGED)

    def _choose(self, directories: Sequence[OpenDirectory]) -> Choices:
        node_id = self._node_id(directories)
        metadata = self._metadata(directories)
        properties = self._properties
        if metadata is not None:
            properties = with_metadata(properties, metadata, node_id)
            if static := sorted(STATIC_KEYS & metadata.broker_settings(node_id).keys()):
                text = f"{CLUSTER_METADATA.folder} sets {', '.join(static)}; ignored, as by a broker that runs"
                self._reporter.did(properties.file, text)
        if self._options.deletes_at_once:
            properties = replace(properties, settings={**properties.settings, _DELAYS[0]: "0"})
        config = properties.log_manager_config()
        evidence = Evidence(
            topic_ids={each: directory.topic_id(each) for directory in directories for each in directory.found},
            metadata=metadata,
            given=self._options.given,
            included=self._options.included,
            tiers=properties.tiered,
            node_id=node_id,
        )
        self.treatments = treat_topics(evidence, config)
        for treatment in self.treatments.values():
            if treatment.treatment is Treatment.LEFT_ALONE or not self._options.recovers_only:
                self._reporter.did(properties.file, str(treatment))
        choices = self._choices(config, evidence)
        if not self._options.recovers_only:
            self._report_unknown_watermarks(directories, choices)
        return choices

    def _choices(self, config: LogManagerConfig, evidence: Evidence) -> Choices:
        left = {name for name, each in self.treatments.items() if each.treatment is Treatment.LEFT_ALONE}
        delay = {_DELAYS[1]: "0"} if self._options.deletes_at_once else {}
        return Choices(
            config,
            {name: {**each.settings, **delay} for name, each in self.treatments.items()},
            left_alone=frozenset(each for each in evidence.topic_ids if each.topic in left),
            one_copy=partitions_with_one_copy(evidence),
            truncates=self._options.truncates,
        )

    def _report_unknown_watermarks(self, directories: Sequence[OpenDirectory], choices: Choices) -> None:
        managed = {name for name, each in self.treatments.items() if each.treatment is Treatment.MANAGED}
        for directory in directories:
            known = choices.one_copy | directory.high_watermarks.keys()
            unknown = [each for each in directory.found if each.topic in managed and each not in known]
            if unknown:
                self._reporter.did(
                    directory.path,
                    f"{HIGH_WATERMARKS} has no line for {counted(len(unknown), 'replicated partition')}, so none of their"
                    " records are deleted or compacted",
                )

    def _node_id(self, directories: Sequence[OpenDirectory]) -> int | None:
        """The node to which the directories belong; None if neither the file nor a directory names it."""
        wanted = known = self._properties.node_id
        for directory in directories:
            found = directory.meta_properties()
            if found is None or found.node_id is None:
                continue
            if wanted is not None and found.node_id != wanted:
                raise ConfigError(
                    self._properties.file,
                    f"belongs to node {wanted}, but {directory.path}/{META_PROPERTIES} belongs to node {found.node_id}",
                    "Give the server.properties of the node that uses the directory.",
                )
            known = found.node_id
        return known

    def _metadata(self, directories: Sequence[OpenDirectory]) -> ClusterMetadata | None:
        """The contents of __cluster_metadata; None if they are not known. The reason is then reported."""
        separate = self._properties.metadata_log_dir
        places = [] if separate is None else [separate]
        source = find_cluster_metadata([*places, *(Path(each.path) for each in directories)])
        if source.error is not None:
            self.complete = False
            self._reporter.failed(source.error)
        elif source.metadata is not None and source.folder is not None:
            self._reporter.did(source.folder, f"read up to offset {source.metadata.end_offset}")
        elif separate is None:
            self._reporter.did(self._properties.file, f"no log directory has {CLUSTER_METADATA.folder}")
        else:
            self.complete = False
            problem = f"{METADATA_LOG_DIR} has no {CLUSTER_METADATA.folder}, and no log directory has it"
            self._reporter.failed(ConfigError(self._properties.file, problem))
        return source.metadata

    def close(self) -> None:
        """Close the logs cleanly and release all locks. Raises the errors of LogManager.close."""
        try:
            self.logs.close()
        finally:
            self._held.close()

    def __enter__(self) -> BrokerLogs:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
