"""`lakelog metrics`: reports the figures of a root as metrics for Prometheus. With --listen, the command serves the
metrics until SIGTERM or Ctrl-C ends it. With --textfile, the command writes the metrics to a file, once or repeatedly.
Otherwise it prints them. If a topic cannot be read, its metric lakelog_topic_readable is 0. If the command ends without
a signal, and something under the root could not be read, the exit status is PARTIAL.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.options import ConfOption, RootOption, listen_address, open_topics
from lakelog.cli.output import replaceable, write, write_error
from lakelog.cli.stopping import LONGEST_WAIT_SECONDS, stopped_by_signals
from lakelog.terminal.text import shown_lines
from storage_engine.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from lakelog.metrics.endpoint import RootCollector
    from lakelog.metrics.figures import RootFigures

_EXAMPLE = "127.0.0.1:9308"
EveryOption = Annotated[
    float | None,
    typer.Option(
        "--every", metavar="SECONDS", min=1, max=LONGEST_WAIT_SECONDS,
        help="Write the file again and again, at this interval.",
    ),
]  # fmt: skip


def metrics(
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Serve the metrics at this address, under /metrics."),
    ] = None,
    textfile: Annotated[
        Path | None,
        typer.Option(
            "--textfile", metavar="FILE",
            help="Write the metrics to this file. The whole file is replaced, so readers never see half a file.",
        ),
    ] = None,
    every: EveryOption = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", metavar="NAME",
            help="The value of the label cluster_name. Default: the name of the root's directory.",
        ),
    ] = None,
    tables: Annotated[
        bool,
        typer.Option(
            "--tables",
            help="Also count dead letters and stale rows, every five minutes. The count reads columns of Delta tables.",
        ),
    ] = False,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """Report the figures of topics and consumers as metrics for Prometheus.

    If kafka_exporter or kafka-lag-exporter has the same metric, Lakelog uses the same name. All other names begin with
    lakelog_. docs/MONITORING.md lists all metrics. Without --listen and --textfile, the metrics are printed once.
    """
    if every is not None and textfile is None:
        raise UsageError("--every", "--textfile is not given", "Name the file to write.")
    if textfile is not None:
        if listen is not None:
            raise UsageError("--textfile", "--listen is given, too", "Give only one of the two.")
        textfile = replaceable("--textfile", textfile)
    topics = open_topics(root, conf, examines=True)
    from lakelog.metrics.endpoint import RootCollector, serve
    from lakelog.metrics.root_watch import RootWatch, all_errors

    collector = RootCollector(RootWatch(topics, cluster, counts_tables=tables), write_error)
    with stopped_by_signals() as stop:
        if listen is not None:
            serve(collector, *listen_address(listen, _EXAMPLE), stop, lambda url: write_error(f"metrics at {url}"))
            return
        figures = _write(collector, textfile)
        while every is not None:
            if stop(every):
                return
            figures = _write(collector, textfile)
    if all_errors(figures):
        raise typer.Exit(ExitStatus.PARTIAL)


def _write(collector: RootCollector, textfile: Path | None) -> RootFigures:
    """Look at the root, and write its metrics to a file or to standard output."""
    from lakelog.metrics.endpoint import exposition
    from storage_engine.storage.storage_opening import open_directory

    figures = collector.look()
    text = exposition(figures)
    if textfile is None:  # a program gets the names unchanged, and a terminal gets no control characters
        write(shown_lines(text.decode()).encode() if sys.stdout.isatty() else text)
    else:
        open_directory(textfile.parent).replace(textfile.name, text)
    return figures
