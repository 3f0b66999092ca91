"""Compacts one large partition with many tasks: some survey its parts, then as many rewrite them.

This is for a skewed topic, of which one partition would keep one core busy while the other cores have nothing to do
(cleaner.splitting says when and how). The outcome is that of one task, and is committed in the same way. A task that
fails, is retried, or runs twice in parallel leaves files that no version names: new segments, and runs of keys in
staging.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from storage_engine.cleaner.cleaner import CleanedPartition, CleaningTask
from storage_engine.cleaner.splitting import (
    Part,
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
from storage_engine.topic.append.staging import staging_folder
from storage_engine.topic.clean.swapping import Failure, result_or_failure

_Made = TypeVar("_Made")


class RunNumbered(Protocol):
    """Runs tasks that are told apart by their numbers, wherever and however many at once."""

    def __call__(self, do: Callable[[Storage, int], _Made], count: int) -> list[_Made]:
        """What `do` makes of each number below count, in their order.

        Args:
            do: can be pickled, and so can what it makes.
        """


def compact_split(
    storage: Storage, task: CleaningTask, count: int, run: RunNumbered, progress: Progress = NO_PROGRESS
) -> CleanedPartition | Failure:
    """Compact a partition in so many parts.

    Args:
        progress: can be pickled, if the tasks run elsewhere; is told bytes and records of each part.
    """
    version = task.files.version
    assert version is not None, "a partition is split under a root only"
    parts = split(storage, task, count, staging_folder(task.topic_id, version))
    surveyed = run(_Survey(parts, progress), len(parts))
    found = [each for each in surveyed if isinstance(each, SurveyedPart)]
    try:
        if failure := _failure(surveyed):
            return failure
        rewritten = run(_Rewrite(parts, tuple(found), progress), len(parts))
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
class _Survey:
    parts: tuple[Part, ...]
    progress: Progress

    def __call__(self, storage: Storage, number: int) -> SurveyedPart | Failure:
        part = self.parts[number]
        return result_or_failure(part.task.partition, lambda: survey(storage, part, self.progress))


@dataclass(frozen=True)
class _Rewrite:
    parts: tuple[Part, ...]
    surveyed: tuple[SurveyedPart, ...]
    progress: Progress

    def __call__(self, storage: Storage, number: int) -> CleanedPartition | Failure:
        return result_or_failure(
            self.parts[number].task.partition,
            lambda: rewrite(storage, self.parts, self.surveyed, number, self.progress),
        )
