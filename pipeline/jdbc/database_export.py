"""One run of an export into a database.

    1. read the position of the table, and plan the run (`pipeline.delta.export_plan`); end if nothing is new
    2. drop the staging tables of dead runs; tasks decode the records and fill the staging tables of this run
    3. stop if tombstones may be missing (`pipeline.delta.reads.whole_reads`), or if there are too many dead letters; create
       the table, or add columns
    4. one transaction locks the position, compares it with the position of step 1, merges the rows, adds the dead
       letters, and writes the new position
    5. drop the staging tables

A crash before the end of step 4 changes no row, no dead letter and no position, so the next run exports the same
records. After step 4 the run is complete. If another run has committed since step 1, step 4 ends with a ConflictError.
So two runs may work at the same time, and a run that was paused does no harm.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from pipeline.delta.dead_letter_share import (
    Counts,
    Place,
    ReasonCount,
    TooManyDeadLettersError,
    recent_after,
    too_many_dead_letters,
)
from pipeline.delta.export_plan import (
    NO_BOUNDS,
    Export,
    ExportBounds,
    ExportPlan,
    ExportResult,
    PartitionOffsets,
    Register,
    decide_export,
    new_stamp,
)
from pipeline.delta.reads.lost_records import check_nothing_lost
from pipeline.delta.reads.whole_reads import Newest, check_plan_read, no_other_work
from pipeline.delta.table_stamp import Stamp, TableHead
from pipeline.jdbc import merge_sql
from pipeline.jdbc.database import Database
from pipeline.jdbc.position_row import Position, create_positions, read_position, take_position
from pipeline.jdbc.staging import Filled, Staging, create_staging, drop_staging, tidy_up
from pipeline.jdbc.target_tables import check_is_empty, check_target, fit_target
from pipeline.settings.job_keys import DEFAULT_MAX_SHARE
from storage_engine.errors import LogError

FillTables = Callable[[ExportPlan, Staging], Sequence[Filled]]
"""Fills the staging tables with the records of a plan. Returns what each task that succeeded wrote."""


def export_to_database(
    database: Database,
    export: Export,
    ranges: Mapping[int, PartitionOffsets],
    fill_tables: FillTables,
    register: Register = lambda _: None,
    bounds: ExportBounds = NO_BOUNDS,
    max_share: float = DEFAULT_MAX_SHARE,
    newest: Newest = no_other_work,
) -> ExportResult:
    """Export the new records, up to the last stable offsets in `ranges`.

    Args:
        ranges: the offsets of the topic's partitions, from one version of its state.
        fill_tables: called at most once.
        register: called with the table's positions before any record is read.
        bounds: the options of the command line for this run.
        max_share: the largest allowed share of dead letters, unless the command line accepts them.
        newest: called after the records were read.

    Raises:
        ExportRefusedError: the table does not fit the topic. Each subclass has a remedy.
        TooManyDeadLettersError: more records than allowed cannot be decoded. Nothing was exported.
        LogChangedError: tombstones may be missing among the records. Nothing was exported.
        ConflictError: another run has committed meanwhile. Nothing is lost.
        DatabaseUnavailableError, DatabaseAccessError, DatabaseFailedError: the database failed or refused.
    """
    position = read_position(database)
    head = position.head if position is not None else None
    plan = decide_export(export, head, position.stamp.positions if position is not None else {}, ranges, bounds)
    check_target(database, export, has_position=position is not None)
    register(plan.before)
    if not plan.waiting:
        return ExportResult(plan=plan, table_version=plan.table_version)
    check_nothing_lost(export, plan, bounds)
    tidy_up(database)
    staging = Staging(database.target)
    create_staging(database, export, staging)
    try:
        filled = fill_tables(plan, staging)
        check_plan_read(export, plan, newest)
        counts = _counts(filled)
        recent = recent_after(plan.recent, counts, max_share, accepted=bounds.up_to is not None)
        if recent is None:
            raise _too_many(export, plan, filled, counts, max_share)
        create_positions(database)
        fit_target(database, export)
        before = head or TableHead(-1, None, None, 0, table_id=uuid.uuid4().hex, is_new=True)
        assert before.table_id is not None, "a position has an id"
        stamp = new_stamp(export, before, before.table_id, plan.positions, recent, plan.began)
        return _commit(database, export, plan, position, stamp, staging, filled, counts)
    finally:
        with suppress(LogError):  # the next run drops them
            drop_staging(database, staging)


def _commit(
    database: Database,
    export: Export,
    plan: ExportPlan,
    position: Position | None,
    stamp: Stamp,
    staging: Staging,
    filled: Sequence[Filled],
    counts: Counts,
) -> ExportResult:
    """Merge the staging tables, and write the position, in one transaction."""
    tasks = [each.task for each in filled]
    database.run(merge_sql.deciding_records(database, export, staging, tasks))
    for part in ("keys", "letters"):
        database.analyze(database.table(staging.name(part)))
    columns = database.columns(database.target.table) or {}
    deleted = 0
    with database.transaction():
        take_position(database, position, stamp)
        if position is None:
            check_is_empty(database, export)
        database.run(merge_sql.changes(database, staging, tasks))
        database.analyze(database.table(staging.name("changes")))
        found = {action: (int(keys), int(current)) for action, keys, current in database.rows(
            merge_sql.count_changes(database, staging)
        )}  # fmt: skip
        if plan.rebuilt:
            deleted += database.run(merge_sql.delete_rebuilt(database, staging, plan.rebuilt))
        deleted += database.run(merge_sql.delete_rows(database, staging))
        database.run(merge_sql.write_rows(database, export, staging, columns))
        database.run(merge_sql.mark_stale(database, staging))
        if counts.dead_letters:
            database.run(merge_sql.keep_letters(database, export, staging, tasks))
    return ExportResult(
        records=counts.records,
        tombstones=counts.tombstones,
        written=found.get("write", (0, 0))[0],
        deleted=deleted,
        became_stale=found.get("stale", (0, 0))[1],
        reasons=counts.reasons,
        without_row=found.get("no row", (0, 0))[0],
        plan=plan,
        table_version=stamp.version,
    )


# --- Counts and dead letters ------------------------------------------------------------------------------------


def _reasons(filled: Sequence[Filled]) -> Counter[tuple[str, str | None]]:
    return sum((each.reasons for each in filled), Counter[tuple[str, str | None]]())


def _counts(filled: Sequence[Filled]) -> Counts:
    by_reason: Counter[str] = Counter()
    for (reason, _), count in _reasons(filled).items():
        by_reason[reason] += count
    return Counts(
        records=sum(each.records for each in filled),
        tombstones=sum(each.tombstones for each in filled),
        reasons=dict(sorted(by_reason.items())),
        null_values=sum(each.null_values for each in filled),
    )


def _too_many(
    export: Export, plan: ExportPlan, filled: Sequence[Filled], counts: Counts, max_share: float
) -> TooManyDeadLettersError:
    ordered = sorted(_reasons(filled).items(), key=lambda each: (-each[1], each[0][0], each[0][1] or ""))
    places: dict[int, Place] = {}
    for partition, (first, last, count) in sorted(
        (number, place) for each in filled for number, place in each.places.items()
    ):
        known = places.get(partition, Place(partition, first, last, 0))
        places[partition] = Place(
            partition, min(known.first_offset, first), max(known.last_offset, last), known.count + count
        )
    return too_many_dead_letters(
        export.table, export.section, counts.decodable, plan.recent, max_share,
        [ReasonCount(reason, detail, count) for (reason, detail), count in ordered],
        list(places.values()),
        plan.to_read[1],
    )  # fmt: skip
