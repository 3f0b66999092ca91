"""Plans an export: decides which records to read. The decision uses the head of the table (its newest version, with the
exported positions) and the offsets of the topic.

`decide_export` is a pure function. The plan contains the first and the last offset of each partition, the gaps (offsets
that retention deleted), the partitions that are read again, the partitions whose rows are replaced, and the guard of
the commit (`pipeline.delta.table_history`). This module needs no Spark, so an export without new records starts no JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from pipeline.delta.table_properties import TableLayout
from pipeline.delta.table_stamp import Began, Recent, Stamp, TableHead, known_began
from schemas.event_schema import EventSchema, model_hash
from storage_engine.errors import StateError

if TYPE_CHECKING:
    from storage_engine.topic.chain.topic_state import TopicState


class ExportMode(StrEnum):
    """The meaning of a record: its key's new state (upsert), an event (append), or a change of its key (changelog)."""

    UPSERT = "upsert"
    APPEND = "append"
    CHANGELOG = "changelog"

    @property
    def needs_key(self) -> bool:
        """Whether a record without a key is a dead letter."""
        return self is not ExportMode.APPEND


@dataclass(frozen=True)
class PartitionOffsets:
    """The offsets of a partition for readers of committed records: from the log start offset to the last stable offset.

    tombstones_end: below this offset, tombstones may have been removed.
    compacted_end: below this offset, a compaction may have removed records.
    """

    log_start_offset: int
    last_stable_offset: int
    tombstones_end: int = 0
    compacted_end: int = 0


def offset_ranges(state: TopicState) -> dict[int, PartitionOffsets]:
    """The offsets of a topic's partitions, by number."""
    return {
        number: PartitionOffsets(
            part.log_start_offset, part.last_stable_offset, part.tombstones_end, part.first_dirty_offset or 0
        )
        for number, part in enumerate(state.partitions)
    }


@dataclass(frozen=True)
class Export:
    """One topic and the table to which it is exported."""

    topic: str
    topic_id: str
    mode: ExportMode
    schema: EventSchema | None
    """None: the value is exported unchanged, in the binary column `value`."""
    table: str
    """Path or URI of the Delta table."""
    dead_letters: str
    """Path or URI of the Delta table of records that could not be decoded."""
    asked_by: str = "the settings"
    """The setting or topic that determines the mode, for messages."""
    section: str = "export"
    """The section of the settings that declares the export, for messages."""
    headers: bool = False
    """Whether the rows contain the headers of the records; not in an upsert."""
    digest: bool = False
    """Whether the rows contain digests, and the stamps their sums (pipeline.delta.chain)."""
    key_schema: EventSchema | None = None
    """None: the rows have only the bytes of the key, in the column `_key`."""
    layout: TableLayout = field(default_factory=TableLayout)


Register = Callable[[Mapping[int, int]], None]
"""Registers the positions of an export, by partition."""


@dataclass(frozen=True)
class Gap:
    """Offsets that retention deleted before they were exported."""

    partition: int
    from_offset: int
    to_offset: int
    """The first offset that still existed."""


class ExportRefusedError(StateError):
    """The table does not fit the topic, and an export would damage the table."""


class TopicRecreatedError(ExportRefusedError):
    """The table belongs to another topic, usually to a deleted topic that had the same name."""


class ExportModeError(ExportRefusedError):
    """The table was exported in another mode, so its rows have another meaning."""


class PositionAheadError(ExportRefusedError):
    """The table holds records beyond the end of the log."""


class TableSchemaError(ExportRefusedError):
    """The columns of the table do not fit the export's model, and cannot be changed to fit the model."""


class OffsetRefusedError(ExportRefusedError):
    """The export cannot begin or end at an offset that was given on the command line."""


