"""Describes the change of a version of a topic's state in words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_engine.quantities import counted, shown_number, shown_size

if TYPE_CHECKING:
    from storage_engine.topic.chain.history_file import VersionChange
    from storage_engine.topic.chain.topic_state import Removal


def change_text(change: VersionChange) -> str:
    """What a version changed, with its settings; then a line for each removal of records."""
    settings = [key if value is None else f"{key}={value}" for key, value in change.configs.items()]
    line = " ".join([change.change, *([f"({', '.join(settings)})"] if settings else [])])
    return "\n".join([line, *map(removal_text, change.removed)])


def removal_text(removal: Removal) -> str:
    """A line of text: the offsets of a removal, and what was removed."""
    took = [f"{shown_number(count)} {cause}" for cause, count in removal.records.items()]
    if removal.segments > 0:
        took.append(counted(removal.segments, "segment"))
    if removal.bytes > 0:
        took.append(shown_size(removal.bytes))
    text = f"partition {removal.partition}, {removal.by}, offsets {removal.from_offset:,} to {removal.to_offset - 1:,}"
    unread = f"; not read by {' and '.join(removal.unread_by)}" if removal.unread_by else ""
    return f"{text}{': ' if took else ''}{', '.join(took)}{unread}"
