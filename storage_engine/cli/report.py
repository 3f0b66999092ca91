"""`lakelog report`: what a root of topics looks like now, as one HTML page to open, keep or send.

The page has everything in it and needs no network. It changes nothing under the root. A topic that cannot be read stands
in it as a warning and stops no other; then the command ends with PARTIAL and names each on standard error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from storage_engine.cli.options import ConfOption, RootOption, open_topics
from storage_engine.cli.output import write_error, write_line
from storage_engine.errors import ExitStatus, NotFoundError, StorageAccessError


def report(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page to write; what is there is replaced.")],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be given several times."),
    ] = None,
    now: Annotated[
        int | None,
        typer.Option("--now", metavar="MS", min=0, help="Tell ages by this time, milliseconds since 1970. Default: now."),
    ] = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """Write an HTML page that shows topics: segments, what maintenance does next, throughput, dead letters."""
    topics = open_topics(root, conf)
    page = out.expanduser().resolve()
    if not page.parent.is_dir():
        raise NotFoundError(f"--out {out}", f"found no directory {page.parent}", "Create it, or write elsewhere.")
    if page.exists() and not page.is_file():  # to replace a device or a pipe would remove it
        raise StorageAccessError(f"--out {out}", "found something that is no file", "Name a file.")
    from storage_engine.quantities import counted, shown_size
    from storage_engine.report.facts import collect_root
    from storage_engine.report.page import render
    from storage_engine.storage.posix import PosixStorage

    facts = collect_root(topics, topic or (), topics.clock.now_ms() if now is None else now)
    PosixStorage(page.parent).replace(page.name, render(facts).encode(errors="replace"))
    appended, in_log = sum(each.appended for each in facts.topics), sum(each.size for each in facts.topics)
    write_line(
        f"wrote {out}: {counted(len(facts.topics), 'topic')}, {counted(appended, 'record')} appended,"
        f" {shown_size(in_log)} in the log, {counted(len(facts.warnings), 'warning')}"
    )
    for warned in facts.unread:
        write_error(warned.text)
    if facts.unread:
        raise typer.Exit(ExitStatus.PARTIAL)
