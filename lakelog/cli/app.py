"""Combines all commands into one tool, `lakelog`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from lakelog.cli.clean import compact, log_manager, merge, plan, recover, retain
from lakelog.cli.inspect import check, doctor, dump, metrics, report, ui, verify
from lakelog.cli.kafka_tools import configs, log_dirs, perf
from lakelog.cli.kafka_tools.kafka_options import accepting
from lakelog.cli.records import append, delete_records, offsets, read, transactions
from lakelog.cli.tables import prove, schema
from lakelog.cli.topics import broker, consumers, groups, state, topics

app = typer.Typer(
    name="lakelog",
    help="Kafka topics without a Kafka broker: create, fill, read and inspect them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # brackets are not markup, and paragraphs are wrapped
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(topics.app, name="topics")
app.add_typer(broker.app, name="broker")
app.add_typer(transactions.app, name="transactions")
app.add_typer(state.app, name="state")
app.add_typer(consumers.app, name="consumers")
app.add_typer(groups.app, name="groups")
app.add_typer(perf.app, name="perf")
app.add_typer(schema.app, name="schema")
app.command("append")(append.append)
app.command("read")(read.read)
app.command("offsets", cls=accepting("offsets"))(offsets.offsets)
app.command("dump", cls=accepting("dump"))(dump.dump)
app.command("check", cls=check.PluginCommand)(check.check)
app.command("compact")(compact.compact)
app.command("delete-records", cls=accepting("delete-records"))(delete_records.delete_records)
app.command("configs", cls=accepting("configs"))(configs.configs)
app.command("doctor")(doctor.doctor)
app.command("log-dirs", cls=accepting("log-dirs"))(log_dirs.log_dirs)
app.command("log-manager")(log_manager.log_manager)
app.command("merge")(merge.merge)
app.command("metrics")(metrics.metrics)
app.command("plan")(plan.plan)
app.command("prove")(prove.prove)
app.command("recover")(recover.recover)
app.command("report")(report.report)
app.command("retain")(retain.retain)
app.command("ui")(ui.ui)
app.command("verify")(verify.verify)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        from lakelog.cli.output import write_line

        write_line(f"lakelog {version('lakelog')}")
        raise typer.Exit


_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]*:")
"""How a URI begins."""


@app.callback()
def lakelog(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Kafka topics without a Kafka broker: create, fill, read and inspect them."""


@cache
def command() -> Callable[..., object]:
    """The whole tool, as a function that takes a command line. A process makes this function only once, because making
    it takes longer than many commands.
    """
    made = typer.main.get_command(app)
    _list_whole_sentences(made)
    _refuse_uris(made)
    return made


def _list_whole_sentences(group: object) -> None:
    """Show the first paragraph of each command's help in a list of commands. Typer would cut the paragraph off at some
    45 characters.
    """
    for each in getattr(group, "commands", {}).values():
        each.short_help = " ".join((each.help or "").split("\n\n")[0].split())
        _list_whole_sentences(each)


def _refuse_uris(group: object) -> None:
    """Refuse a URI in each argument and option that is a local path, in all commands. Without this check, a command
    would use or create a folder of this name, such as `s3:`, in the current directory.
    """
    for each in getattr(group, "commands", {}).values():
        _refuse_uris(each)
    for parameter in getattr(group, "params", ()):
        annotation = parameter.type_descriptor.annotation
        if Path in (annotation, *get_args(annotation)):
            parameter.callback = _local_path


def _local_path(context: Any, parameter: Any, value: Path | Sequence[Path] | None) -> Any:
    """Check the value of an argument or option that is a local path. The message does not contain the URI, because it can
    contain a password.

    Raises:
        BadParameter: the value is a URI.
    """
    for path in (value,) if isinstance(value, Path) else value or ():
        if len(path.parts) > 1 and _SCHEME.fullmatch(path.parts[0]):
            raise typer.BadParameter(
                f"found a URI that begins with {path.parts[0]}/. Only a path on this host is possible here. If a folder"
                f" on this host has the name {path.parts[0]}, give its absolute path.",
                ctx=context, param=parameter,
            )  # fmt: skip
    return value
