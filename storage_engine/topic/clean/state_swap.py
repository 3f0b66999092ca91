"""Replaces old segments by new segments in a topic's state. The replacement is the last step of compaction and of
merging.

The new files are written before this step. Then one version of the state replaces the old segments by the new
segments, partition by partition. If the state no longer contains all old segments of a partition, the partition stays
unchanged, and its new files are deleted. The old segments remain on storage and in the state's list of dropped files,
because readers can still use an older version (topic.dropped_files).

After a crash, the new version either exists or does not exist. So either all of its replacements took effect, or none
of them. New files are not part of the log until a version names them. A swap does not take the topic over from an
ingest, so a running ingest continues.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from storage_engine.cleaner.replacement import Replacement, delete_segments
from storage_engine.errors import LogError
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.progress import Progress
from storage_engine.storage import Storage
from storage_engine.topic.chain.segment_lists import drop_listing
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import ChangeNote, DroppedFile, TopicState


@dataclass(frozen=True)
class Failure:
    """An error that prevented the compaction of a partition, or the merge of a run of its segments. The partition was
    not changed."""

    partition: int
    error: LogError

    def __str__(self) -> str:
        return f"partition {self.partition}: {self.error}"


Value = TypeVar("Value")


def result_or_failure(partition: int, make: Callable[[], Value]) -> Value | Failure:
    """The result of `make`. A LogError is returned as a value, so that other tasks continue."""
    try:
        return make()
    except LogError as error:
        return Failure(partition, error)


Made = TypeVar("Made", bound=Replacement)


@dataclass(frozen=True)
class CleaningResult(Generic[Made]):
    """The result of compaction or merging for a topic.

    state: the state after the commit.
    cleaned: the replacements that were committed.
    changed_meanwhile: the replacements that were discarded, because their partition changed before the commit.
    failed: the partitions or runs that had an error.
    warnings: one line each, for an operator.
    """

    state: TopicState
    cleaned: tuple[Made, ...] = ()
    changed_meanwhile: tuple[Made, ...] = ()
    failed: tuple[Failure, ...] = ()
    warnings: tuple[str, ...] = ()


def swap(
    storage: Storage,
    chain: StateChain,
    outcomes: Sequence[Made | Failure],
    swapped: Callable[[PartitionState, Made], PartitionState],
    note: Callable[[Sequence[Made]], ChangeNote],
) -> CleaningResult[Made]:
    failed = tuple(outcome for outcome in outcomes if isinstance(outcome, Failure))
    done = [outcome for outcome in outcomes if not isinstance(outcome, Failure)]
    taken: list[Made] = []

    def change(state: TopicState) -> TopicState | None:
        taken.clear()
        changed: dict[int, PartitionState] = {}
        for each in done:
            planned_at = each.files.version
            assert planned_at is not None, "under a root every file is named after its plan"
            if not state.deleted and state.topic_id == each.topic_id and not state.is_below_sweep_floor(planned_at):
                part = changed.get(each.partition, state.partitions[each.partition])
                if still_named(part, each.replaced):
                    changed[each.partition] = swapped(part, each)
                    taken.append(each)
        if not taken:
            return None
        now_ms = chain.clock.now_ms()
        dropped = tuple(
            DroppedFile(state.topic_id, each.partition, old.name, now_ms) for each in taken for old in each.replaced
        )
        return state.with_partitions(changed).model_copy(update={"dropped": state.dropped + dropped})

    state = chain.commit(change, lambda: note(taken))
    changed_meanwhile = tuple(each for each in done if each not in taken)
    for each in changed_meanwhile:
        delete_segments(storage, each.files, each.segments)
    return CleaningResult(state, tuple(taken), changed_meanwhile, failed)


class SizedTask(Protocol):
    """A task with progress that is measured in bytes."""

    @property
    def bytes_to_read(self) -> int:
        """The bytes of all files that the task reads."""


Task = TypeVar("Task", bound=SizedTask)


def do_in_turn(
    storage: Storage,
    chain: StateChain,
    tasks: Sequence[Task],
    run: Callable[[Storage, Task, Progress], Made | Failure],
    swap_made: Callable[[Storage, StateChain, Sequence[Made | Failure]], CleaningResult[Made]],
    progress: Progress,
) -> CleaningResult[Made]:
    """Run tasks in this process, one after another, and commit their results as one version."""
    if not tasks:
        return CleaningResult(chain.newest())
    progress.expect(size=sum(task.bytes_to_read for task in tasks))
    return swap_made(storage, chain, [run(storage, task, progress) for task in tasks])


def still_named(part: PartitionState, segments: tuple[Segment, ...]) -> bool:
    """Whether the partition has all these segments, unchanged and next to one another."""
    first = _place_of(part, segments)
    return part.segments[first : first + len(segments)] == segments


def _place_of(part: PartitionState, segments: tuple[Segment, ...]) -> int:
    """The index of the first of these segments in a partition that has them."""
    return bisect_left(part.segments, segments[0].base_offset, key=lambda segment: segment.base_offset)


def swapped_in(part: PartitionState, made: Replacement) -> PartitionState:
    first = _place_of(part, made.replaced)
    rest = part.segments[first + len(made.replaced) :]
    return drop_listing(part).model_copy(update={"segments": part.segments[:first] + made.segments + rest})
