"""Compacts one large partition with several tasks. The first tasks survey the parts of the partition; then the same
number of tasks rewrite the parts.

Split compaction is used if one partition of a topic is much larger than the other partitions. A single task for this
partition would use one core while the other cores are idle. cleaner.splitting describes the conditions and the
method. The result is the same as the result of a single task, and is committed in the same way. A task can fail, be
retried, or run twice in parallel. Such a task leaves files that no version names: new segments, and sorted keys under
staging/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from storage_engine.cleaner.cleaner import CleanedPartition, CleaningTask
from storage_engine.cleaner.splitting import (
    CompactionPart,
    SurveyedPart,
    delete_parts,
    delete_runs,
    joined,
    rewrite,
    split,
    survey,
)
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.storage import Storage
from storage_engine.topic.append.staged_run import staging_folder
from storage_engine.topic.clean.state_swap import Failure, result_or_failure

_Made = TypeVar("_Made")


class RunNumbered(Protocol):
    """Runs numbered tasks, in this process or elsewhere, in parallel or not."""

    def __call__(self, do: Callable[[Storage, int], _Made], count: int) -> list[_Made]:
        """The results of `do` for each number below `count`, in order.

        Args:
            do: can be pickled. Its results can be pickled, too.
        """


def compact_split(
    storage: Storage, task: CleaningTask, count: int, run: RunNumbered, progress: Progress = NO_PROGRESS
) -> CleanedPartition | Failure:
    """Compact a partition in several parts.

    Args:
        count: the number of parts.
        progress: receives the bytes and records of each part. It must be picklable if the tasks run in other processes.
    """
    version = task.files.version
    assert version is not None, "only partitions of a root are split"
    parts = split(storage, task, count, staging_folder(task.topic_id, version))
    surveyed = run(_SurveyParts(parts, progress), len(parts))
    found = [each for each in surveyed if isinstance(each, SurveyedPart)]
    try:
        if failure := _failure(surveyed):
            return failure
        rewritten = run(_RewriteParts(parts, tuple(found), progress), len(parts))
    finally:
        delete_runs(storage, found)
    made = [each for each in rewritten if isinstance(each, CleanedPartition)]
    if failure := _failure(rewritten):
        delete_parts(storage, made)
        return failure
    return joined(made)


def _failure(outcomes: Sequence[object]) -> Failure | None:
    return next((each for each in outcomes if isinstance(each, Failure)), None)


@dataclass(frozen=True)
class _SurveyParts:
    parts: tuple[CompactionPart, ...]
    progress: Progress

    def __call__(self, storage: Storage, number: int) -> SurveyedPart | Failure:
        part = self.parts[number]
        return result_or_failure(part.task.partition, lambda: survey(storage, part, self.progress))


@dataclass(frozen=True)
class _RewriteParts:
    parts: tuple[CompactionPart, ...]
    surveyed: tuple[SurveyedPart, ...]
    progress: Progress

    def __call__(self, storage: Storage, number: int) -> CleanedPartition | Failure:
        return result_or_failure(
            self.parts[number].task.partition,
            lambda: rewrite(storage, self.parts, self.surveyed, number, self.progress),
        )
