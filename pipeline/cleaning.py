"""Retention, compaction, merging, and the deletion of what is not needed any more, over the topics of a root, with Spark
where there is work.

Retention is decided and committed by the driver: it moves no bytes. Compaction runs one Spark task per partition that
is due, merging one per run of small neighbours, unless there is so little to merge that Spark would take longer to
start; tasks write new files and report them, and the driver commits one version per topic that names them. So a failed,
retried or speculative task leaves only files that nobody names.

What goes wrong with one partition or topic is reported and stops no other. Safe to run twice at once, beside ingests,
exports and readers, and to kill at any time (storage_engine.topic.swapping, pruning and sweeping say why).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql import SparkSession

from pipeline.job import JobContext, JobReport, Value
from pipeline.progress import TaskProgress, progress_of_tasks
from pipeline.settings import JobTopics
from pipeline.spark_failures import spark_failures
from storage_engine.cleaner.cleaner import CleanedPartition, CleaningTask
from storage_engine.cleaner.merging import MergeTask
from storage_engine.cleaner.replacement import Replacement
from storage_engine.config import TopicConfig
from storage_engine.errors import LogError
from storage_engine.progress import Progress
from storage_engine.progress_display import NoDisplay, ProgressDisplay
from storage_engine.quantities import counted
from storage_engine.storage import Storage
from storage_engine.storage.opening import open_storage
from storage_engine.topic.compaction import CompactionResult, cleaning_tasks, run_cleaning_task, swap_cleaned
from storage_engine.topic.dropped_files import delete_dropped
from storage_engine.topic.merging import MergeResult, merge_tasks, run_merge_task, swap_merged
from storage_engine.topic.pruning import prune
from storage_engine.topic.retention import RetentionResult, retain_topic
from storage_engine.topic.state import TopicState
from storage_engine.topic.state_chain import StateChain
from storage_engine.topic.swapping import Failure
from storage_engine.topic.sweeping import sweep_topic
from storage_engine.topic.topics import Topics
from storage_engine.topic.transactions import finish_transactions

MERGED_HERE_BYTES = 256 * 1024**2
"""Up to so many bytes the driver merges by itself: that takes a second, and to start Spark takes ten."""

_Task = TypeVar("_Task", CleaningTask, MergeTask)
_Outcome = TypeVar("_Outcome", CleanedPartition | Failure, Replacement | Failure)


def add_topic_option(parser: argparse.ArgumentParser) -> None:
    """--topic, of the jobs that clean."""
    parser.add_argument(
        "--topic", action="append", metavar="NAME", help="work on this topic; may be given more than once"
    )


@dataclass
class Cleaning:
    """One run of a job that cleans, over the topics that the command line, else the settings, else the root names.

    The steps are called in any order and any number; `report` tells what they did together.
    """

    topics: Topics
    names: Sequence[str]
    spark: Callable[[], SparkSession]
    display: ProgressDisplay = field(default_factory=NoDisplay)
    _summary: Counter[str] = field(default_factory=Counter)
    _rows: list[dict[str, Value]] = field(default_factory=list)
    _failures: dict[str, None] = field(default_factory=dict)  # each once, in the order in which they came
    _warnings: list[str] = field(default_factory=list)
    _changed: set[str] = field(default_factory=set)
    _chains: dict[str, StateChain] = field(default_factory=dict)

    @classmethod
    def of(cls, context: JobContext, settings: JobTopics) -> Cleaning:
        """
        Raises:
            UnknownTopicError: a topic was asked for by name and is not there.
        """
        asked = getattr(context.arguments, "topic", None) or settings.topics
        if asked is None:
            names = list(context.topics.names(with_deleted=True))
        else:
            names = list(dict.fromkeys(asked))
            for name in names:
                context.topics.state(name)
        return cls(context.topics, names, lambda: context.spark, context.display)

    def end_transactions(self) -> None:
        """Write the markers of transactions that are decided, and abort those that have timed out."""
        self._summary.update({"transactions ended": 0})
        for name in self.names:
            try:
                ended = finish_transactions(self.topics, [name])
            except LogError as error:
                self._failures[str(error)] = None
                continue
            if ended:
                self._summary["transactions ended"] += ended
                self._changed.add(name)

    def retain(self) -> None:
        """Drop the segments that no topic has to keep."""
        self._summary.update({"segments dropped": 0, "bytes dropped": 0})
        for name in self.names:
            try:
                self._note_retention(retain_topic(self._chain(name), self.topics.broker))
            except LogError as error:
                self._failures[str(error)] = None

    def compact(self) -> None:
        """Compact the partitions of compacted topics for which it is due."""
        self._summary.update({"partitions compacted": 0, "records removed": 0, "bytes removed": 0})
        now_ms = self.topics.clock.now_ms()

        def due(state: TopicState, config: TopicConfig) -> list[CleaningTask]:
            return cleaning_tasks(self.topics.storage, state, config, self.topics.broker, now_ms)

        tasks = self._due(due)
        outcomes = self._on_spark("compact", "partition", tasks, run_cleaning_task)
        for name, own in _by_topic(tasks, outcomes):
            try:
                self._note_compaction(name, swap_cleaned(self.topics.storage, self._chain(name), own))
            except LogError as error:
                self._failures[str(error)] = None

    def merge(self) -> None:
        """Merge small neighbouring segments where that is worth it."""
        self._summary.update({"segments merged": 0})
        tasks = self._due(merge_tasks)
        if sum(task.bytes_to_read for task in tasks) <= MERGED_HERE_BYTES:
            outcomes = self._merged_here(tasks)
        else:
            outcomes = self._on_spark("merge", "run", tasks, run_merge_task)
        for name, own in _by_topic(tasks, outcomes):
            try:
                self._note_merging(name, swap_merged(self.topics.storage, self._chain(name), own))
            except LogError as error:
                self._failures[str(error)] = None

    def delete_files(self) -> None:
        """Delete the files of segments that were dropped long enough ago."""
        self._summary.update({"dropped segments deleted": 0})
        for name in self.names:
            try:
                chain = self._chain(name)
                config = self.topics.config(chain.newest())
                gone = delete_dropped(self.topics.storage, chain, config, self.topics.clock.now_ms())
            except LogError as error:
                self._failures[str(error)] = None
            else:
                self._summary["dropped segments deleted"] += len(gone)

    def prune(self) -> None:
        """Roll up and delete old versions of the states."""
        self._summary.update({"versions pruned": 0})
        for name in self.names:
            try:
                pruned = prune(self.topics.storage, self._chain(name))
            except LogError as error:
                self._failures[str(error)] = None
            else:
                self._summary["versions pruned"] += pruned.versions

    def sweep(self) -> None:
        """Delete files that no version of a state names or will name."""
        self._summary.update({"files swept": 0, "bytes swept": 0})
        for name in self.names:
            try:
                swept = sweep_topic(self.topics.storage, self._chain(name), self.topics.broker)
            except LogError as error:
                self._failures[str(error)] = None
            else:
                self._summary.update({"files swept": swept.files, "bytes swept": swept.bytes})

    @property
    def report(self) -> JobReport:
        """What was done so far."""
        return JobReport(
            {"topics": len(self.names), **self._summary},
            self._rows,
            list(self._failures),
            self._warnings,
            sorted(self._changed),
        )

    def _due(self, tasks_of: Callable[[TopicState, TopicConfig], Sequence[_Task]]) -> list[_Task]:
        tasks: list[_Task] = []
        for name in self.names:
            try:
                state = self._chain(name).newest()
                tasks += tasks_of(state, self.topics.config(state))
            except LogError as error:
                self._failures[str(error)] = None
        return tasks

    def _merged_here(self, tasks: Sequence[MergeTask]) -> list[Replacement | Failure]:
        if not tasks:
            return []
        with self.display.work(f"merge {counted(len(tasks), 'run')}") as progress:
            progress.expect(size=sum(task.bytes_to_read for task in tasks))
            return [run_merge_task(self.topics.storage, task, progress) for task in tasks]

    def _on_spark(
        self, verb: str, noun: str, tasks: Sequence[_Task], run: Callable[[Storage, _Task, Progress], _Outcome]
    ) -> list[_Outcome]:
        if not tasks:
            return []
        spark = self.spark()
        with (
            self.display.work(f"{verb} {counted(len(tasks), noun)}") as shown,
            progress_of_tasks(spark, shown) as progress,
        ):
            return run_on_spark(spark, self.topics.storage.uri, tasks, run, progress)

    def _chain(self, name: str) -> StateChain:
        return self._chains.setdefault(name, self.topics.chain(name))

    def _note_retention(self, result: RetentionResult) -> None:
        topic = result.state.topic
        for number, plan in enumerate(result.plans):
            if plan.blocked:
                self._warnings.append(f"topic {topic}, partition {number}: {plan.blocked}")
            if not plan.deletions:
                continue
            self._changed.add(topic)
            self._summary["segments dropped"] += len(plan.deletions)
            self._summary["bytes dropped"] += plan.bytes
            left = result.state.partitions[number]
            rules = Counter(deletion.rule for deletion in plan.deletions)
            self._rows.append(
                {
                    "topic": topic,
                    "partition": number,
                    "done": "retention by " + ", ".join(f"{rule} ({count})" for rule, count in rules.items()),
                    "segments before": len(left.segments) + len(plan.deletions),
                    "segments after": len(left.segments),
                    "records before": None,
                    "records after": None,
                    "bytes before": left.size + plan.bytes,
                    "bytes after": left.size,
                }
            )

    def _note_compaction(self, topic: str, result: CompactionResult) -> None:
        self._failures |= {f"topic {topic}, {failure}": None for failure in result.failed}
        self._warnings += [
            f"topic {topic}, partition {each.partition}: changed while it was compacted; the next run does it again"
            for each in result.outrun
        ]
        for each in result.cleaned:
            self._changed.add(topic)
            self._summary["partitions compacted"] += 1
            self._summary["records removed"] += each.records_before - each.records_after
            self._summary["bytes removed"] += each.bytes_before - each.bytes_after
            self._rows.append(
                {
                    "topic": topic,
                    "partition": each.partition,
                    "done": f"compaction up to offset {each.first_dirty_offset}",
                    "segments before": len(each.replaced),
                    "segments after": len(each.segments),
                    "records before": each.records_before,
                    "records after": each.records_after,
                    "bytes before": each.bytes_before,
                    "bytes after": each.bytes_after,
                }
            )

    def _note_merging(self, topic: str, result: MergeResult) -> None:
        # A run that others changed meanwhile is planned again by the next run: nobody has to know.
        self._failures |= {f"topic {topic}, {failure}": None for failure in result.failed}
        for number in sorted({each.partition for each in result.cleaned}):
            merged = [each for each in result.cleaned if each.partition == number]
            count = sum(len(each.replaced) for each in merged)
            size = sum(each.bytes_after for each in merged)
            self._changed.add(topic)
            self._summary["segments merged"] += count
            self._rows.append(
                {
                    "topic": topic,
                    "partition": number,
                    "done": "merge of small segments",
                    "segments before": count,
                    "segments after": len(merged),
                    "records before": None,
                    "records after": None,
                    "bytes before": size,
                    "bytes after": size,
                }
            )


def _by_topic(tasks: Sequence[_Task], outcomes: Sequence[_Outcome]) -> Iterator[tuple[str, list[_Outcome]]]:
    for name in dict.fromkeys(task.topic for task in tasks):
        yield name, [outcome for task, outcome in zip(tasks, outcomes, strict=True) if task.topic == name]


def run_on_spark(
    spark: SparkSession,
    root: str,
    tasks: Sequence[_Task],
    run: Callable[[Storage, _Task, Progress], _Outcome],
    progress: TaskProgress,
) -> list[_Outcome]:
    """Compact or merge into new files, one Spark task each; outcomes in the order of the tasks."""
    # As a DataFrame and not an RDD: an RDD's functions run in workers of another daemon, which would import all again.
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    progress.expect(size=sum(task.bytes_to_read for task in tasks))
    with spark_failures("cleaning"):
        rows = numbers.mapInArrow(_RunTasks(root, tuple(tasks), run, progress), "outcome binary").collect()
    loads = CPickleSerializer().loads
    return [loads(bytes(row["outcome"])) for row in rows]  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _RunTasks(Generic[_Task, _Outcome]):
    """What a Spark task runs: it is given the numbers of those that it is to do."""

    root: str
    tasks: tuple[_Task, ...]
    run: Callable[[Storage, _Task, Progress], _Outcome]
    progress: TaskProgress

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                outcome = self.run(open_storage(self.root), self.tasks[number], self.progress)
                pickled = CPickleSerializer().dumps(outcome)  # type: ignore[no-untyped-call]
                yield pa.RecordBatch.from_arrays([pa.array([pickled])], ["outcome"])
