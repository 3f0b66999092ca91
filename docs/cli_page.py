"""docs/CLI.md, made from the commands of lakelog/cli/app.py.

docs/generate.py writes the page. A test compares it with what this makes, so a command cannot change without its
documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import typer

from docs.markdown import table
from lakelog.cli.app import app

PAGE = Path(__file__).with_name("CLI.md")

_OPENING = """\
# The `lakelog` command

<!-- Made by `python -m docs.generate` (make docs). Change the commands in lakelog/cli/, not this page. -->

`lakelog` is the tool for topics and records. It needs no Spark. It is in `.venv/bin`, which `./spark-submit.sh` and
`make` create. Type `.venv/bin/lakelog`, or put it on your PATH: `export PATH="$PWD/.venv/bin:$PATH"`.
The Spark jobs are the commands of `./spark-submit.sh`; [OPERATIONS.md](OPERATIONS.md) describes them.

```sh
lakelog topics create clicks --partitions 2 --config retention.ms=86400000 --root R
echo '{"key": "a2V5", "value": "dmFsdWU="}' | lakelog append --topic clicks --root R
lakelog read --topic clicks --root R --from earliest --format table
lakelog offsets --topic clicks --root R --time -1
lakelog topics describe clicks --root R
lakelog report --root R --out report.html                # one HTML page without scripts
lakelog verify --root R
lakelog plan --topic clicks --root R                     # what cleaning would do to each segment, and why
lakelog consumers list --root R                          # who reads what, how far, and what waits for it
lakelog state history --topic clicks --root R            # who changed what, and when
lakelog broker describe --root R                         # the defaults of all topics, which the root keeps
lakelog doctor --root R                                  # whether this storage keeps what the guarantees rest on

lakelog topics export D --root R                         # a directory on which a stock Kafka broker can run
lakelog topics import D --root R                         # and back, with what the broker appended
lakelog read --kafka-dir D --topic clicks                # a broker's log directory; also offsets, verify and compact
lakelog dump --print-data-log D/clicks-0/*.log           # as Kafka's dump tool prints it
```

## What holds for every command

Almost every command takes these two options. The tables of the commands do not repeat them:
"""

_RULES = """\
A command ends with an exit status: 0 done, 1 error, 2 usage, 4 done but some parts failed. `verify` ends with 1 where it
found something wrong. Every error is one line: where, what was found, what to do.

`append` takes the lines that `read` prints. `read` gives committed records only, unless `--isolation read_uncommitted` is
given. Appends to several topics become visible at once in a transaction: `append --transactional`, or
`storage_engine.topic.append.transactions` in Python.

A topic that a broker wrote, of today or of 2013, can be read, checked and
imported: record batches and the messages of magic 0 and 1 before them, every codec, transactions.

The report shows each topic's segments over offsets and time, what retention and compaction would do next and why,
throughput, dead letters by reason, and warnings.
"""

_SHARED = ("--root", "--conf")
_COLUMNS = ("Option", "Value", "Default", "Meaning")
_KINDS = {bool: "flag", int: "whole number", float: "number", str: "text", Path: "path"}
_BOUND = 2**63 - 1


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The commands of a group and of the groups in it, by the words that call each."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command


def _annotation(parameter: Any) -> tuple[Any, bool]:
    """The type of a value, and whether the parameter takes several."""
    annotation = parameter.type_descriptor.annotation
    if get_origin(annotation) is list:
        return get_args(annotation)[0], True
    return annotation, False


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _kind(parameter: Any) -> str:
    annotation, several = _annotation(parameter)
    if issubclass(annotation, Enum):
        return " or ".join(f"`{each.value}`" for each in annotation)
    kind = _KINDS[annotation]
    low, high = (getattr(parameter, name, None) for name in ("min", "max"))
    if low is not None:
        kind += f", from {low} on" if high in {None, _BOUND} else f", {low} to {high}"
    return f"{kind}, several" if several else kind


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if parameter.envvar:
        return f"`{parameter.envvar}`"
    default = parameter.default
    if default is None or default is False or default == []:
        return ""
    return f"`{default.value if isinstance(default, Enum) else default}`"


def _name(parameter: Any) -> str:
    """As it is typed, with the name of its value."""
    metavar = (parameter.metavar or "").strip("[]{}.") or parameter.name.upper()
    if not _is_option(parameter):
        return metavar
    annotation, _ = _annotation(parameter)
    names = "/".join([*parameter.opts, *parameter.secondary_opts])
    if annotation is bool:
        return names
    return f"{names} {'|'.join(each.value for each in annotation) if issubclass(annotation, Enum) else metavar}"


def _usage(path: tuple[str, ...], command: Any) -> str:
    words = [*path]
    for parameter in sorted(command.params, key=_is_option):
        word = _name(parameter) + ("..." if _annotation(parameter)[1] else "")
        words.append(word if parameter.required else f"[{word}]")
    return " ".join(words)


def _row(parameter: Any) -> tuple[str, ...]:
    help_text = " ".join((parameter.help or "").split())
    name = f"`{parameter.opts[0]}`" if _is_option(parameter) else f"`{_name(parameter)}`"
    return name, _kind(parameter), _default(parameter), help_text


def _section(path: tuple[str, ...], command: Any) -> Iterator[str]:
    yield f"### {' '.join(path)}\n"
    for paragraph in (command.help or "").split("\n\n"):
        yield " ".join(paragraph.split()) + "\n"
    yield f"Usage: `{_usage(path, command)}`\n"
    rows = [_row(each) for each in command.params if each.opts[0] not in _SHARED]
    if rows:
        yield table(_COLUMNS, rows)


def render() -> str:
    """The page as it should be in docs/CLI.md."""
    main: Any = typer.main.get_command(app)
    found = list(_commands(main, ("lakelog",)))
    shared = {each.opts[0]: each for _, command in found for each in command.params}
    parts = [_OPENING, table(_COLUMNS, (_row(shared[name]) for name in _SHARED)), _RULES]
    for length, title in ((2, "## Records, cleaning and inspection\n"), (3, "")):
        parts += [title] if title else []
        group = ""
        for path, command in found:
            if len(path) != length:
                continue
            if length == 3 and path[1] != group:
                group = path[1]
                parts.append(f"## `lakelog {group}`\n\n{main.commands[group].help}\n")
            parts += _section(path, command)
    return "\n".join(parts)
