"""`lakelog state`: prints the changes in each version of a topic's state, and maintains the state's files without
Spark.

Each change to a topic is a version. `history` prints every version since the topic was created, including pruned ones.
`prune` and `sweep` do work that the maintenance job also does.
"""

from __future__ import annotations

import itertools
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.options import ConfOption, RootOption, TopicOption, TopicsOption, open_topics
from lakelog.cli.output import write, write_error, write_line, write_table
from lakelog.inspection.change_texts import change_text
from lakelog.terminal.text import shown_json
from storage_engine.errors import ExitStatus, LogError
from storage_engine.quantities import counted, shown_moment, shown_number, shown_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from storage_engine.topic.chain.history_file import VersionChange
    from storage_engine.topic.topics import Topics

app = typer.Typer(
    help="Show the changes of a topic's state, prune old versions of the state, and sweep unused files.",
    no_args_is_help=True,
)

_LAST = 100
_LINES = 1000


class StateFormat(StrEnum):
    """The output format of history."""

    TABLE = "table"
    JSONL = "jsonl"


@app.command("history")
def history(
    topic: TopicOption,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            metavar="N",
            min=1,
            help=f"Show only the newest N versions. Default: {_LAST} if the output is a table, all if the output is"
            " jsonl.",
        ),
    ] = None,
    form: Annotated[
        StateFormat, typer.Option("--format", help="table: for people. jsonl: one JSON object per version.")
    ] = StateFormat.TABLE,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Print what each version of a topic's state changed. The newest version is last.

    For each version, the command prints the process that committed it, the writer that fed the topic, the writer's epoch,
    the committed micro-batches, the changed settings, and the changes of each partition's high watermark, log start
    offset, bytes and segments. The command also prints what retention, compaction and delete-records removed, with the
    rule or the cause.
    """
    topics = open_topics(root, conf)
    from storage_engine.topic.chain.history_reader import HistoryReader

    chain = topics.chain(topic)
    newest = chain.newest().version
    if last is None and form is StateFormat.TABLE:
        last = _LAST
    changes = HistoryReader(topics.storage, chain).changes(0 if last is None else newest + 1 - last, newest)
    if form is StateFormat.TABLE:
        _write_history(changes)
        return
    while lines := [shown_json(change.model_dump_json()) + "\n" for change in itertools.islice(changes, _LINES)]:
        write("".join(lines).encode())


@app.command("prune")
def prune(topic: TopicsOption = None, root: RootOption = None, conf: ConfOption = None) -> None:
    """Write the changes of old versions of the state into history files, and then delete these versions. All versions
    except the newest thousand are old."""
    topics = open_topics(root, conf)
    from storage_engine.topic.chain import pruning

    def pruned(name: str) -> str:
        done = pruning.prune(topics.storage, topics.chain(name))
        deleted = f"deleted {counted(done.versions, 'version')} and {counted(done.lists, 'segment list')}"
        return f"rolled up {counted(done.rolled_up, 'version')}, {deleted}"

    _on_each(topics, topic, pruned)


@app.command("sweep")
def sweep(topic: TopicsOption = None, root: RootOption = None, conf: ConfOption = None) -> None:
    """Delete files that are in no version of the topic's state, and that no later version can contain. Only files that
    are older than lakelog.sweep.delay.ms are deleted."""
    topics = open_topics(root, conf)
    from storage_engine.topic.clean.sweeping import sweep_topic

    def swept(name: str) -> str:
        done = sweep_topic(topics.storage, topics.chain(name), topics.broker)
        return f"swept {counted(done.files, 'file')}, {shown_size(done.bytes)}"

    _on_each(topics, topic, swept)


def _on_each(topics: Topics, named: Sequence[str] | None, work: Callable[[str], str]) -> None:
    """Work on the named topics. Default: all topics, including deleted ones. An error in one topic does not stop the
    work on the other topics.
    """
    failed = False
    for name in list(dict.fromkeys(named)) if named else list(topics.names(with_deleted=True)):
        try:
            write_line(f"topic {name}: {work(name)}")
        except LogError as error:
            failed = True
            write_error(error)
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)


def _write_history(changes: Iterable[VersionChange]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("version", "written", "epoch", "writer", "change", "partitions", "records", "bytes", "segments"):
        is_text = column in ("written", "writer", "change")
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for each in changes:
        writer = each.writer
        parts = each.partitions
        change = "\n".join([change_text(each), *([f"by {each.committed_by}"] if each.committed_by else [])])
        table.add_row(
            str(each.version), shown_moment(each.written_ms), str(writer.epoch),
            "-" if writer.query is None else f"{writer.host} ({writer.pid})", change, _signed(len(parts)),
            _signed(sum(part.records for part in parts)), _signed(sum(part.bytes for part in parts)),
            _signed(sum(part.segments for part in parts)),
        )  # fmt: skip
    write_table(table)


def _signed(number: int) -> str:
    return shown_number(number) if number else "-"
