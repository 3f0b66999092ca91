"""`lakelog state`: what the versions of a topic's state did, and the maintenance of its files without Spark.

Each change to a topic is a version. History tells of every one since the topic was created, whether the version itself
is still there or was pruned. `prune` and `sweep` are the maintenance job's steps of that name.
"""

from __future__ import annotations

import itertools
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from storage_engine.cli.options import ConfOption, RootOption, TopicOption, TopicsOption, open_topics
from storage_engine.cli.output import write, write_error, write_line, write_table
from storage_engine.errors import ExitStatus, LogError
from storage_engine.quantities import counted, shown_moment, shown_number, shown_size
from storage_engine.terminal_text import shown_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from storage_engine.topic.history_file import VersionChange
    from storage_engine.topic.state import Removal
    from storage_engine.topic.topics import Topics

app = typer.Typer(help="Show what a topic's state went through; prune and sweep it.", no_args_is_help=True)

_LAST = 100
_LINES = 1000


class Format(StrEnum):
    """How history is told."""

    TABLE = "table"
    JSONL = "jsonl"


@app.command("history")
def history(
    topic: TopicOption,
    last: Annotated[
        int | None,
        typer.Option("--last", metavar="N", min=1, help=f"Only the newest N. Default: {_LAST} in a table, else all."),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="table: for people. jsonl: one JSON object per version.")
    ] = Format.TABLE,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Tell what each version of a topic's state did, the newest last.

    Who wrote the topic then and in which epoch, which micro-batches it committed, which settings it changed, by how much
    each partition's high watermark, log start offset, bytes and segments became more or less, and what retention,
    compaction and delete-records took for good, by which rule or for which cause.
    """
    topics = open_topics(root, conf)
    from storage_engine.topic.history import History

    chain = topics.chain(topic)
    newest = chain.newest().version
    if last is None and form is Format.TABLE:
        last = _LAST
    changes = History(topics.storage, chain).changes(0 if last is None else newest + 1 - last, newest)
    if form is Format.TABLE:
        _write_history(changes)
        return
    while lines := [shown_json(change.model_dump_json()) + "\n" for change in itertools.islice(changes, _LINES)]:
        write("".join(lines).encode())


@app.command("prune")
def prune(topic: TopicsOption = None, root: RootOption = None, conf: ConfOption = None) -> None:
    """Roll old versions of the state up into history and delete them, all but the newest thousand."""
    topics = open_topics(root, conf)
    from storage_engine.topic import pruning

    def pruned(name: str) -> str:
        done = pruning.prune(topics.storage, topics.chain(name))
        deleted = f"deleted {counted(done.versions, 'version')} and {counted(done.lists, 'segment list')}"
        return f"rolled up {counted(done.rolled_up, 'version')}, {deleted}"

    _on_each(topics, topic, pruned)


@app.command("sweep")
def sweep(topic: TopicsOption = None, root: RootOption = None, conf: ConfOption = None) -> None:
    """Delete files that no version of the state names or will name, once they are lakelog.sweep.delay.ms old."""
    topics = open_topics(root, conf)
    from storage_engine.topic.sweeping import sweep_topic

    def swept(name: str) -> str:
        done = sweep_topic(topics.storage, topics.chain(name), topics.broker)
        return f"swept {counted(done.files, 'file')}, {shown_size(done.bytes)}"

    _on_each(topics, topic, swept)


def _on_each(topics: Topics, named: Sequence[str] | None, work: Callable[[str], str]) -> None:
    """Work on the named topics, else on all, deleted ones included; one that fails is named and stops no other."""
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
        table.add_row(
            str(each.version), shown_moment(each.written_ms), str(writer.epoch),
            "-" if writer.query is None else f"{writer.host} ({writer.pid})", _told(each), _signed(len(parts)),
            _signed(sum(part.records for part in parts)), _signed(sum(part.bytes for part in parts)),
            _signed(sum(part.segments for part in parts)),
        )  # fmt: skip
    write_table(table)


def _told(change: VersionChange) -> str:
    settings = [key if value is None else f"{key}={value}" for key, value in change.configs.items()]
    line = " ".join([change.change, *([f"({', '.join(settings)})"] if settings else [])])
    return "\n".join([line, *map(_told_removal, change.removed)])


def _told_removal(removal: Removal) -> str:
    """The offsets concerned, and what of them went."""
    took = [f"{shown_number(count)} {cause}" for cause, count in removal.records.items()]
    if removal.segments > 0:
        took.append(counted(removal.segments, "segment"))
    if removal.bytes > 0:
        took.append(shown_size(removal.bytes))
    told = f"partition {removal.partition}, {removal.by}, offsets {removal.from_offset:,} to {removal.to_offset - 1:,}"
    unread = f"; not read by {' and '.join(removal.unread_by)}" if removal.unread_by else ""
    return f"{told}{': ' if took else ''}{', '.join(took)}{unread}"


def _signed(number: int) -> str:
    return shown_number(number) if number else "-"
