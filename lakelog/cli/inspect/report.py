"""`lakelog report`: writes one HTML page about the topics of a root. With --watch, the command writes the page again and
again until SIGTERM or Ctrl-C ends it, and browsers that show the page load it again.

The page needs no other files and no network. The command changes nothing under the root. If a topic cannot be read, the
page shows a warning for this topic, and still shows the other topics. In this case, a line on standard error names the
topic, and the exit status without --watch is PARTIAL. With --watch, an error is printed again only after it has changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.options import ConfOption, RootOption, open_topics
from lakelog.cli.output import replaceable, write_error, write_line
from lakelog.cli.stopping import LONGEST_WAIT_SECONDS, stopped_by_signals
from storage_engine.errors import ExitStatus, LogError, UsageError

if TYPE_CHECKING:
    from lakelog.report.facts import RootFacts
    from storage_engine.topic.topics import Topics


def report(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page to write. An existing file is replaced.")],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be given several times. Default: all."),
    ] = None,
    now: Annotated[
        int | None,
        typer.Option("--now", metavar="MS", min=0,
            help="Write the page as if this were the current time, in milliseconds since 1970. Default: now."),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option("--watch", metavar="SECONDS", min=1, max=LONGEST_WAIT_SECONDS,
            help="Write the page again and again, at this interval. A browser that shows the page loads it again."),
    ] = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """Write an HTML page about topics: segments, what maintenance will do next, throughput, dead letters.

    With --watch, SIGTERM or Ctrl-C ends the command.
    """
    if watch is not None and now is not None:
        raise UsageError("--watch", "--now is given, too", "Give only one of the two.")
    topics = open_topics(root, conf)
    write = partial(_write, topics, topic or (), now, replaceable("--out", out), watch)
    from storage_engine.quantities import counted, shown_size

    facts = write()
    appended, in_log = sum(each.appended for each in facts.topics), sum(each.size for each in facts.topics)
    write_line(
        f"wrote {out}: {counted(len(facts.topics), 'topic')}, {counted(appended, 'record')} appended,"
        f" {shown_size(in_log)} in the log, {counted(len(facts.warnings), 'warning')}"
    )
    errors = [warned.text for warned in facts.unread]
    for text in errors:
        write_error(text)
    if watch is not None:
        _write_again(write, watch, errors)
    elif errors:
        raise typer.Exit(ExitStatus.PARTIAL)


def _write(topics: Topics, names: Sequence[str], now_ms: int | None, page: Path, watch: float | None) -> RootFacts:
    """Write the page once."""
    from lakelog.report.facts import collect_root
    from lakelog.report.page import render
    from storage_engine.storage.storage_opening import open_directory

    facts = collect_root(topics, names, topics.clock.now_ms() if now_ms is None else now_ms)
    text = render(facts, None if watch is None else math.ceil(watch))
    open_directory(page.parent).replace(page.name, text.encode(errors="replace"))
    return facts


def _write_again(write: Callable[[], RootFacts], seconds: float, printed: Sequence[str]) -> None:
    """Write the page at each interval until a signal arrives. After an error, the next interval tries again.

    Args:
        printed: the errors that the last page had.
    """
    with stopped_by_signals() as stop:
        while not stop(seconds):
            try:
                errors = [warned.text for warned in write().unread]
            except LogError as error:
                errors = [str(error)]
            for text in errors:
                if text not in printed:
                    write_error(text)
            printed = errors
