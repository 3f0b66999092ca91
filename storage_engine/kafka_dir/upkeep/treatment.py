"""Decides what may be done with each topic of a broker's log directories. All functions are pure.

A topic's own settings are not in server.properties, but in __cluster_metadata. Without these settings, the defaults
could delete records that the topic keeps for ever. So the following rules decide. For each topic, the first rule that
fits the topic is used:

    __cluster_metadata                           not opened: KRaft alone opens its folder
    an internal topic that no option includes    loaded, recovered, flushed; Kafka never tiers these topics
    a tiered topic (remote.storage.enable)       not opened: some of its segments are in a remote storage
    settings known                               also retained and compacted, as its settings say
    any other topic                              loaded, recovered, flushed

The settings of a topic are known if an option gives them, or if __cluster_metadata has them for the topic id in the
partition's folder. If remote storage is enabled, a topic with unknown settings is treated as tiered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from storage_engine.config import ALIASES, TOPIC_KEYS, ConfigKey
from storage_engine.config.kafka_dir_keys import DIRECTORY_TOPIC_KEYS, LogManagerConfig
from storage_engine.config.server_properties import ServerProperties
from storage_engine.errors import ConfigError
from storage_engine.kafka_dir.log_directory import TopicPartition
from storage_engine.kafka_dir.open_directory import CLUSTER_METADATA
from storage_engine.kafka_dir.upkeep.cluster_metadata import ClusterMetadata

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's own topics, in which coordinators store their state."""
_TIERED = ConfigKey(
    key="remote.storage.enable", scope="topic", kind="boolean", default=False, cost="",
    doc="The topic has segments in a remote storage.",
)  # fmt: skip


class Treatment(StrEnum):
    """What is done with a topic."""

    MANAGED = "retained and compacted"
    KEPT = "loaded, recovered and flushed, but neither retained nor compacted"
    LEFT_ALONE = "not opened"


@dataclass(frozen=True)
class TopicTreatment:
    """What is done with one topic.

    reason: why; for a managed topic, the source of its settings.
    settings: the topic's own settings; empty unless the topic is managed.
    """

    topic: str
    treatment: Treatment
    reason: str
    settings: Mapping[str, str]

    def __str__(self) -> str:
        return f"topic {self.topic}: {self.treatment}: {self.reason}"


@dataclass(frozen=True)
class Evidence:
    """What is known about the topics.

    topic_ids: the partitions in the directories, with the ids in their partition.metadata; None without this file.
    metadata: the contents of __cluster_metadata; None if they are not known.
    given: the settings that an option gives, by topic.
    included: the internal topics that an option includes.
    tiers: whether topics may have segments in a remote storage.
    node_id: the node to which the directories belong; None if it is not known.
    """

    topic_ids: Mapping[TopicPartition, str | None]
    metadata: ClusterMetadata | None
    given: Mapping[str, Mapping[str, str]]
    included: Collection[str]
    tiers: bool
    node_id: int | None


def treat_topics(evidence: Evidence, config: LogManagerConfig) -> dict[str, TopicTreatment]:
    """What is done with each topic, by its name.

    Raises:
        ConfigError: settings that an option gives are not allowed.
    """
    names = sorted({partition.topic for partition in evidence.topic_ids})
    return {name: _treated(name, evidence, config) for name in names}


def partitions_with_one_copy(evidence: Evidence) -> frozenset[TopicPartition]:
    """The partitions of which it is known that no other node has a replica."""
    found = set()
    for partition, topic_id in evidence.topic_ids.items():
        known = None if evidence.metadata is None else evidence.metadata.topic(partition.topic)
        if known is None or topic_id != known.topic_id:
            continue
        replicas = known.replicas.get(partition.number, ())
        if len(replicas) == 1 and evidence.node_id in (None, *replicas):
            found.add(partition)
    return frozenset(found)


def with_metadata(properties: ServerProperties, metadata: ClusterMetadata, node_id: int | None) -> ServerProperties:
    """The properties, with the settings of brokers in __cluster_metadata.

    Raises:
        ConfigError: a setting is not allowed, or it is not known which settings of single nodes have an effect.
    """
    if node_id is None and metadata.has_settings_of_nodes:
        raise ConfigError(
            properties.file,
            f"the id of the node is not known, but {CLUSTER_METADATA.folder} has settings of single nodes",
            "Set node.id in server.properties, or restore meta.properties.",
        )
    return properties.with_dynamic(metadata.broker_settings(node_id), f"{CLUSTER_METADATA.folder}, settings of brokers")


def _treated(name: str, evidence: Evidence, config: LogManagerConfig) -> TopicTreatment:
    if name == CLUSTER_METADATA.topic:
        return TopicTreatment(name, Treatment.LEFT_ALONE, "KRaft alone opens it", {})
    if name in INTERNAL_TOPICS and name not in evidence.included:
        return TopicTreatment(name, Treatment.KEPT, "it is an internal topic", {})
    given, (stored, why_not) = evidence.given.get(name), _stored(name, evidence)
    settings = given if given is not None else stored
    if settings is None and evidence.tiers:
        reason = f"remote storage is enabled, and {why_not}, so the topic may have segments there"
        return TopicTreatment(name, Treatment.LEFT_ALONE, reason, {})
    in_metadata, in_option = ((each or {}).get(_TIERED.key, "false") for each in (stored, given))
    if in_metadata.strip().lower() != "false" or _TIERED.parse(in_option, f"topic {name}, {_TIERED.key}"):
        return TopicTreatment(
            name, Treatment.LEFT_ALONE, f"{_TIERED.key} is set, so the topic has segments in a remote storage", {}
        )
    if settings is None:
        return TopicTreatment(name, Treatment.KEPT, why_not, {})
    own = {key: value for key, value in settings.items() if key != _TIERED.key}
    if given is not None:
        config.topic(own, f"topic {name}")
        return TopicTreatment(name, Treatment.MANAGED, "settings from --topic-config", own)
    own = {
        key: value for key, value in own.items() if key in TOPIC_KEYS or key in ALIASES or key in DIRECTORY_TOPIC_KEYS
    }
    try:
        config.topic(own, f"topic {name}")
    except ConfigError as error:
        return TopicTreatment(
            name, Treatment.KEPT, f"{CLUSTER_METADATA.topic} has a setting without meaning for Lakelog: {error}", {}
        )
    return TopicTreatment(name, Treatment.MANAGED, f"settings from {CLUSTER_METADATA.topic}", own)


def _stored(name: str, evidence: Evidence) -> tuple[dict[str, str] | None, str]:
    """The settings of a topic in __cluster_metadata; if there are none, the reason."""
    if evidence.metadata is None:
        return None, f"its settings are not known, because {CLUSTER_METADATA.topic} was not read"
    known = evidence.metadata.topic(name)
    if known is None:
        return None, f"{CLUSTER_METADATA.topic} has no topic of this name"
    ids = {topic_id for partition, topic_id in evidence.topic_ids.items() if partition.topic == name}
    if ids != {known.topic_id}:
        found = ", ".join(sorted(each or "none" for each in ids))
        return None, f"the topic id in its folders is {found}, but in {CLUSTER_METADATA.topic} {known.topic_id}"
    return known.settings, ""
