"""Decides for `lakelog groups reset-offsets` which partitions are reset, and to which offsets. The rules are the same
as in Kafka's tool (GroupOffsetsResetter of 4.3.1).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lakelog.cli.output import write_error
from storage_engine.errors import UnknownTopicError, UsageError
from storage_engine.quantities import parse_moment

if TYPE_CHECKING:
    from storage_engine.topic.readers.consumer_files import Consumer
    from storage_engine.topic.readers.reader import PartitionReader
    from storage_engine.topic.topics import Topics

OffsetsOfFile = Mapping[str, Mapping[int, int]]
"""Offsets by topic and by partition."""
_DURATION = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?\d+)D)?"
    r"(?:T(?=[-+.\d])(?:(?P<hours>[-+]?\d+)H)?(?:(?P<minutes>[-+]?\d+)M)?(?:(?P<seconds>[-+]?\d+(?:\.\d{0,9})?)S)?)?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ResetRule:
    """One of Kafka's rules for new offsets.

    name: the name of its option.
    number: the argument of --to-offset and --shift-by.
    age: the argument of --by-duration.
    time_ms: the argument of --to-datetime.
    file: the argument of --from-file.
    """

    name: str
    number: int = 0
    age: timedelta = timedelta()
    time_ms: int = 0
    file: Path | None = None


def chosen_rule(
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_offset: int | None,
    shift_by: int | None,
    by_duration: str | None,
    to_datetime: str | None,
    from_file: Path | None,
) -> ResetRule:
    """The one rule that the options name.

    Raises:
        UsageError: the options name no rule or several, or an argument is wrong.
    """
    rules = [ResetRule("--to-earliest")] if to_earliest else []
    rules += [ResetRule("--to-latest")] if to_latest else []
    rules += [ResetRule("--to-current")] if to_current else []
    rules += [ResetRule("--to-offset", number=to_offset)] if to_offset is not None else []
    rules += [ResetRule("--shift-by", number=shift_by)] if shift_by is not None else []
    rules += [ResetRule("--by-duration", age=_duration(by_duration))] if by_duration is not None else []
    rules += [ResetRule("--to-datetime", time_ms=_moment(to_datetime))] if to_datetime is not None else []
    rules += [ResetRule("--from-file", file=from_file)] if from_file is not None else []
    if len(rules) != 1:
        found = " and ".join(rule.name for rule in rules) or "none"
        raise UsageError(
            "reset-offsets", f"expected one rule, found {found}",
            "Give one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, --by-duration, --to-datetime"
            " and --from-file.",
        )  # fmt: skip
    return rules[0]


def read_plan(path: Path, group: str) -> OffsetsOfFile:
    """Read the offsets of a group from a file with the output of --export. The file may have a column for the group.

    Raises:
        UsageError: the file cannot be read, or a line has another form.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:  # the names of groups can contain line ends
            lines = [row for row in csv.reader(file) if row]
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError("--from-file", f"{path} cannot be read: {error}") from None
    plan: dict[str, dict[int, int]] = {}
    for row in lines:
        try:
            *named, topic, partition, offset = row
            if named in ([], [group]):
                plan.setdefault(topic, {})[int(partition)] = int(offset)
        except ValueError:
            raise UsageError(
                "--from-file", f"found the line {','.join(row)!r} in {path}",
                "Each line is topic,partition,offset. If there are several groups, each line begins with the group.",
            ) from None  # fmt: skip
    return plan


def check_plans(path: Path, chosen: Mapping[str, OffsetsOfFile], *, all_groups: bool) -> None:
    """Check that a file has lines for the groups that are reset.

    Args:
        chosen: by group, the new offsets.
        all_groups: whether all groups are reset. Then groups without a line stay unchanged, but one group must have a
            line. Otherwise each group must have one.

    Raises:
        UsageError: the file lacks a line.
    """
    missing = [name for name, offsets in chosen.items() if not offsets]
    if missing and (not all_groups or len(missing) == len(chosen)):
        whom = "one of the groups" if all_groups else f"group {missing[0]}"
        raise UsageError(
            "--from-file", f"found no line for {whom} in {path}",
            "Give the file that --export printed for this group. `lakelog groups list` shows the groups.",
        )  # fmt: skip