@dataclass(frozen=True)
class ExportPlan:
    """The plan of one run of an export.

    head: the head of the table, with the guard of its next commit; None if there is no table yet.
    before: the table's positions, 0 for a partition that was added after the last export. If there is no table, or if
        the positions were computed from the rows, partitions can be missing.
    start, end: by partition, the first offset to read and the offset after the last one.
    waiting: the partitions with records to read.
    gaps: the offsets that retention deleted before they were exported.
    reread: partitions that are read from their start, because compaction may have removed unexported tombstones.
    replaced: partitions whose rows at or above `start` are rebuilt, because the command line asks for this.
    began: how the first export of the table began, with the offsets after this run; None: not known.
    ranges: the offsets of the topic's partitions when the run was planned.
    """

    head: TableHead | None
    before: Mapping[int, int]
    start: Mapping[int, int]
    end: Mapping[int, int]
    gaps: tuple[Gap, ...] = ()
    reread: tuple[int, ...] = ()
    replaced: tuple[int, ...] = ()
    began: Began | None = None
    ranges: Mapping[int, PartitionOffsets] = field(default_factory=dict)

    @property
    def waiting(self) -> list[int]:
        return [partition for partition in sorted(self.end) if self.start[partition] < self.end[partition]]

    @property
    def to_read(self) -> tuple[dict[int, int], dict[int, int]]:
        """The first offset to read and the offset after the last one, by partition that has records to read."""
        return {each: self.start[each] for each in self.waiting}, {each: self.end[each] for each in self.waiting}

    @property
    def required(self) -> dict[int, int]:
        """By partition, an offset. If retention deletes an unread record at or above this offset, the run fails."""
        return {**self.before, **{partition: self.start[partition] for partition in self.replaced}}

    @property
    def positions(self) -> dict[int, int]:
        """The table's positions after the run."""
        return {**self.before, **self.end} if self.waiting else dict(self.before)

    @property
    def recent(self) -> Recent:
        """The counts of the last records that earlier runs exported."""
        return self.head.current.recent if self.head is not None and self.head.current is not None else Recent()

    @property
    def table_version(self) -> int | None:
        return self.head.version if self.head is not None else None

    @property
    def rebuilt(self) -> dict[int, int]:
        """By partition, the first offset whose rows are rebuilt. An upsert also deletes each row at or above that
        offset if the key of the row has no record."""
        return {each: self.start[each] for each in (*self.reread, *self.replaced)}

    @property
    def replaced_rows(self) -> str | None:
        """SQL for the rows that an append replaces; None if the append only adds rows."""
        if not self.replaced:
            return None
        return " OR ".join(f"(_partition = {each} AND _offset >= {self.start[each]})" for each in self.waiting)


