"""Cleans the topics of a root: retention, compaction, merging, and the deletion of unneeded files and versions.

The driver decides and commits retention itself, because retention copies no bytes. The compactions and merges of all
topics are in one queue (clean.work_queue), in the order of their priority. They run within the budget (clean.budget).
If Spark needs more time to start than all of this work takes, the work runs in the driver. Otherwise it runs on Spark
(clean.runners). Each piece of work is committed as soon as it is done: one new version of the topic's state names the
new files. So a kill loses only the pieces of work that were running.

An error in one partition or topic is reported. The work on other partitions and topics continues. Ingests, exports and
readers can work during a cleaning run, and so can a second cleaning job. It is safe to kill a run at any time. The
reasons are in storage_engine.topic.clean.state_swap, storage_engine.topic.chain.pruning and
storage_engine.topic.clean.sweeping. Before each piece, a run checks whether another run has already done the piece.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from pyspark.sql import SparkSession

from lakelog.cli.clean.plan_files import read_plan, save_plan
from lakelog.inspection.planning import make_plan
from lakelog.inspection.states import readable_states
from pipeline.clean.budget import Budget, Limit
from pipeline.clean.cleaning_report import CleaningReport, segments_of
from pipeline.clean.runners import Outcome, runner_of
from pipeline.clean.work_queue import EndedPiece, Task, WorkQueue
from pipeline.job import JobContext, JobReport
from pipeline.settings import JobTopics
from storage_engine.cleaner.cleaner import CleanedPartition, CleaningTask
from storage_engine.cleaner.segment_merging import MergeTask
from storage_engine.clock import SystemClock
from storage_engine.config import LONG_MAX, TopicConfig
from storage_engine.errors import LogError, UsageError
from storage_engine.progress import Meter
from storage_engine.quantities import counted, shown_number
from storage_engine.topic.append.transaction_writer import finish_transactions
from storage_engine.topic.chain.pruning import Pruned, pruning_steps
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.clean.applying_plans import (
    check_current,
    cleaning_tasks_of,
    merge_tasks_of,
    retain_as_planned,
)
from storage_engine.topic.clean.cleaning_plan import Action, Plan, TopicPlan, Work
from storage_engine.topic.clean.state_swap import Failure, still_named
from storage_engine.topic.clean.sweeping import sweep_topic
from storage_engine.topic.clean.topic_compaction import cleaning_tasks, swap_cleaned
from storage_engine.topic.clean.topic_merging import merge_tasks, swap_merged
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.dropped_files import delete_dropped
from storage_engine.topic.topics import Topics, check_root


def add_cleaning_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all cleaning jobs."""
    parser.add_argument(
        "--topic", action="append", metavar="NAME", help="work on this topic; the option may be given more than once"
    )
    parser.add_argument(
        "--now", type=_moment, metavar="MS", help="use this time for all decisions; default: the current time"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and change nothing")
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="print the plan and change nothing, as with --dry-run, and also write the plan to a file",
    )
    parser.add_argument(
        "--apply",
        type=Path,
        metavar="FILE",
        help="apply a saved plan; the plan is refused if a topic changed after the planning",
    )


def _moment(text: str) -> int:
    value = int(text)
    if not 0 <= value <= LONG_MAX:
        raise argparse.ArgumentTypeError(f"found {text}; give milliseconds since the epoch")
    return value


def run_cleaning(
    context: JobContext,
    settings: JobTopics,
    work: frozenset[Work],
    steps: Callable[[CleaningJob], None],
    budget: Budget | None = None,
) -> JobReport:
    """Run a cleaning job. With the options for plans, the job either only plans the work, or only applies a saved plan.

    Args:
        work: the kinds of work that the job does to segments.
        steps: runs all steps of the job.

    Raises:
        TopicError: a topic that was named does not exist, or the name is not valid.
        UsageError: the options contradict each other, or the plan has work that this job does not do.
        StalePlanError: a topic has changed since the plan was made. Nothing was changed.
    """
    arguments = context.arguments
    file: Path | None = getattr(arguments, "apply", None)
    save: Path | None = getattr(arguments, "save", None)
    now_ms: int | None = getattr(arguments, "now", None)
    plans = save is not None or getattr(arguments, "dry_run", False)
    if file is not None and (plans or now_ms is not None or getattr(arguments, "topic", None)):
        raise UsageError(
            "--apply",
            "is given with --topic, --now, --dry-run or --save",
            "Remove these options: the saved plan already contains all decisions.",
        )
    asked: Sequence[str] | None = getattr(arguments, "topic", None) or settings.topics
    with context.display.work(context.name) as progress:
        cleaning = CleaningJob.of(context, asked, progress, budget or Budget(), now_ms)
        if file is not None:
            cleaning.apply(read_plan(file), work)
        elif plans:
            return cleaning.plan(asked, work, save)
        else:
            steps(cleaning)
        return cleaning.report


