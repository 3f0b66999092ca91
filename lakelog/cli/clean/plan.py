"""`lakelog plan`: prints what retention, compaction and merging would do to each segment, and by which rule. For
segments that would not change, the command prints the rules that keep them.

Nothing is changed. Segments are read only if an older release of Lakelog wrote the state: such a state does not contain
the first timestamps of segments. The plan is printed as a table or as a JSON document. --save writes the document to a
file. --apply executes exactly the saved plan, without Spark. If the log has changed since the plan was saved, --apply
refuses the whole plan (storage_engine.topic.clean.applying_plans).

With --kafka-dir, the plan is that of `lakelog recover`, `retain` and `compact` for a plain Kafka log directory
(plan_directory.py). Such a plan cannot be saved.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.clean.cleaning_commands import print_compaction, print_merging, print_retention
from lakelog.cli.clean.plan_files import make_plan, read_plan, save_plan
from lakelog.cli.clean.plan_tables import show_plan
from lakelog.cli.options import (
    ConfigOption,
    ConfOption,
    KafkaDirOption,
    NowOption,
    RootOption,
    TopicsOption,
    given_overrides,
    open_topics,
    refuse_config_of_roots,
    refuse_options_of_roots,
    settle_view,
)
from lakelog.cli.output import write, write_error
from lakelog.terminal.progress_display import display_on_stderr
from storage_engine.errors import ExitStatus, LogError, UsageError

if TYPE_CHECKING:
    from storage_engine.topic.topics import Topics


class PlanFormat(StrEnum):
    """The output format of a plan."""

    TABLE = "table"
    JSON = "json"


_ForceOption = Annotated[
    bool,
    typer.Option(
        "--force", help="Plan to compact every partition that can be compacted, even if its compaction is not due."
    ),
]
_ApplyOption = Annotated[
    Path | None,
    typer.Option(
        "--apply",
        metavar="FILE",
        help="Carry out a saved plan. If the log has changed since the plan was saved, refuse the whole plan.",
    ),
]


def plan(
    topic: TopicsOption = None,
    now: NowOption = None,
    force: _ForceOption = False,
    form: Annotated[
        PlanFormat,
        typer.Option(
            "--format",
            help="table: for people. json: a document; without --kafka-dir, the same one that --save writes.",
        ),
    ] = PlanFormat.TABLE,
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Also save the plan to a file.")] = None,
    apply: _ApplyOption = None,
    kafka_dir: KafkaDirOption = None,
    config: ConfigOption = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Print what would be deleted, compacted and merged, and why. Only --apply changes anything.

    With --kafka-dir, print what `lakelog recover`, `retain` and `compact` would do to a plain Kafka log directory, each
    of them alone: which logs would be recovered, which segments deleted, and which logs compacted. The command also prints
    which topics are left alone, and why. --topic, --config, --now and --force have the meaning that they have for these
    commands. Nothing is changed or locked, so the directory can be read-only. If a broker runs on the directory, the
    plan says so, and can be out of date. The exit status is 4 if a log could not be planned, for example because it is
    damaged.
    """
    if kafka_dir is not None:
        refuse_options_of_roots(root, conf=conf, save=save, apply=apply)
        failed = _plan_directory(kafka_dir, topic, given_overrides(config or ()), now, form, force=force)
    elif apply is not None:
        refuse_config_of_roots(config)
        if topic or now is not None or force or save is not None:
            raise UsageError(
                "--apply",
                "is given with --topic, --now, --force or --save",
                "Remove these options: the saved plan already contains all decisions.",
            )
        failed = _apply(open_topics(root, conf), apply)
    else:
        refuse_config_of_roots(config)
        failed = _plan_root(open_topics(root, conf), topic, now, form, save, force=force)
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)


def _plan_root(
    topics: Topics, named: list[str] | None, now: int | None, form: PlanFormat, save: Path | None, *, force: bool
) -> bool:
    """Returns whether the plan of a topic could not be made."""
    from storage_engine.topic.clean.cleaning_plan import ALL_WORK, encode_plan

    planned, failed = make_plan(topics, named, now, ALL_WORK, force=force)
    if save is not None:
        save_plan(save, planned)
    if form is PlanFormat.JSON:
        write(encode_plan(planned))
    else:
        show_plan(planned)
    return failed


def _plan_directory(
    path: Path, named: list[str] | None, overrides: dict[str, str], now: int | None, form: PlanFormat, *, force: bool
) -> bool:
    """Returns whether something could not be planned."""
    from lakelog.cli.clean.plan_directory import print_directory_plan, show_directory_plan
    from storage_engine.clock import SystemClock
    from storage_engine.kafka_dir.upkeep.directory_plan import plan_directory

    now_ms = SystemClock().now_ms() if now is None else now
    planned = plan_directory(path, named or [], overrides, now_ms, force=force)
    (print_directory_plan if form is PlanFormat.JSON else show_directory_plan)(planned)
    return bool(planned.failures)


def _apply(topics: Topics, file: Path) -> bool:
    """Returns whether a part of the plan could not be executed."""
    from storage_engine.topic.clean.applying_plans import (
        check_current,
        cleaning_tasks_of,
        merge_tasks_of,
        retain_as_planned,
    )
    from storage_engine.topic.clean.cleaning_plan import Action
    from storage_engine.topic.clean.topic_compaction import compact_partitions
    from storage_engine.topic.clean.topic_merging import merge_runs

    planned = read_plan(file)
    check_current(planned, topics)
    failed = False
    with display_on_stderr().work("apply") as progress:
        for each in planned.topics:
            chain = topics.chain(each.topic)
            before = chain.newest()
            try:
                if any(step.action is Action.DELETE for part in each.partitions for step in part.steps):
                    print_retention(retain_as_planned(chain, topics.broker, each))
                cleaning = cleaning_tasks_of(each, topics, chain.newest())
                compacted = compact_partitions(topics.storage, chain, cleaning, progress)
                failed |= print_compaction(each.topic, compacted) | bool(compacted.changed_meanwhile)
                merging = merge_tasks_of(each, topics, chain.newest())
                merged = merge_runs(topics.storage, chain, merging, progress)
                failed |= print_merging(each.topic, merged) | bool(merged.changed_meanwhile)
            except LogError as error:
                write_error(error)
                failed = True
            if chain.newest().version > before.version:
                settle_view(topics, each.topic)
    return failed