@dataclass(frozen=True)
class ExportResult:
    """The result of one run of an export."""

    records: int = 0
    """Number of records that were read, before a compacted topic is reduced to one record per key."""
    tombstones: int = 0
    """Number of these records that have a null value."""
    written: int = 0
    """Number of rows that an upsert inserted or updated, or that an append added."""
    deleted: int = 0
    """Number of rows that a tombstone deleted, or that were replaced by rows of the same offsets."""
    became_stale: int = 0
    """Number of rows that became stale: they were current before, and a newer record of their key cannot be decoded."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """By reason, the number of records that became dead letters."""
    without_row: int = 0
    """Number of keys that have a dead letter, but no row."""
    plan: ExportPlan = field(default_factory=lambda: ExportPlan(None, {}, {}, {}))
    table_version: int | None = None
    """None if there is no table yet, because there were no records to export."""

    @property
    def dead_letters(self) -> int:
        """Number of records that became dead letters."""
        return sum(self.reasons.values())

    @property
    def positions_before(self) -> Mapping[int, int]:
        """By partition, the next offset to export, as in ExportPlan.before."""
        return self.plan.before

    @property
    def positions_after(self) -> Mapping[int, int]:
        return self.plan.positions


@dataclass(frozen=True)
class ExportBounds:
    """The options of the command line for one run.

    from_offsets: by partition, the first offset to read. The table's rows from this offset on are rebuilt.
    from_time: by partition, the first offset at or after a time, or the position of an existing table if it is lower.
    up_to: the end offsets of the run if its dead letters are accepted, else None.
    """

    from_offsets: Mapping[int, int] = field(default_factory=dict)
    from_time: Mapping[int, int] = field(default_factory=dict)
    up_to: Mapping[int, int] | None = None


NO_BOUNDS = ExportBounds()


def decide_export(
    export: Export,
    head: TableHead | None,
    before: Mapping[int, int],
    ranges: Mapping[int, PartitionOffsets],
    bounds: ExportBounds = NO_BOUNDS,
) -> ExportPlan:
    """Decide what the next run of an export does.

    Args:
        head: the head of the table; None if there is no table yet.
        before: the table's positions; empty if there is no table.
        ranges: the offsets of the topic's partitions, from one version of its state.

    Raises:
        ExportRefusedError: the table does not fit the topic, or the options do not fit the table or the topic. Each
            subclass has a remedy.
    """
    _check_stamp(export, head)
    if head is not None and head.current is not None and not head.is_new:
        # A stamp has a position for each partition. So every other partition was added after the last export.
        before = dict.fromkeys(ranges, 0) | dict(before)
    start, gaps = _starting_offsets(export, before, ranges)
    by_time = {
        partition: offset if head is None else min(offset, start[partition])
        for partition, offset in bounds.from_time.items()
    }
    wanted = by_time | dict(bounds.from_offsets)
    _check_from_offsets(export, head, start, ranges, wanted)
    replaced = tuple(each for each in sorted(wanted) if head is not None and wanted[each] < start[each])
    reread = _reread(before, ranges) if head is not None and export.mode is ExportMode.UPSERT else ()
    start |= wanted
    start |= {partition: ranges[partition].log_start_offset for partition in reread}
    begin = dict(start)
    back = {*reread, *replaced} if export.mode is ExportMode.UPSERT else set[int]()
    left_out = (known_began(head) or Began({}, 0)).offsets if head is not None else {}
    for each, offsets in ranges.items():
        if back - {each}:  # a key of a partition that goes back may have a newer record in any other partition
            start[each] = min(start[each], max(offsets.log_start_offset, left_out.get(each, 0)))
    end = {partition: offsets.last_stable_offset for partition, offsets in ranges.items()}
    if bounds.up_to is not None:
        check_up_to(export, begin, end, bounds.up_to)
        end = {partition: bounds.up_to.get(partition, begin[partition]) for partition in end}
        _check_whole_rows(export, before, end, (*reread, *replaced))
    return ExportPlan(head, before, start, end, gaps, reread, replaced, _began(head, start, ranges), ranges)


def _began(head: TableHead | None, start: Mapping[int, int], ranges: Mapping[int, PartitionOffsets]) -> Began | None:
    """How the first export began. If this run begins earlier, its offsets count."""
    if head is None or head.is_new:
        left_out = {each: first for each, first in start.items() if first > ranges[each].log_start_offset}
        return Began(left_out, len(ranges))
    began = known_began(head)
    if began is None:
        return None
    return replace(began, offsets={each: min(first, start.get(each, first)) for each, first in began.offsets.items()})


def new_stamp(
    export: Export, head: TableHead, table_id: str, positions: Mapping[int, int], recent: Recent, began: Began | None
) -> Stamp:
    """The stamp of a commit that follows `head` and sets these positions."""
    return Stamp(
        topic=export.topic,
        topic_id=export.topic_id,
        table_id=table_id,
        mode=export.mode,
        positions=positions,
        version=head.next_guard,
        recent=recent,
        began=began,
        model=model_hash(export.schema, export.key_schema),
    )


def _reread(before: Mapping[int, int], ranges: Mapping[int, PartitionOffsets]) -> tuple[int, ...]:
    """The partitions that are not empty, and that may have lost tombstones above the table's position."""
    return tuple(
        partition
        for partition, offsets in sorted(ranges.items())
        if before.get(partition, 0) < offsets.tombstones_end and offsets.log_start_offset < offsets.last_stable_offset
    )


def _check_stamp(export: Export, head: TableHead | None) -> None:
    check_topic(export, head)
    # After a RESTORE, the rows have the mode of the restored version.
    stamp = None if head is None else head.current or head.newest
    if stamp is not None and stamp.mode != export.mode:
        raise ExportModeError(
            export.table,
            f"was exported in {stamp.mode} mode; the mode in {export.asked_by} is now {export.mode}",
            "To make the table again in the new mode, run the export once with --rebuild. Or export to another table.",
        )


