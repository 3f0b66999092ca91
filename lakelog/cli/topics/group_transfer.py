"""Imports a broker's consumer groups for `lakelog topics import`, and exports groups for `lakelog topics export`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakelog.cli.output import write_error, write_line
from storage_engine.errors import LogError
from storage_engine.quantities import counted

if TYPE_CHECKING:
    from storage_engine.kafka_dir.log_directory import LogDirectory
    from storage_engine.storage import Directory
    from storage_engine.topic.chain.topic_state import TopicState
    from storage_engine.topic.topics import Topics


def import_broker_groups(topics: Topics, source: LogDirectory, arrived: Sequence[TopicState]) -> list[LogError]:
    """Store the committed offsets of a broker's groups as positions on imported topics. Returns what failed."""
    from storage_engine.topic.kafka.kafka_import import import_groups

    try:
        taken = import_groups(topics, source, arrived)
    except LogError as error:
        return [error]
    for topic, count in taken.items():
        write_line(f"imported {counted(count, 'group')} of topic {topic}")
    return []


def export_groups(topics: Topics, exported: Sequence[TopicState], folder: Directory) -> bool:
    """Write the positions of groups into an export. Returns whether all groups could be read. Standard error
    names the others."""
    from storage_engine.topic.kafka.broker_groups import OFFSETS_FILE, offsets_file
    from storage_engine.topic.readers.consumer_files import read_consumers

    consumers = {state.topic: read_consumers(topics.storage, state) for state in exported}
    lines = offsets_file((topic, group) for topic, found in consumers.items() for group in found.known)
    if lines:
        folder.put_new(OFFSETS_FILE, lines)
    damaged = [error for found in consumers.values() for error in found.damaged]
    for error in damaged:
        write_error(error)
    return not damaged
