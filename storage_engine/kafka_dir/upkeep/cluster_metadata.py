"""Derives topics, replicas and settings from the records of __cluster_metadata (MetadataBatchLoader, MetadataDelta).

The records of a metadata transaction take effect when the transaction ends. If the transaction is aborted or still
open, its records have no effect. A ConfigRecord without a value deletes a setting. When a topic is deleted, its
settings are deleted, too. The module does no input or output.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from storage_engine.record.cluster_metadata.metadata_records import MetadataRecord, MetadataType, ResourceType

_ALL_BROKERS = ""


class ContradictingRecordError(Exception):
    """A record that the records before it do not allow. expected, found: in words."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found


@dataclass
class KnownTopic:
    """A topic as the cluster knows it.

    settings: the topic's own settings, by Kafka's keys.
    replicas: the nodes with a copy of each partition.
    """

    name: str
    topic_id: str
    settings: dict[str, str] = field(default_factory=dict)
    replicas: dict[int, tuple[int, ...]] = field(default_factory=dict)


class ClusterMetadata:
    """The topics and the settings of a cluster.

    end_offset: the offset after the last record of __cluster_metadata that was read.
    """

    def __init__(self) -> None:
        self.end_offset = 0
        self._topics: dict[str, KnownTopic] = {}
        self._ids: dict[str, str] = {}
        self._settings: dict[tuple[int, str], dict[str, str]] = {}
        self._waiting: list[MetadataRecord] | None = None

    def topic(self, name: str) -> KnownTopic | None:
        """The topic of this name, with its settings; None if the cluster has no such topic."""
        topic = self._topics.get(name)
        if topic is not None:
            topic.settings = dict(self._settings.get((ResourceType.TOPIC, name), {}))
        return topic

    @property
    def has_settings_of_nodes(self) -> bool:
        """Whether settings of single nodes were changed while brokers ran."""
        return any(
            settings and kind == ResourceType.BROKER and name for (kind, name), settings in self._settings.items()
        )

    def broker_settings(self, node_id: int | None) -> dict[str, str]:
        """The settings that were changed while brokers ran. The settings of one node have priority over those of all
        brokers.
        """
        settings = dict(self._settings.get((ResourceType.BROKER, _ALL_BROKERS), {}))
        if node_id is not None:
            settings |= self._settings.get((ResourceType.BROKER, str(node_id)), {})
        return settings

    def replay(self, records: Iterable[MetadataRecord]) -> None:
        """Apply the next records.

        Raises:
            ContradictingRecordError: a topic gets the name of a topic that was not deleted. A cluster never writes this, so
                records are missing.
        """
        for record in records:
            match record.type:
                case MetadataType.BEGIN_TRANSACTION:
                    self._waiting = []
                case MetadataType.ABORT_TRANSACTION:
                    self._waiting = None
                case MetadataType.END_TRANSACTION:
                    waiting, self._waiting = self._waiting or [], None
                    for each in waiting:
                        self._apply(each)
                case _ if self._waiting is not None:
                    self._waiting.append(record)
                case _:
                    self._apply(record)

    def _apply(self, record: MetadataRecord) -> None:
        fields = record.fields
        match record.type:
            case MetadataType.TOPIC:
                self._create(fields["name"], fields["topicId"])
            case MetadataType.REMOVE_TOPIC:
                self._remove(fields["topicId"])
            case MetadataType.CONFIG:
                self._configure(fields)
            case _:
                self._place(fields)

    def _create(self, name: str, topic_id: str) -> None:
        before = self._topics.get(name)
        if before is not None and before.topic_id != topic_id:
            raise ContradictingRecordError(
                f"a record that deletes topic {name} with the id {before.topic_id}",
                f"a new topic of this name with the id {topic_id}",
            )
        self._topics[name] = KnownTopic(name, topic_id)
        self._ids[topic_id] = name

    def _remove(self, topic_id: str) -> None:
        name = self._ids.pop(topic_id, None)
        if name is not None:
            del self._topics[name]
            self._settings.pop((ResourceType.TOPIC, name), None)

    def _configure(self, fields: dict[str, Any]) -> None:
        of_resource = self._settings.setdefault((fields["resourceType"], fields["resourceName"]), {})
        if fields["value"] is None:
            of_resource.pop(fields["name"], None)
        else:
            of_resource[fields["name"]] = fields["value"]

    def _place(self, fields: dict[str, Any]) -> None:
        name = self._ids.get(fields["topicId"])
        replicas = fields.get("replicas")
        if name is not None and replicas is not None:
            self._topics[name].replicas[fields["partitionId"]] = tuple(replicas)