def partitions_in_scope(
    topics: Topics,
    found: Mapping[str, Consumer],
    named: Sequence[str] | None,
    all_topics: bool,
    plan: OffsetsOfFile | None,
) -> dict[str, list[int]]:
    """The partitions to reset, by topic.

    Args:
        found: by topic, the group.
        named: the arguments of --topic: a topic, or topic:0,1.

    Raises:
        UsageError: the options name no topics, or --topic is wrong.
        UnknownTopicError: a topic or a partition does not exist.
    """
    if plan is not None:
        chosen = {topic: list(offsets) for topic, offsets in plan.items()}
    elif all_topics == bool(named):
        raise UsageError("--topic", "found both" if named else "found none", "Give --topic or --all-topics.")
    elif all_topics:
        chosen = {topic: list(consumer.positions) for topic, consumer in found.items()}
    else:
        chosen = {}
        for argument in named or ():
            topic, colon, numbers = argument.partition(":")
            chosen.setdefault(topic, []).extend(_numbers(argument, numbers) if colon else [])
            if not colon:
                chosen[topic].extend(range(len(topics.state(topic).partitions)))
    for topic, numbers_of_topic in chosen.items():
        count = len(topics.state(topic).partitions)
        for number in numbers_of_topic:
            if not 0 <= number < count:
                raise UnknownTopicError(f"topic {topic}", f"has partitions 0 to {count - 1}, but no partition {number}")
    return {topic: sorted(set(numbers_of_topic)) for topic, numbers_of_topic in sorted(chosen.items())}


def new_offsets(
    topics: Topics,
    topic: str,
    partitions: Sequence[int],
    rule: ResetRule,
    current: Mapping[int, int],
    plan: OffsetsOfFile | None,
) -> dict[int, int]:
    """The new offsets that a rule gives to partitions of a topic.

    Args:
        current: the positions of the group.

    Raises:
        UsageError: the rule shifts the position, and the group has no position in a partition.
    """
    from storage_engine.topic.chain.transaction_files import newest_decided
    from storage_engine.topic.readers.reader import PartitionReader

    chain = topics.chain(topic)
    state = newest_decided(topics.storage, chain)
    found = {}
    for number in partitions:
        reader = PartitionReader(topics.storage, chain, number, state)
        place = f"{topic}-{number}"
        if plan is not None:
            found[number] = _within(reader, place, plan[topic][number])
        else:
            found[number] = _new_offset(reader, place, rule, current.get(number), topics.clock.now_ms())
    return found


def _new_offset(reader: PartitionReader, place: str, rule: ResetRule, current: int | None, now_ms: int) -> int:
    part = reader.partition
    match rule.name:
        case "--to-earliest":
            return part.log_start_offset
        case "--to-current" if current is not None:
            return current
        case "--to-offset":
            return _within(reader, place, rule.number)
        case "--shift-by":
            if current is None:
                raise UsageError(
                    "--shift-by",
                    f"Cannot shift offset for partition {place} since there is no current committed offset",
                )
            return _within(reader, place, current + rule.number)
        case "--to-datetime" | "--by-duration":
            by_age = rule.name == "--by-duration"
            time_ms = now_ms - int(rule.age / timedelta(milliseconds=1)) if by_age else rule.time_ms
            found = reader.offset_at(max(0, time_ms))
            if found is not None:
                return found[0]
            topic, _, number = place.rpartition("-")
            write_error(f"Partition {number} from topic {topic} is empty. Falling back to latest known offset.")
    return part.high_watermark


def _within(reader: PartitionReader, place: str, offset: int) -> int:
    """The offset, moved to the nearer end of the log if it is outside."""
    start, end = reader.partition.log_start_offset, reader.partition.high_watermark
    if start <= offset <= end:
        return offset
    nearest, what = (end, "higher than latest") if offset > end else (start, "lower than earliest")
    write_error(f"New offset ({offset}) is {what} offset for topic partition {place}. Value will be set to {nearest}.")
    return nearest


def _numbers(argument: str, numbers: str) -> list[int]:
    try:
        return [int(number) for number in numbers.split(",")]
    except ValueError:
        raise UsageError(
            "--topic", f"found {argument!r}", "Expected a topic, or a topic and partitions: t:0,1."
        ) from None


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    parts = (
        {name: float(value) for name, value in found.groupdict().items() if value and name != "sign"} if found else {}
    )
    try:
        if found is None or not parts:
            raise ValueError
        return timedelta(**parts) * (-1 if found["sign"] == "-" else 1)
    except (ValueError, OverflowError):
        raise UsageError("--by-duration", f"found {text!r}", "Expected a duration such as P1DT2H or PT30M.") from None


def _moment(text: str) -> int:
    try:
        return parse_moment(text)
    except ValueError:
        raise UsageError(
            "--to-datetime", f"found {text!r}", "Expected a time such as 2026-01-31T12:00:00.000."
        ) from None
