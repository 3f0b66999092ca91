"""Refuses an export that would continue after records which retention deleted before they were exported.

The rows of these records would be missing in the table, and nobody would notice. So the run ends with an error, until the
command line names the first record after them. A run without new records commits nothing, and its position stays below
the deleted records. So such a run is not refused: it gives a warning.
"""

from __future__ import annotations

from pipeline.delta.export_plan import Export, ExportBounds, ExportPlan, ExportRefusedError


class RecordsLostError(ExportRefusedError):
    """Retention deleted records before they were exported."""


def check_nothing_lost(export: Export, plan: ExportPlan, bounds: ExportBounds) -> None:
    """Check that the run leaves out no deleted records, or that the command line allows this. The run has records to
    read.

    Raises:
        RecordsLostError: the offsets of the deleted records, and the options that allow to leave them out.
    """
    lost = [gap for gap in plan.gaps if gap.partition not in bounds.from_offsets]
    if lost:
        named = "; ".join(f"{each.partition}: {each.from_offset} to {each.to_offset - 1}" for each in lost)
        options = " ".join(f"--from-offset {each.partition}:{each.to_offset}" for each in lost)
        raise RecordsLostError(
            export.table,
            f"retention deleted records of {export.topic} before they were exported (partition and offsets {named})",
            "Rows and deletions of these records are missing. To continue without these rows and deletions, run the"
            f" export once with {options}.",
        )
