"""Imports a topic that the root does not have: creates it with the contents of the log directory.

The new topic has the directory's log start offsets, first dirty offsets, leader epochs, producers and segments. The
new topic also has the topic id of the directory, if no other topic of the root has ever had this id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from storage_engine.config import normalise_overrides, topic_config
from storage_engine.kafka_dir.log_directory import FoundPartition
from storage_engine.log.partition_state import LeaderEpoch, PartitionState, Segment
from storage_engine.topic.chain.topic_state import Writer
from storage_engine.topic.kafka.segment_import import ImportedPartition, ImportedTopic, SegmentImporter, as_text
from storage_engine.topic.topics import Topics
from storage_engine.topic_id import new_topic_id

_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_RESERVED_ID = "A" * 22
"""Kafka's zero UUID, which means that there is no topic id."""


def make_topic(
    importer: SegmentImporter, name: str, found: Sequence[FoundPartition], configs: Mapping[str, object]
) -> ImportedTopic:
    """Create a topic from the partitions of a log directory."""
    config = topic_config(importer.topics.broker, normalise_overrides(configs), f"topic {name}")
    deleted = importer.topics.chain(name).newest_or_none()
    version = deleted.version if deleted else 0
    topic_id = _choose_topic_id(importer, name, found)
    parts = []
    for each in found:
        segments = tuple(
            importer.take(topic_id, version, each, segment, config)._replace(aborted=segment.aborted)
            for segment in _segments_to_import(each.state)
        )
        epochs = each.state.leader_epochs or (LeaderEpoch(0, each.state.log_start_offset),)
        parts.append(each.state.model_copy(update={"segments": segments, "leader_epochs": epochs}))
    # Appends get the writer's epoch. No batch in the log may have a larger epoch.
    writer = Writer(epoch=max(part.leader_epochs[-1].epoch for part in parts))
    what = f"imported from {as_text(importer.directory.path)}"
    state = importer.commit(lambda: importer.topics.begin(name, topic_id, parts, configs, writer, what, version))
    importer.show_snapshots(state, found)
    came = (
        ImportedPartition(part.log_start_offset, part.high_watermark, part.size, each.torn)
        for part, each in zip(parts, found, strict=True)
    )
    return ImportedTopic(state, True, tuple(came))


def _choose_topic_id(importer: SegmentImporter, name: str, found: Sequence[FoundPartition]) -> str:
    """The topic id in the directory, if it is free and could be reserved for this import; else a new id."""
    topic_id = _free_topic_id(importer.topics, found)
    return topic_id if topic_id is not None and importer.reserve_id(topic_id, name) else new_topic_id()


def _free_topic_id(topics: Topics, found: Sequence[FoundPartition]) -> str | None:
    """The topic id of all partitions in the directory, if no topic of this root has or had it and data/ has no files of
    it; else None."""
    named = {each.topic_id for each in found}
    topic_id = named.pop()
    if named or topic_id is None or not _TOPIC_ID.fullmatch(topic_id) or topic_id == _RESERVED_ID:
        return None
    chains = (topics.chain(name).newest_or_none() for name in topics.names(with_deleted=True))
    known = (state for state in chains if state is not None)
    if any(topic_id in (state.topic_id, *(former.topic_id for former in state.former)) for state in known):
        return None
    return None if next(topics.storage.list(f"data/{topic_id}/"), None) else topic_id


def _segments_to_import(part: PartitionState) -> Sequence[Segment]:
    """The segments to import: all of them, or none if the only segment is empty.

    Empty segments between others are imported, because they affect look-ups by time. An empty segment at the end is
    imported, because it is the active segment: without it the segment before would be active, and could not be
    compacted.
    """
    is_empty = len(part.segments) == 1 and not part.segments[0].size
    return () if is_empty else part.segments
