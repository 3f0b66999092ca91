"""`lakelog groups`: does what kafka-consumer-groups does, for the groups that read topics of a root.

A group is a named reader of a topic: a reader that joined through the Python API, an export, or a stream. The columns
and the words of the output are the same as in Kafka's tool. A column that has no meaning in Lakelog contains `-`. Every
line on standard output is a line that Kafka's tool also prints.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.options import ConfOption, RootOption, open_topics
from lakelog.cli.output import write, write_error, write_line
from lakelog.cli.topics.group_resets import (
    ResetRule,
    check_plans,
    chosen_rule,
    new_offsets,
    partitions_in_scope,
    read_plan,
)
from lakelog.cli.topics.group_tables import (
    exported_offsets,
    group_table,
    members_table,
    offsets_table,
    states_table,
    table_of_new_offsets,
)
from lakelog.terminal.text import shown_line
from storage_engine.errors import ExitStatus, LogError, StateError, UnknownConsumerError, UsageError

if TYPE_CHECKING:
    from storage_engine.topic.readers.consumer_files import Consumer
    from storage_engine.topic.readers.group_positions import GroupPosition
    from storage_engine.topic.topics import Topics

app = typer.Typer(help="List, describe, reset and delete the groups that read topics.", no_args_is_help=True)

_Group = Annotated[
    list[str] | None, typer.Option("--group", metavar="GROUP", help="The group; may be given several times.")
]
_AllGroups = Annotated[bool, typer.Option("--all-groups", help="All groups.")]


@app.command("list")
def list_(
    state: Annotated[bool, typer.Option("--state", help="Also print whether the group has an active member.")] = False,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Print the names of all groups."""
    topics = open_topics(root, conf)
    groups, failed = _groups(topics)
    if state:
        write(group_table({name: _state_of(topics, found) for name, found in groups.items()}).encode())
    else:
        for name in groups:
            write_line(name)
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)


@app.command("describe")
def describe(
    group: _Group = None,
    all_groups: _AllGroups = False,
    members: Annotated[bool, typer.Option("--members", help="Print the members instead of the positions.")] = False,
    state: Annotated[
        bool,
        typer.Option("--state", help="Print the state of the group instead of the positions."),
    ] = False,
    lag: Annotated[
        bool,
        typer.Option(
            "--lag",
            help="Also print the number, size and age of the unread records. To count these records, the command reads"
            " the unread part of the log.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per group and partition, with the figures of --lag.")
    ] = False,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Print the position and the lag of groups in each partition.

    LAG is the log end offset minus the group's position, as in Kafka. Compaction leaves gaps between offsets, so LAG
    may be larger than the number of unread records. With --lag, the table also has the number of unread records
    (RECORDS), the size of the batches that the group must read for them (BYTES), and the age of the oldest unread record
    in seconds (SECONDS).
    """
    topics = open_topics(root, conf)
    groups, failed = _groups(topics)
    named = _named(group, all_groups, groups)
    chosen = {name: groups[name] for name in named if name in groups}
    positions = {} if members or state else _positions(topics, chosen, lag or as_json)
    for name in named:
        found = groups.get(name)
        if found is None:
            raise _unknown(name)
        if as_json:
            for each in positions.get(name, ()):
                write_line(json.dumps(asdict(each), separators=(",", ":")))
            continue
        if _state_of(topics, found) == "Empty":
            print(f"\nConsumer group '{shown_line(name)}' has no active members.", file=sys.stderr)
        if state:
            write(states_table(name, _state_of(topics, found)).encode())
        elif members:
            active = {topic: each for topic, each in found.items() if each.is_active(topics.clock.now_ms())}
            counts = {topic: len(topics.state(topic).partitions) for topic in active}
            if active:
                write(members_table(name, active, counts).encode())
        elif name in positions:
            write(offsets_table(positions[name], lag).encode())
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)


@app.command("reset-offsets")
def reset_offsets(
    group: _Group = None,
    all_groups: _AllGroups = False,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC[:N,...]", help="A topic, or some of its partitions; may be repeated."),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All partitions that the group has read.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Reset to the log start offset.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Reset to the log end offset.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="Reset to the current offset.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="N", help="Reset to this offset.")] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Move by N offsets; a negative N moves back.")
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option("--by-duration", metavar="PnDTnHnMnS", help="Reset to the first record within this time span."),
    ] = None,
    to_datetime: Annotated[
        str | None, typer.Option("--to-datetime", metavar="TIME", help="A UTC time, such as 2026-01-31T12:00:00.000.")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="CSV", help="Reset to the offsets that --export printed.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing. This is the default.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Change the offsets.")] = False,
    export: Annotated[bool, typer.Option("--export", help="Print CSV instead of a table.")] = False,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Print new positions of groups; with --execute also set them.

    The command refuses a group with an active member. The command also refuses the group of an export or of a stream,
    because the position of such a group is stored in the table or in the checkpoint. An offset outside the log becomes
    the start or the end of the log.
    """
    rule = chosen_rule(to_earliest, to_latest, to_current, to_offset, shift_by, by_duration, to_datetime, from_file)
    if dry_run and execute:
        raise UsageError("--execute", "--dry-run is given, too", "Give only one of the two.")
    topics = open_topics(root, conf)
    groups, failed = _groups(topics)
    named = _named(group, all_groups, groups)
    chosen = {name: _new_offsets(topics, name, groups.get(name, {}), rule, topic, all_topics) for name in named}
    if rule.file is not None:
        check_plans(rule.file, chosen, all_groups=all_groups)
    if execute:
        from storage_engine.topic.readers.membership import set_positions

        for name, by_topic in chosen.items():
            for each, offsets in by_topic.items():
                set_positions(topics.storage, topics.state(each), name, offsets, topics.clock.now_ms())
    write((exported_offsets(chosen) if export else table_of_new_offsets(chosen)).encode())
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)


