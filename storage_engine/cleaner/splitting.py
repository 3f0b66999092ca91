"""Splits the compaction of one large partition into several tasks. Together, the tasks write the same files as one task
would.

    survey    Each part consists of whole groups of neighbouring segments. The task of a part writes the part's keys as
              sorted runs (key_runs), and reports the transactions that are still open at the end of the part.
    rewrite   The task of each part compares the part's records with the keys of all parts, finds the outdated records,
              and writes the new segments.

The task of a part also gets the transactions that are still open at the start of the part. So each task decides as if
it had read the whole partition. The sorted runs are in the topic's staging folder. The process that started the tasks
deletes the runs. If this process dies, the sweep deletes the runs.

Pure functions decide whether and where to split, and join the results of the tasks. So any scheduler can run the
tasks.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from storage_engine.cleaner.cleaned_transactions import CleanedTransactions, UnfinishedTransactions
from storage_engine.cleaner.cleaner import (
    ChunkReader,
    CleanedPartition,
    CleaningTask,
    groups_of,
    rewrite_groups,
)
from storage_engine.cleaner.key_runs import KeyRuns, RunFile, RunWriter
from storage_engine.cleaner.passes import OutdatedByRuns, write_keys
from storage_engine.cleaner.replacement import delete_segments
from storage_engine.cleaner.throttle import Throttle
from storage_engine.log.partition_state import Segment
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.storage import Storage

LEAST_BYTES = 512 * 1024**2
"""For a smaller part, Spark would need more time to start the task than to run it."""


@dataclass(frozen=True)
class CompactionPart:
    """Some whole groups of a partition's segments. Small and picklable.

    task: the task of the whole partition, but with this part's share of bytes_per_second.
    groups: the groups of segments; each becomes one segment.
    folder: where runs are written, ending in a slash.
    seed: the seed of the hash of keys; the same for all parts.
    """

    task: CleaningTask
    groups: tuple[tuple[Segment, ...], ...]
    folder: str
    seed: int

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(segment for group in self.groups for segment in group)

    @property
    def bytes_to_read(self) -> int:
        """Bytes that the task reads in total. Every part is read twice: first for its keys, then to rewrite the
        part."""
        return 2 * sum(segment.size for segment in self.segments)


@dataclass(frozen=True)
class SurveyedPart:
    """The result of a survey.

    key: storage key of the part's runs.
    unended: the transactions that are open at the end of the part.
    """

    key: str
    runs: KeyRuns
    unended: UnfinishedTransactions


def parts_wanted(task: CleaningTask, bytes_of_all: int, slots: int) -> int:
    """How many parts to split a partition into; 1 means that it is not split.

    A part has at least LEAST_BYTES to read. A part also has at least the average work of a task: bytes_of_all / slots.

    Args:
        bytes_of_all: bytes to read by all compaction tasks together, including this one.
    """
    shares = task.bytes_to_read * slots // max(1, bytes_of_all)
    return max(1, min(slots, shares, task.bytes_to_read // LEAST_BYTES))


def split(storage: Storage, task: CleaningTask, count: int, folder: str) -> tuple[CompactionPart, ...]:
    """Split a task into at most `count` parts of about the same size, in the order of the log.

    Args:
        folder: the folder for runs, ending in a slash. The sweep must delete files that a crash leaves in this folder.
    """
    groups = groups_of(storage, task)
    ends = list(accumulate(sum(segment.size for segment in group) for group in groups))
    seed = secrets.randbits(63)
    chosen: dict[int, list[tuple[Segment, ...]]] = {}
    for group, end in zip(groups, ends, strict=True):
        chosen.setdefault(max(0, end - 1) * count // max(1, ends[-1]), []).append(group)
    task = replace(task, bytes_per_second=task.bytes_per_second / len(chosen))
    return tuple(CompactionPart(task, tuple(own), folder, seed) for own in chosen.values())


def survey(storage: Storage, part: CompactionPart, progress: Progress = NO_PROGRESS) -> SurveyedPart:
    """Write the keys of a part as runs.

    Raises:
        CorruptionError: the contents of a batch do not match its header.
        StorageError: the storage refused a call, or failed. After either error, no new file remains.
    """
    task = part.task
    key = f"{part.folder}{secrets.token_hex(8)}.keys"
    transactions = CleanedTransactions(task.aborted)
    with storage.new_file(key) as file:
        writer = RunWriter(file.write, task.memory_bytes // 2, task.plan.first_dirty_offset, part.seed)
        reading = ChunkReader(storage, task, Throttle(task.bytes_per_second), progress)
        for each in reading.keyed(0, part.segments):
            transactions.judge(each.chunk.data, each.chunk.table, each.file, each.chunk.position)
            write_keys(writer, each)
        return SurveyedPart(key, writer.finish(), transactions.unended)


def rewrite(
    storage: Storage,
    parts: Sequence[CompactionPart],
    surveyed: Sequence[SurveyedPart],
    number: int,
    progress: Progress = NO_PROGRESS,
) -> CleanedPartition:
    """Write the new segments of one part.

    Raises:
        CorruptionError: the contents of a batch do not match its header.
        StorageError: the storage refused a call, or failed. After either error, no new file of the part remains.
    """
    part = parts[number]
    bases = [0, *accumulate(each.runs.records for each in surveyed)]
    files = [
        RunFile(each.key, partial(storage.read, each.key), each.runs, base, judged=other == number)
        for other, (each, base) in enumerate(zip(surveyed, bases, strict=False))
    ]
    carried = UnfinishedTransactions()
    for each in surveyed[:number]:
        carried = carried.then(each.unended)
    outdated = OutdatedByRuns(files, part.task.memory_bytes, part.seed, bases[number])
    transactions = CleanedTransactions(part.task.aborted, carried)
    reading = ChunkReader(storage, part.task, Throttle(part.task.bytes_per_second), progress)
    return rewrite_groups(reading, part.groups, outdated, transactions)


def joined(made: Sequence[CleanedPartition]) -> CleanedPartition:
    """Join the results of the parts into the result that one task would have reported."""
    first = made[0]
    counts = (
        "records_before", "records_after", "outdated", "tombstones", "aborted", "keyless", "markers", "held_batches",
    )  # fmt: skip
    return replace(
        first,
        replaced=tuple(segment for each in made for segment in each.replaced),
        segments=tuple(segment for each in made for segment in each.segments),
        held_until_ms=min(each.held_until_ms for each in made),
        took_unread_tombstones=any(each.took_unread_tombstones for each in made),
        **{name: sum(getattr(each, name) for each in made) for name in counts},
    )


def delete_parts(storage: Storage, made: Sequence[CleanedPartition]) -> None:
    """Delete the new files of all parts after one part failed."""
    for each in made:
        delete_segments(storage, each.files, each.segments)


def delete_runs(storage: Storage, surveyed: Sequence[SurveyedPart]) -> None:
    """Delete the runs after all parts are done or one part has failed."""
    for each in surveyed:
        storage.delete(each.key)