@dataclass
class CleaningJob:
    """One run of a cleaning job.

    The topics are named on the command line, or else in the settings. If no topic is named in either place, all topics
    of the root are cleaned. The steps may be called in any order and more than once. `report` contains the results of
    all steps.

    now_ms: the time that all decisions use; None: the clock's time.
    """

    topics: Topics
    names: Sequence[str]
    spark: Callable[[], SparkSession]
    progress: Meter = field(default_factory=lambda: Meter("cleaning", SystemClock()))
    budget: Budget = field(default_factory=Budget)
    now_ms: int | None = None
    _planned: dict[str, TopicPlan] = field(default_factory=dict)
    _report: CleaningReport = field(default_factory=CleaningReport)
    _chains: dict[str, StateChain] = field(default_factory=dict)

    @classmethod
    def of(
        cls, context: JobContext, asked: Sequence[str] | None, progress: Meter, budget: Budget, now_ms: int | None
    ) -> CleaningJob:
        """
        Args:
            asked: the names of the topics; None for all.
            progress: shows the work of the whole run.
            budget: limits compaction, merging, pruning and sweeping.

        Raises:
            TopicError: a topic that was named does not exist, or the name is not valid.
            NoRootError: the directory is not a root.
        """
        if asked is None:
            check_root(context.storage)
            names = list(context.topics.names(with_deleted=True))
        else:
            names = list(dict.fromkeys(asked))
            readable_states(context.topics, names)  # each step reports its errors, and continues with the other topics
        return cls(context.topics, names, lambda: context.spark, progress, budget, now_ms)

    def plan(self, asked: Sequence[str] | None, work: frozenset[Work], save: Path | None = None) -> JobReport:
        """Plan the work as `lakelog plan` does. The plan is in the report.

        Args:
            asked: the names of the topics; None for all.
            save: also write the plan to this file.
        """
        plan, failures = make_plan(self.topics, asked, self.now_ms, work)
        for failure in failures:
            self._report.fail(failure)
        if save is not None:
            save_plan(save, plan)
        return dataclasses.replace(self.report, plan=plan)

    def apply(self, plan: Plan, work: frozenset[Work]) -> None:
        """Apply a plan, and do nothing else.

        Raises:
            UsageError: the plan has work that this job does not do. Nothing was changed.
            StalePlanError: a topic has changed since the plan was made. Nothing was changed.
        """
        others = {each for topic in plan.topics for each in topic.work} - work
        if others:
            problem = f"the plan contains {' and '.join(sorted(others))}, which is not work of this job"
            raise UsageError("--apply", problem, "Use the job `maintenance` or `lakelog plan --apply`.")
        check_current(plan, self.topics)
        self.names = [each.topic for each in plan.topics]
        self._planned = {each.topic: each for each in plan.topics}
        self._report.applies_plan = True
        self.retain()
        self.compact_and_merge()

    def end_transactions(self) -> None:
        """Write the markers of decided transactions, and abort transactions that have timed out."""
        self.progress.note("ending transactions")
        self._report.begin("transactions ended")
        for name in self.names:
            with self._report.failures():
                ended = finish_transactions(self.topics, [name])
                self._report.count("transactions ended", ended)
                if ended:
                    self._report.change(name)

    def retain(self) -> None:
        """Drop the segments that retention no longer keeps."""
        self.progress.note("retention")
        self._report.begin("segments dropped", "bytes dropped")
        for name in self.names:
            planned = self._planned.get(name)
            if planned and not any(step.action is Action.DELETE for each in planned.partitions for step in each.steps):
                continue
            with self._report.failures():
                if planned:
                    retained = retain_as_planned(self._chain(name), self.topics.broker, planned)
                else:
                    retained = retain_topic(self._chain(name), self.topics.broker, now_ms=self.now_ms)
                self._report.note_retention(retained)

    def compact(self) -> None:
        """Compact the partitions that are due. Only compacted topics have such partitions."""
        self._work_off(self._due(self._compactions))

    def compact_and_merge(self) -> None:
        """Do the work of `compact`, and also merge small neighbouring segments (the rule is in
        storage_engine.cleaner.segment_merging)."""
        self._report.begin("segments merged")
        self._work_off([*self._due(self._compactions), *self._due(self._merges)])

    def delete_files(self) -> None:
        """Delete the files of segments that were dropped long enough ago."""
        self.progress.note("deleting files")
        self._report.begin("dropped segments deleted")
        for name in self.names:
            with self._report.failures():
                chain = self._chain(name)
                config = self.topics.config(chain.newest())
                gone = delete_dropped(self.topics.storage, chain, config, self.topics.clock.now_ms())
                self._report.count("dropped segments deleted", len(gone))

    def prune(self) -> None:
        """Roll up and delete old versions of the states."""
        self.progress.note("pruning")
        self._report.begin("versions pruned")
        for name in self.names:
            pruned = Pruned()
            with self._report.failures():
                for _ in pruning_steps(self.topics.storage, self._chain(name), pruned):
                    if self._time_is_over():
                        break
            self._report.count("versions pruned", pruned.versions)

    def sweep(self) -> None:
        """Delete old files that no version of a state names. No later version can name them."""
        self.progress.note("sweeping")
        self._report.begin("files swept", "bytes swept")
        for name in self.names:
            if self._time_is_over():
                break
            with self._report.failures():
                swept = sweep_topic(self.topics.storage, self._chain(name), self.topics.broker)
                self._report.count("files swept", swept.files)
                self._report.count("bytes swept", swept.bytes)

    @property
    def report(self) -> JobReport:
        """The work so far."""
        return self._report.made(len(self.names))

    def _compactions(self, state: TopicState, config: TopicConfig) -> list[CleaningTask]:
        if state.topic in self._planned:
            return cleaning_tasks_of(self._planned[state.topic], self.topics, state)
        failures: list[Failure] = []
        tasks = cleaning_tasks(
            self.topics.storage, state, config, self.topics.broker, self._time_ms(), failures=failures
        )
        for failure in failures:
            self._report.fail(f"topic {state.topic}, {failure}")
        return tasks

    def _merges(self, state: TopicState, config: TopicConfig) -> list[MergeTask]:
        if state.topic in self._planned:
            return merge_tasks_of(self._planned[state.topic], self.topics, state)
        return merge_tasks(state, config, self.topics.broker.log_cleaner_io_max_bytes_per_second)

    def _time_ms(self) -> int:
        return self.topics.clock.now_ms() if self.now_ms is None else self.now_ms

    def _due(self, tasks_of: Callable[[TopicState, TopicConfig], Sequence[Task]]) -> list[Task]:
        tasks: list[Task] = []
        for name in self.names:
            with self._report.failures():
                state = self._chain(name).newest()
                tasks += tasks_of(state, self.topics.config(state))
        return tasks

    def _work_off(self, tasks: Sequence[Task]) -> None:
        """Run the pieces for which the budget has room, commit each piece when it is done, and report the tasks that
        were not run."""
        self._report.begin("partitions compacted", "records removed", "bytes removed", "left", "bytes left")
        self.progress.expect(size=sum(task.bytes_to_read for task in tasks))
        self.progress.note("")
        done = 0
        with runner_of(self.spark, self.topics.storage, self.progress, tasks) as runner:
            queue = WorkQueue(tasks, self.budget, runner)
            while not queue.is_worked_off:
                while piece := queue.next_piece():
                    if due := self._still_due(piece):
                        queue.begin(due)
                for ended in queue.wait():
                    self._commit(ended)
                    done += len(ended.tasks)
                    self.progress.note(f"{shown_number(done)} of {counted(len(tasks), 'task')} done")
        self._report.note_left(queue.left, self.budget.max_bytes)

    def _still_due(self, piece: Sequence[Task]) -> Sequence[Task]:
        """The tasks whose segments the state still names. The next run plans the other tasks again."""
        try:
            state = self._chain(piece[0].topic).newest()
        except LogError as error:
            self._report.fail(error)
            return []
        due: list[Task] = []
        changed_meanwhile: list[Task] = []
        for task in piece:
            there = not state.deleted and state.topic_id == task.topic_id
            named = there and still_named(state.partitions[task.partition], segments_of(task))
            (due if named else changed_meanwhile).append(task)
        self._report.note_changed_meanwhile(state.topic, changed_meanwhile)
        return due

    def _commit(self, piece: EndedPiece[Outcome]) -> None:
        first = piece.tasks[0]
        topic = first.topic
        storage, chain = self.topics.storage, self._chain(topic)
        with self._report.failures():
            outcomes = piece.future.result()
            if isinstance(first, CleaningTask):
                cleaned = cast("Sequence[CleanedPartition | Failure]", outcomes)
                self._report.note_compaction(topic, swap_cleaned(storage, chain, cleaned))
            else:
                self._report.note_merging(topic, swap_merged(storage, chain, outcomes))

    def _time_is_over(self) -> bool:
        if self.budget.time_is_over:
            warning = (
                f"the time limit {Limit.MINUTES} passed before everything was pruned and swept; the next run continues"
            )
            self._report.warn(warning)
        return self.budget.time_is_over

    def _chain(self, name: str) -> StateChain:
        return self._chains.setdefault(name, self.topics.chain(name))