@app.command("delete")
def delete(
    group: _Group = None,
    all_groups: _AllGroups = False,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Delete groups with all their positions. The command refuses a group with an active member."""
    topics = open_topics(root, conf)
    from storage_engine.topic.readers import consumer_files as group_files

    groups, failed = _groups(topics)
    deleted = []
    for name in _named(group, all_groups, groups):
        try:
            if name not in groups:
                raise _unknown(name)
            if _state_of(topics, groups[name]) == "Stable":
                raise StateError(f"group {name}", "has an active member", "Stop this member first.")
            for topic in groups[name]:
                group_files.forget(topics.storage, topic, name)
            deleted.append(name)
        except LogError as error:
            write_error(error)
            failed = True
    if deleted:
        names = ", ".join(f"'{name}'" for name in deleted)
        write_line(
            f"These consumer groups were deleted successfully: {names}"
            if failed
            else f"Deletion of requested consumer groups ({names}) was successful."
        )
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL if deleted else ExitStatus.ERROR)


def _groups(topics: Topics) -> tuple[dict[str, dict[str, Consumer]], bool]:
    """All groups in the order of their names: by the group's name, and then by topic. The second value says whether a
    topic or a file could not be read. Standard error names each of these topics and files."""
    from lakelog.cli.options import readable_states
    from storage_engine.topic.readers.consumer_files import read_consumers

    found: dict[str, dict[str, Consumer]] = {}
    states, failed = readable_states(topics, None)
    for state in states:
        consumers = read_consumers(topics.storage, state)
        for error in consumers.damaged:
            write_error(error)
            failed = True
        for consumer in consumers.known:
            found.setdefault(consumer.name, {})[state.topic] = consumer
    return dict(sorted(found.items())), failed


def _named(group: list[str] | None, all_groups: bool, groups: dict[str, dict[str, Consumer]]) -> list[str]:
    if all_groups == bool(group):
        raise UsageError("--group", "found both" if group else "found none", "Give --group or --all-groups.")
    return list(dict.fromkeys(group)) if group else list(groups)


def _state_of(topics: Topics, found: dict[str, Consumer]) -> str:
    now_ms = topics.clock.now_ms()
    return "Stable" if any(consumer.is_active(now_ms) for consumer in found.values()) else "Empty"


def _positions(topics: Topics, groups: dict[str, dict[str, Consumer]], unread: bool) -> dict[str, list[GroupPosition]]:
    """The positions of these groups, by name. Each topic is read once, however many groups it has."""
    from storage_engine.topic.readers.group_positions import positions_of

    now_ms = topics.clock.now_ms()
    by_group: dict[str, list[GroupPosition]] = {}
    for topic in sorted({topic for found in groups.values() for topic in found}):
        consumers = [found[topic] for found in groups.values() if topic in found]
        for position in positions_of(topics.storage, topics.chain(topic), consumers, now_ms, unread=unread):
            by_group.setdefault(position.group, []).append(position)
    return by_group


def _new_offsets(
    topics: Topics, name: str, found: dict[str, Consumer], rule: ResetRule, topic: list[str] | None, all_topics: bool
) -> dict[str, dict[int, int]]:
    from storage_engine.topic.readers.membership import check_resettable

    plan = read_plan(rule.file, name) if rule.file else None
    chosen = partitions_in_scope(topics, found, topic, all_topics, plan)
    for each in chosen:
        if each in found:
            check_resettable(found[each], each, topics.clock.now_ms())
    return {
        each: new_offsets(topics, each, numbers, rule, found[each].positions if each in found else {}, plan)
        for each, numbers in chosen.items()
    }


def _unknown(name: str) -> UnknownConsumerError:
    return UnknownConsumerError(f"group {name}", "not found", "`lakelog groups list` shows the groups.")
