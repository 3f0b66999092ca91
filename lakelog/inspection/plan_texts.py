"""Describes the decisions of a cleaning plan in words: the numbers that were compared, and the reasons that keep segments.
Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_engine.quantities import counted, shown_duration, shown_moment, shown_number, shown_size

if TYPE_CHECKING:
    from storage_engine.topic.clean.cleaning_plan import Block, SegmentStep


def found_and_limit(step: SegmentStep) -> tuple[str, str]:
    """The number that was found, and the limit that it was compared with."""
    found, limit = step.found, step.limit
    match step.rule:
        case "time":
            return f"{shown_duration(found / 1000)} old", f"retention.ms {shown_duration(limit / 1000)}"
        case "size":
            return f"{shown_size(found)} in all", f"retention.bytes {shown_size(limit)}"
        case "start offset":
            return f"ends at {shown_number(found)}", f"log starts at {shown_number(limit)}"
        case "max.compaction.lag.ms":
            return f"dirty for {shown_duration(found / 1000)}", f"{step.rule} {shown_duration(limit / 1000)}"
        case "expired delete horizons":
            return f"the first passed {shown_duration(found / 1000)} ago", "cleaner.clean.expired.horizons"
        case "small neighbours":
            return (
                f"{shown_size(found)} from offset {shown_number(step.into or 0)}",
                f"segment.bytes {shown_size(limit)}",
            )
        case _:
            return f"{found:.3f} dirty", f"min.cleanable.dirty.ratio {limit:g}"


def block_text(block: Block) -> str:
    """One rule that keeps segments: how many segments, which numbers decide this, and until when."""
    kept = f"{counted(block.segments, 'segment')}, {shown_size(block.bytes)}, from offset {shown_number(block.from_offset)}"
    match block.kind:
        case "future timestamp":
            text = f"kept: {kept}, because an earlier segment has a timestamp {shown_duration(-block.found / 1000)} in the future"
        case "consumer":
            names = ", ".join(block.consumers)
            text = (
                f"kept: {kept}, because {names} must still read the records from offset {shown_number(block.found)} on"
            )
        case "min.compaction.lag.ms":
            age, lag = (shown_duration(each / 1000) for each in (block.found, block.limit))
            text = f"not cleaned yet: {kept}, {age} old, min.compaction.lag.ms is {lag}"
        case "open transaction":
            text = f"not cleaned yet: {kept}, a transaction is open from offset {shown_number(block.found)} on"
        case "active segment":
            text = f"not cleaned yet: {kept}, the active segment"
        case _:
            text = f"not due: {kept}, {block.found:.3f} dirty, {block.kind} is {block.limit:g}"
    return f"{text}, until {shown_moment(block.until_ms)}" if block.until_ms is not None else text
