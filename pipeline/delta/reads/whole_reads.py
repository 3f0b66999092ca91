"""Looks at the log a second time, after an export has read its records and before it commits.

An export plans with one version of the topic's state. Other work on the log goes on while the export reads: compaction
and retention drop segments, and their files are deleted after `file.delete.delay.ms`. A reader that misses a file
continues with the newest state (`storage_engine.topic.readers.reader`). So it may have read an old record of a key, and
then miss the tombstone of the key. The table would keep the row of this key, and no later export would read the
tombstone, because the new position is after it. The second look finds both cases:

- Compaction has removed tombstones in the range that was read. The plan did not expect this.
- Retention or delete-records has removed records at the beginning of the range, and the reader may have skipped them.

Then nothing is committed, and the export is planned again with the newest state.

Only upserts need the second look. The tables of the other modes have a row for each record that the export could read.
They promise nothing about records that compaction removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.delta.export_plan import Export, ExportMode, ExportPlan, PartitionOffsets
from storage_engine.config import LONG_MAX
from storage_engine.errors import ConflictError

Newest = Callable[[], Mapping[int, PartitionOffsets]]
"""Returns the newest offsets of the topic's partitions, by number."""


def no_other_work() -> Mapping[int, PartitionOffsets]:
    """For a log on which nobody else works: no partition has newer offsets."""
    return {}


class LogChangedError(ConflictError):
    """Records were removed from the log while they were read, so deletions may be missing. Nothing was committed."""


def check_plan_read(export: Export, plan: ExportPlan, newest: Newest) -> None:
    """Check that the records of a plan were read whole. Called after they were read.

    Raises:
        LogChangedError: tombstones may be missing among the records.
    """
    check_read(export, plan.ranges, plan.to_read[0], plan.required, newest)


def check_read(
    export: Export,
    planned: Mapping[int, PartitionOffsets],
    first: Mapping[int, int],
    required: Mapping[int, int],
    newest: Newest,
) -> None:
    """Check that no tombstone may be missing among the records of some partitions. Called after they were read.

    Args:
        planned: the offsets of the partitions in the version of the state with which the read began.
        first: by partition that was read, the first offset.
        required: the reader skipped no deleted record at or above this offset. In a partition without an entry, it
            skipped all deleted records.

    Raises:
        LogChangedError: tombstones may be missing.
    """
    if export.mode is not ExportMode.UPSERT:
        return
    found = newest()
    for partition, start in sorted(first.items()):
        offsets = found.get(partition, planned[partition])
        may_skip = start < required.get(partition, LONG_MAX)
        if offsets.tombstones_end > max(start, planned[partition].tombstones_end):
            raise LogChangedError(
                export.table,
                f"compaction removed tombstones of {export.topic}-{partition} while this partition was read, so rows of"
                " deleted keys could stay in the table",
                "Nothing was committed. Start the job again. If this error comes again, give consumer.max.hold.ms of the"
                " topic a higher value, so that compaction waits longer for exports.",
            )
        if may_skip and offsets.log_start_offset > max(start, planned[partition].log_start_offset):
            raise LogChangedError(
                export.table,
                f"records of {export.topic}-{partition} below offset {offsets.log_start_offset} were deleted while this"
                " partition was read, so rows of deleted keys could stay in the table",
                "Nothing was committed. Start the job again. If this error comes again, set retention.respect.consumers of"
                " the topic to true, so that retention waits for exports.",
            )
