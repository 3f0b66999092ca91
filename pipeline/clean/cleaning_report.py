"""Collects the report of a cleaning job: figures, errors, and the rows of the table. Work that was done has a row, and
so does work that was not begun."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

from pipeline.clean.budget import Limit
from pipeline.clean.work_queue import NotBegun, Task
from pipeline.job import JobReport, Value
from storage_engine.cleaner.cleaner import CleanedPartition, CleaningTask
from storage_engine.cleaner.replacement import Replacement
from storage_engine.cleaner.segment_merging import MergeTask
from storage_engine.errors import LogError
from storage_engine.log.partition_state import Segment
from storage_engine.quantities import shown_size
from storage_engine.topic.clean.topic_compaction import CompactionResult
from storage_engine.topic.clean.topic_merging import MergeResult
from storage_engine.topic.clean.topic_retention import RetentionResult


@dataclass
class CleaningReport:
    """The report of a run, filled while the run works.

    applies_plan: the run applies a saved plan. In such a run, work that cannot be done is a failure.
    """

    applies_plan: bool = False
    _counts: Counter[str] = field(default_factory=Counter)
    _rows: list[dict[str, Value]] = field(default_factory=list)
    _failures: dict[str, None] = field(default_factory=dict)  # an ordered set
    _warnings: dict[str, None] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)

    def made(self, topics: int) -> JobReport:
        """The finished report. topics: the number of topics of the run."""
        return JobReport(
            {"topics": topics, **self._counts},
            self._rows,
            list(self._failures),
            list(self._warnings),
            sorted(self._changed),
        )

    def begin(self, *figures: str) -> None:
        """Add figures with the value 0, so that they are reported in any case."""
        self._counts.update(dict.fromkeys(figures, 0))

    def count(self, figure: str, number: int) -> None:
        """Add to a figure."""
        self._counts[figure] += number

    def change(self, topic: str) -> None:
        """Record that the topic has a new version."""
        self._changed.add(topic)

    def fail(self, what: object) -> None:
        self._failures[str(what)] = None

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Record an error that the block raises as a failure, and continue after the block."""
        try:
            yield
        except LogError as error:
            self.fail(error)

    def warn(self, what: str) -> None:
        self._warnings[what] = None

    def note_retention(self, result: RetentionResult) -> None:
        topic = result.state.topic
        for warning in result.warnings:
            self.warn(warning)
        for number, plan in enumerate(result.plans):
            if not plan.deletions:
                continue
            self.change(topic)
            self.count("segments dropped", len(plan.deletions))
            self.count("bytes dropped", plan.bytes)
            left = result.state.partitions[number]
            rules = Counter(deletion.rule for deletion in plan.deletions)
            self._add_row(
                topic,
                number,
                "retention by " + ", ".join(f"{rule} ({count})" for rule, count in rules.items()),
                segments=(len(left.segments) + len(plan.deletions), len(left.segments)),
                size=(left.size + plan.bytes, left.size),
            )

    def note_compaction(self, topic: str, result: CompactionResult) -> None:
        for failure in result.failed:
            self.fail(f"topic {topic}, {failure}")
        for warning in result.warnings:
            self.warn(warning)
        self.note_changed_meanwhile(topic, result.changed_meanwhile)
        for each in result.cleaned:
            self.change(topic)
            self.count("partitions compacted", 1)
            self.count("records removed", each.records_before - each.records_after)
            self.count("bytes removed", each.bytes_before - each.bytes_after)
            self._add_row(
                topic,
                each.partition,
                f"compaction up to offset {each.first_dirty_offset}",
                segments=(len(each.replaced), len(each.segments)),
                records=(each.records_before, each.records_after),
                size=(each.bytes_before, each.bytes_after),
            )

    def note_merging(self, topic: str, result: MergeResult) -> None:
        for failure in result.failed:
            self.fail(f"topic {topic}, {failure}")
        self.note_changed_meanwhile(topic, result.changed_meanwhile)
        for number in sorted({each.partition for each in result.cleaned}):
            merged = [each for each in result.cleaned if each.partition == number]
            count = sum(len(each.replaced) for each in merged)
            size = sum(each.bytes_after for each in merged)
            self.change(topic)
            self.count("segments merged", count)
            self._add_row(
                topic,
                number,
                "merge of small segments",
                segments=(count, len(merged)),
                size=(size, size),
            )

    def note_changed_meanwhile(self, topic: str, each_of: Sequence[Task | Replacement]) -> None:
        """Report tasks whose segments another process has changed meanwhile. The next run plans these tasks again. So a
        compaction is reported as a warning, and a merge is not reported. But in a run that applies a saved plan, each
        of these tasks is a failure."""
        for each in each_of:
            merges = isinstance(each, MergeTask) or (
                isinstance(each, Replacement) and not isinstance(each, CleanedPartition)
            )
            line = f"topic {topic}, partition {each.partition}: changed before it was {'merged' if merges else 'compacted'}"
            if self.applies_plan:
                self.fail(f"{line}; the rest of the plan was done")
            elif not merges:
                self.warn(f"{line}; the next run plans this work again")

    def note_left(self, left: Sequence[NotBegun], most: int | None) -> None:
        """Report tasks for which the budget had no room. most: the byte limit of the budget; None: there is no byte
        limit."""
        self.count("left", len(left))
        self.count("bytes left", sum(each.task.bytes_to_read for each in left))

        def place(each: NotBegun) -> tuple[str, int, str]:
            return each.task.topic, each.task.partition, each.limit

        for (topic, number, limit), group in groupby(sorted(left, key=place), place):
            tasks = [each.task for each in group]
            read = sum(task.bytes_to_read for task in tasks)
            first = tasks[0]
            what = (
                f"compaction by {first.plan.reason}" if isinstance(first, CleaningTask) else "merge of small segments"
            )
            self._add_row(
                topic,
                number,
                f"not begun because of {limit}: {what}, {shown_size(read)} to read",
                segments=(sum(len(segments_of(task)) for task in tasks), None),
                size=(sum(segment.size for task in tasks for segment in segments_of(task)), None),
            )
            if most is not None and any(task.bytes_to_read > most for task in tasks):
                self.warn(
                    f"topic {topic}, partition {number}: {what} reads more bytes than {Limit.BYTES} allows for a"
                    f" whole run, so no run can begin this work; raise {Limit.BYTES}"
                )

    def _add_row(
        self,
        topic: str,
        partition: int,
        done: str,
        *,
        segments: tuple[int, int | None],
        size: tuple[int, int | None],
        records: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """Add a row. Each pair gives the numbers before and after the work; None: the number is not known, or the work
        was not done."""
        row: dict[str, Value] = {"topic": topic, "partition": partition, "done": done}
        for what, (before, after) in {"segments": segments, "records": records, "bytes": size}.items():
            row |= {f"{what} before": before, f"{what} after": after}
        self._rows.append(row)


def segments_of(task: Task) -> tuple[Segment, ...]:
    """The segments that a task replaces."""
    return task.plan.segments if isinstance(task, CleaningTask) else task.run
