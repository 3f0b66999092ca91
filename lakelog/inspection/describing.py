"""Describes a topic: its partitions, segments, writer and settings, and the files that wait for a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from storage_engine.config import TOPIC_KEYS, BrokerConfig, TopicConfig, as_text
from storage_engine.errors import LogError
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.topic.chain.topic_state import CommittedBatch, DroppedFile, TopicState, Writer
from storage_engine.topic.clean.sweeping import unnamed_files
from storage_engine.topic.ingest_reports import IngestReport, read_report
from storage_engine.topic.topics import Topics


@dataclass(frozen=True)
class Setting:
    """A topic's setting whose value differs from Kafka's default.

    key, value: Kafka's key, and the value as text.
    source: "topic" if the topic itself has the setting; "broker" if a broker key of the root sets the default of this
        topic setting.
    """

    key: str
    value: str
    source: Literal["topic", "broker"]


@dataclass(frozen=True)
class TopicDescription:
    """A topic at one moment, as `lakelog topics describe` shows it.

    version: the number of the state's newest version.
    written_ms: the time at which this version was written, in milliseconds since 1970.
    change: a short text about what this version changed.
    writer: the job that feeds the topic, and its epoch.
    queries: the last micro-batch of each streaming query, by the id of the query.
    ingest: what the ingest that feeds the topic last reported; None if there is no such report.
    ingest_error: why the report of the ingest cannot be read; None if nothing is wrong with it.
    positions: for each source and each partition of the source, the highest committed position.
    sweep_floor: the oldest version of the state from which a job may still start.
    settings: the settings that are not Kafka's defaults.
    partitions: the partitions in order, each with its offsets, segments and producers.
    dropped: the dropped segments whose files are not deleted yet.
    versions_kept: the number of versions of the state in storage.
    unswept_files, unswept_bytes: the number and the size of the files that no version of the state contains. A running
        job is writing these files, or a crashed job left them.
    """

    topic: str
    topic_id: str
    version: int
    written_ms: int
    change: str
    writer: Writer
    queries: Mapping[str, CommittedBatch]
    ingest: IngestReport | None
    ingest_error: LogError | None
    positions: Mapping[str, Mapping[str, int]]
    sweep_floor: int
    settings: tuple[Setting, ...]
    partitions: tuple[PartitionState, ...]
    dropped: tuple[DroppedFile, ...]
    versions_kept: int
    unswept_files: int
    unswept_bytes: int

    def as_json(self) -> dict[str, object]:
        """The description as a JSON document: offsets and bytes are numbers, times are milliseconds since 1970."""
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "version": self.version,
            "written_ms": self.written_ms,
            "change": self.change,
            "writer": self.writer.model_dump(),
            "queries": {query: batch.model_dump() for query, batch in self.queries.items()},
            "ingest": None if self.ingest is None else self.ingest.model_dump(exclude={"format"}),
            "ingest_error": None if self.ingest_error is None else str(self.ingest_error),
            "positions": {source: dict(positions) for source, positions in self.positions.items()},
            "sweep_floor": self.sweep_floor,
            "settings": [{"key": each.key, "value": each.value, "from": each.source} for each in self.settings],
            "partitions": [_partition(number, part) for number, part in enumerate(self.partitions)],
            "dropped": [each._asdict() for each in self.dropped],
            "versions_kept": self.versions_kept,
            "unswept": {"files": self.unswept_files, "size": self.unswept_bytes},
        }


def describe(topics: Topics, state: TopicState) -> TopicDescription:
    """Describe a topic.

    Args:
        state: the topic's newest state.

    Raises:
        StorageError: the storage refused or failed.
    """
    unswept = list(unnamed_files(topics.storage, state))
    found = read_report(topics.storage, state.writer.query)
    return TopicDescription(
        topic=state.topic,
        topic_id=state.topic_id,
        version=state.version,
        written_ms=state.written_ms,
        change=state.change,
        writer=state.writer,
        queries=state.queries,
        ingest=found.report,
        ingest_error=found.error,
        positions=state.positions,
        sweep_floor=state.sweep_floor,
        settings=tuple(_settings(state, topics.broker)),
        partitions=state.partitions,
        dropped=state.dropped,
        versions_kept=len(list(topics.chain(state.topic).versions())),
        unswept_files=len(unswept),
        unswept_bytes=sum(file.size for file in unswept),
    )


def _settings(state: TopicState, broker: BrokerConfig) -> Iterator[Setting]:
    """The topic's own settings, and defaults that the broker's keys change."""
    kafka = TopicConfig()
    for key, declared in TOPIC_KEYS.items():
        value = getattr(broker.topic_defaults, declared.name)
        if key in state.configs:
            yield Setting(key, state.configs[key], "topic")
        elif value != getattr(kafka, declared.name):
            yield Setting(key, as_text(value), "broker")


def _partition(number: int, part: PartitionState) -> dict[str, object]:
    return {
        "partition": number,
        "log_start_offset": part.log_start_offset,
        "high_watermark": part.high_watermark,
        "last_stable_offset": part.last_stable_offset,
        "first_dirty_offset": part.first_dirty_offset,
        "size": part.size,
        "largest_timestamp": part.largest_timestamp,
        "leader_epochs": [epoch._asdict() for epoch in part.leader_epochs],
        "segments": [_segment(segment) for segment in part.segments],
        "producers": [producer._asdict() for producer in part.producers],
    }


def _segment(segment: Segment) -> dict[str, object]:
    return segment._asdict() | {"aborted": [aborted._asdict() for aborted in segment.aborted]}
