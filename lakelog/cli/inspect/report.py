"""`lakelog report`: writes one HTML page about the topics of a root.

The page needs no other files and no network. The command changes nothing under the root. If a topic cannot be read, the
page shows a warning for this topic, and still shows the other topics. In this case, the exit status is PARTIAL, and a
line on standard error names the topic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakelog.cli.options import ConfOption, RootOption, open_topics
from lakelog.cli.output import replaceable, write_error, write_line
from storage_engine.errors import ExitStatus


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
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """Write an HTML page about topics: segments, what maintenance will do next, throughput, dead letters."""
    topics = open_topics(root, conf)
    page = replaceable("--out", out)
    from lakelog.report.facts import collect_root
    from lakelog.report.page import render
    from storage_engine.quantities import counted, shown_size
    from storage_engine.storage.storage_opening import open_directory

    facts = collect_root(topics, topic or (), topics.clock.now_ms() if now is None else now)
    open_directory(page.parent).replace(page.name, render(facts).encode(errors="replace"))
    appended, in_log = sum(each.appended for each in facts.topics), sum(each.size for each in facts.topics)
    write_line(
        f"wrote {out}: {counted(len(facts.topics), 'topic')}, {counted(appended, 'record')} appended,"
        f" {shown_size(in_log)} in the log, {counted(len(facts.warnings), 'warning')}"
    )
    for warned in facts.unread:
        write_error(warned.text)
    if facts.unread:
        raise typer.Exit(ExitStatus.PARTIAL)