def check_topic(export: Export, head: TableHead | None) -> None:
    """Check that the rows of a table come from the topic.

    Raises:
        TopicRecreatedError: the rows come from another topic, which may have had the same name.
    """
    if head is None or head.newest is None or head.newest.topic_id == export.topic_id:
        return
    why = ": the topic was deleted and created again" if head.newest.topic == export.topic else ""
    raise TopicRecreatedError(
        export.table,
        f"has rows of topic {head.newest.topic} with id {head.newest.topic_id}, but topic {export.topic} now "
        f"has id {export.topic_id}{why}",
        "Export to another table, or move this table away.",
    )


def _starting_offsets(
    export: Export, positions: Mapping[int, int], ranges: Mapping[int, PartitionOffsets]
) -> tuple[dict[int, int], tuple[Gap, ...]]:
    start: dict[int, int] = {}
    gaps: list[Gap] = []
    for partition_id, offsets in sorted(ranges.items()):
        position = positions.get(partition_id, offsets.log_start_offset)
        if position > offsets.last_stable_offset:
            raise PositionAheadError(
                export.table,
                f"contains {export.topic}-{partition_id} up to offset {position}, but the log ends at "
                f"offset {offsets.last_stable_offset}, so the topic was restored to an older state",
                "Restore the table to a version that is not ahead of the log, or export to another table.",
            )
        if position < offsets.log_start_offset:
            gaps.append(Gap(partition_id, position, offsets.log_start_offset))
        start[partition_id] = max(position, offsets.log_start_offset)
    return start, tuple(gaps)


def _check_from_offsets(
    export: Export,
    head: TableHead | None,
    start: Mapping[int, int],
    ranges: Mapping[int, PartitionOffsets],
    wanted: Mapping[int, int],
) -> None:
    for partition, offset in wanted.items():
        place = f"--from-offset {partition}:{offset}"
        if partition not in ranges:
            raise OffsetRefusedError(
                place,
                f"topic {export.topic} has the partitions 0 to {len(ranges) - 1}",
                "Name one of these partitions.",
            )
        offsets = ranges[partition]
        if not offsets.log_start_offset <= offset <= offsets.last_stable_offset:
            raise OffsetRefusedError(
                place,
                f"the log of {export.topic}-{partition} has the offsets {offsets.log_start_offset} to"
                f" {offsets.last_stable_offset}",
                "Name one of these offsets. An export cannot replace rows whose records are no longer in the log.",
            )
        if head is None or offset == start[partition]:
            continue
        if offset > start[partition]:
            raise OffsetRefusedError(
                place,
                f"{export.table} contains {export.topic}-{partition} only up to offset {start[partition]}, and the records"
                " from there to the given offset would be missing",
                f"Name offset {start[partition]} or a lower one, or export to another table.",
            )
        if export.mode is not ExportMode.UPSERT and offset < offsets.compacted_end:
            raise OffsetRefusedError(
                place,
                f"compaction has removed records of {export.topic}-{partition} below offset {offsets.compacted_end},"
                f" and the rows of these records in {export.table} would be lost",
                f"Begin at offset {offsets.compacted_end} or later, or export to another table.",
            )


def check_up_to(export: Export, start: Mapping[int, int], end: Mapping[int, int], wanted: Mapping[int, int]) -> None:
    """Check that the accepted end offsets are between the first offsets and the ends.

    Raises:
        OffsetRefusedError: one of them is not.
    """
    for partition, offset in wanted.items():
        first = start.get(partition)
        if first is None or not first <= offset <= end[partition]:
            found = "no such partition" if first is None else f"the offsets {first} to {end[partition]} to export"
            raise OffsetRefusedError(
                "--accept-dead-letters",
                f"gives the end offset {offset} for partition {partition}, but topic {export.topic} has {found}",
                "Run the export without this option. The export then stops again and prints the current end offsets.",
            )


def _check_whole_rows(
    export: Export, before: Mapping[int, int], end: Mapping[int, int], rebuilt: Sequence[int]
) -> None:
    """Refuse an accepted end offset below rows of a partition that are rebuilt. The rows above it would be lost."""
    if cut := [each for each in rebuilt if end[each] < before.get(each, 0)]:
        raise OffsetRefusedError(
            "--accept-dead-letters",
            f"gives partition {cut[0]} the end offset {end[cut[0]]}; but this export replaces rows of {export.table}, and"
            f" these rows reach up to offset {before[cut[0]]}",
            "Run the export without this option. The export then stops again and prints the current end offsets.",
        )
