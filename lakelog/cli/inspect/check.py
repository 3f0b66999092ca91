"""`lakelog check`: compares a root with limits and prints the result for Nagios, Icinga and similar programs. The
command is a plugin of such monitoring programs.

The exit status is a PluginStatus, not an ExitStatus: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN. If the command line is
wrong, the root does not exist or the rules file is wrong, the status is UNKNOWN, too. The result is on standard output,
because the monitoring program shows nothing else. Only an error of the command line itself is on standard error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

from lakelog.cli.options import ConfOption, NowOption, RootOption, open_topics
from lakelog.cli.output import write_line
from storage_engine.errors import LogError

_UNKNOWN = 3


_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])
"""Every error of a command line. The class is click's, and newer releases of typer have their own copy of click."""


class PluginCommand(TyperCommand):
    """A command that ends with the status UNKNOWN if its command line is wrong."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except _UsageError as error:
            error.exit_code = _UNKNOWN
            raise


def check(
    rules: Annotated[
        Path | None,
        typer.Option(
            "--rules", metavar="FILE",
            help="A YAML file with limits. docs/MONITORING.md lists all keys. Default: the default limits in"
            " docs/MONITORING.md.",
        ),
    ] = None,
    now: NowOption = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """Compare the figures of topics and consumers with limits. The output has the format of a monitoring plugin.

    The first line is a summary with performance data. Each further line is a finding: lag of a consumer, an old export,
    overdue maintenance, little free space, a damaged state, an ingest that appends nothing, and so on. The exit status
    is 0 (OK), 1 (WARNING), 2 (CRITICAL) or 3 (UNKNOWN).
    """
    from lakelog.metrics.judging import judge
    from lakelog.metrics.plugin_output import plugin_lines, unknown_line, worst
    from lakelog.metrics.root_watch import RootWatch
    from lakelog.metrics.rules import read_rules

    try:
        limits = read_rules(rules)
        figures = RootWatch(open_topics(root, conf, examines=True)).look(now)
    except LogError as error:
        write_line(unknown_line(error))
        raise typer.Exit(_UNKNOWN) from None
    findings = judge(figures, limits)
    for line in plugin_lines(figures, limits, findings):
        write_line(line)
    raise typer.Exit(worst(findings))
