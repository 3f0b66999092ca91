"""Splits the compaction of one large partition into several tasks, which make the same files as one task would.

    survey    each part, some whole groups of neighbouring segments, writes its keys aside as runs (key_runs), and tells
              what its batches leave open of the log's transactions
    rewrite   each part is judged by the keys of all parts, and written anew

What a part leaves open is what the parts behind it begin with, so each decides as if one task had read the whole. Runs
stay in the topic's staging folder until the process that started the tasks deletes them; the sweep deletes the runs of
a process that died.

Whether to split, where, and putting together what the parts made is pure, so that any scheduler can run the tasks.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from storage_engine.cleaner.cleaner import (
    CleanedPartition,
    CleaningTask,
    Reading,
    groups_of,
    rewrite_groups,
)
from storage_engine.cleaner.key_runs import KeyRuns, RunFile, RunWriter
from storage_engine.cleaner.passes import OutdatedByRuns, write_keys
from storage_engine.cleaner.replacement import delete_segments
from storage_engine.cleaner.throttle import Throttle
from storage_engine.cleaner.transactions import CleanedTransactions, Unended
from storage_engine.log.partition_state import Segment
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.storage import Storage

LEAST_BYTES = 512 * 1024**2
"""A part that takes less would take Spark longer to hand out than to do."""


@dataclass(frozen=True)
class Part:
    """Some whole groups of a partition's segments. Small, and can be pickled.

    task: of the whole partition, with the share of its bytes a second that a part has. groups: those that become one
    segment each. folder: where runs are written, ending in a slash. seed: of the keys' hash, the same for all parts.
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
        """Every part is read twice, for its keys and to be written anew."""
        return 2 * sum(segment.size for segment in self.segments)


@dataclass(frozen=True)
class SurveyedPart:
    """key: storage key of the part's runs. unended: what the part leaves open for what comes behind it."""

    key: str
    runs: KeyRuns
    unended: Unended


def parts_wanted(task: CleaningTask, bytes_of_all: int, slots: int) -> int:
    """Into how many parts to split a partition, 1 for none: as often as it has what each of so many tasks that run at
    once has to do of all that is to be compacted, and LEAST_BYTES.

    Args:
        bytes_of_all: to read, of all tasks, this one included.
    """
    shares = task.bytes_to_read * slots // max(1, bytes_of_all)
    return max(1, min(slots, shares, task.bytes_to_read // LEAST_BYTES))


def split(storage: Storage, task: CleaningTask, count: int, folder: str) -> tuple[Part, ...]:
    """At most so many parts of about the same size, in the order of the log.

    Args:
        folder: for runs, ending in a slash; whatever is in it and not deleted must be swept.
    """
    groups = groups_of(storage, task)
    ends = list(accumulate(sum(segment.size for segment in group) for group in groups))
    seed = secrets.randbits(63)
    chosen: dict[int, list[tuple[Segment, ...]]] = {}
    for group, end in zip(groups, ends, strict=True):
        chosen.setdefault(max(0, end - 1) * count // max(1, ends[-1]), []).append(group)
    task = replace(task, bytes_per_second=task.bytes_per_second / len(chosen))
    return tuple(Part(task, tuple(own), folder, seed) for own in chosen.values())


def survey(storage: Storage, part: Part, progress: Progress = NO_PROGRESS) -> SurveyedPart:
    """Write a part's keys aside.

    Raises:
        CorruptionError: a batch does not hold what its header says.
        StorageError: the storage refused or failed. In both cases no file is left.
    """
    task = part.task
    key = f"{part.folder}{secrets.token_hex(8)}.keys"
    transactions = CleanedTransactions(task.aborted)
    with storage.new_file(key) as file:
        writer = RunWriter(file.write, task.memory_bytes // 2, task.plan.first_dirty_offset, part.seed)
        reading = Reading(storage, task, Throttle(task.bytes_per_second), progress)
        for each in reading.keyed(0, part.segments):
            transactions.judge(each.chunk.data, each.chunk.table, each.file, each.chunk.position)
            write_keys(writer, each)
        return SurveyedPart(key, writer.finish(), transactions.unended)


def rewrite(
    storage: Storage,
    parts: Sequence[Part],
    surveyed: Sequence[SurveyedPart],
    number: int,
    progress: Progress = NO_PROGRESS,
) -> CleanedPartition:
    """Write one part anew.

    Raises:
        CorruptionError: a batch does not hold what its header says.
        StorageError: the storage refused or failed. In both cases no file of it is left.
    """
    part = parts[number]
    bases = [0, *accumulate(each.runs.records for each in surveyed)]
    files = [
        RunFile(each.key, partial(storage.read, each.key), each.runs, base, judged=other == number)
        for other, (each, base) in enumerate(zip(surveyed, bases, strict=False))
    ]
    carried = Unended()
    for each in surveyed[:number]:
        carried = carried.then(each.unended)
    outdated = OutdatedByRuns(files, part.task.memory_bytes, part.seed, bases[number])
    transactions = CleanedTransactions(part.task.aborted, carried)
    reading = Reading(storage, part.task, Throttle(part.task.bytes_per_second), progress)
    return rewrite_groups(reading, part.groups, outdated, transactions)


def joined(made: Sequence[CleanedPartition]) -> CleanedPartition:
    """What the parts of a partition became, as one task would report it."""
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
    """Delete the files of parts of which another one failed."""
    for each in made:
        delete_segments(storage, each.files, each.segments)


def delete_runs(storage: Storage, surveyed: Sequence[SurveyedPart]) -> None:
    """Delete the runs, when all parts are done or one has failed."""
    for each in surveyed:
        storage.delete(each.key)
