"""Makes the report of one export, one replay or one rebuild: the summary and the warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.delta.export_plan import Export, ExportMode, ExportPlan, ExportResult
from pipeline.delta.rows.row_columns import DIGEST
from pipeline.delta.table_history import why_chain_ends
from pipeline.delta.table_stamp import TableHead
from pipeline.job import JobReport, Value
from storage_engine.quantities import counted

if TYPE_CHECKING:
    from pipeline.delta.rebuild.rebuilding import RebuildResult
    from pipeline.delta.replaying import ReplayResult


def export_report(export: Export, table: str, result: ExportResult, warnings: Sequence[str]) -> JobReport:
    """The report of an export. table: the table's path in the settings."""
    return JobReport(
        summary={
            "topic": export.topic,
            "table": table,
            "table version": result.table_version,
            "records": result.records,
            **_outcome(result, export.mode),
        },
        rows=[
            {"partition": number, "from offset": result.positions_before.get(number, 0), "to offset": offset}
            for number, offset in sorted(result.positions_after.items())
        ],
        warnings=warnings,
    )


def replay_report(export: Export, table: str, result: ReplayResult, warnings: Sequence[str]) -> JobReport:
    """The report of a replay. table: the table's path in the settings."""
    return JobReport(
        summary={
            "topic": export.topic,
            "table": table,
            "table version": result.table_version,
            "dead letters replayed": result.replayed,
            "superseded": result.superseded,
            "gone from the log": result.gone,
            "still open": result.still_open,
            "rows written": result.written,
        },
        warnings=warnings,
    )


def rebuild_report(export: Export, table: str, result: RebuildResult, warnings: Sequence[str]) -> JobReport:
    """The report of a rebuild. table: the table's path in the settings."""
    done = result.exported
    warnings = list(warnings)
    if result.lost.total:
        warnings.append(
            f"{counted(result.lost.total, 'row')} of {export.table} could not be made again, because the log no longer has"
            f" the records of these rows ({result.lost}); the table's older versions keep the rows until VACUUM"
        )
    if done.dead_letters:
        warnings.append(_letters_warning(export, done))
    if result.foreign:
        versions = ", ".join(map(str, result.foreign))
        warnings.append(
            f"another writer committed version {versions} of {export.table} during the rebuild; the rows of this commit"
            " were replaced, too"
        )
    return JobReport(
        summary={
            "topic": export.topic,
            "table": table,
            "table version": done.table_version,
            "mode": str(export.mode),
            "records": done.records,
            "rows before": result.before,
            "rows now": done.written,
            "rows lost": result.lost.total,
            "dead letters": done.dead_letters,
            "dead letters by reason": done.reasons,
            "digests": "a new chain begins" if export.digest else "none",
        },
        rows=[
            {"partition": number, "from offset": done.positions_before.get(number, 0), "to offset": offset}
            for number, offset in sorted(done.positions_after.items())
        ],
        warnings=warnings,
    )


def _outcome(result: ExportResult, mode: ExportMode) -> dict[str, Value]:
    """The numbers of rows and of dead letters. The names of these figures depend on the mode."""
    letters: dict[str, Value] = {"dead letters": result.dead_letters, "dead letters by reason": result.reasons}
    if mode is not ExportMode.UPSERT:
        return {"rows appended": result.written, **letters}
    return {
        "tombstones": result.tombstones,
        "rows upserted": result.written,
        "rows deleted": result.deleted,
        "rows that became stale": result.became_stale,
        **letters,
    }


def gap_warnings(plan: ExportPlan) -> list[str]:
    """Warnings about records that were deleted before they were exported."""
    return [
        f"partition {gap.partition}: retention deleted offsets {gap.from_offset} to {gap.to_offset - 1} before they"
        " were exported"
        for gap in plan.gaps
    ] + [
        f"partition {number}: compaction may have removed tombstones before they were exported, so the partition was read"
        " from its start again"
        for number in plan.reread
    ]


def chain_warnings(export: Export, head: TableHead | None, version: int | None) -> list[str]:
    """The warning about a commit that ends the chain of digests.

    Args:
        head: the head of the table before the commit.
        version: the version after the commit.

    Raises:
        StorageError: the table cannot be read.
    """
    from pipeline.delta.without_spark.table_opening import column_names

    why = why_chain_ends(export, head, lambda: DIGEST.name in column_names(export.table))
    if why is None:
        return []
    warning = (
        f"the chain of digests of {export.table} ends with version {version}, because {why}: rows that are exported from now"
        " on have no digest, and prove compares the table only with the log; an export with --rebuild and"
        f" {export.section}.digest: true begins a new chain"
    )
    return [warning]


def _letters_warning(export: Export, result: ExportResult, *, to_database: bool = False) -> str:
    counted_by = "its column reason says why" if to_database else "`lakelog report` counts them by reason"
    return (
        f"{counted(result.dead_letters, 'record')} did not become rows, but dead letters in {export.dead_letters};"
        f" {counted_by}"
    )


def export_warnings(result: ExportResult, export: Export, compacted: bool, *, to_database: bool = False) -> list[str]:
    """The warnings of an export.

    Args:
        compacted: compaction has removed records of the topic.
        to_database: the dead letters are in a table of a database.
    """
    warnings = gap_warnings(result.plan)
    if result.dead_letters:
        warnings.append(_letters_warning(export, result, to_database=to_database))
    if result.became_stale:
        warnings.append(
            f"{counted(result.became_stale, 'row')} of {export.table} became stale: a newer record of the row's key"
            " cannot be decoded, so the row keeps its older values; the row's column _stale_since has the partition"
            " and the offset of that record"
        )
    if result.without_row and compacted:
        warnings.append(
            f"{counted(result.without_row, 'key')} without a row: the record of the key cannot be decoded, and"
            " compaction may have removed an earlier record of the key that could be decoded; a table that was exported"
            " before the compaction has a stale row for the key"
        )
    return warnings
