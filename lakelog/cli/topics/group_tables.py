"""Formats the tables of `lakelog groups`, with the columns, widths and words of Kafka's kafka-consumer-groups
(4.3.1)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from lakelog.terminal.text import shown_line

if TYPE_CHECKING:
    from storage_engine.topic.readers.consumer_files import Consumer
    from storage_engine.topic.readers.group_positions import GroupPosition

NewOffsets = Mapping[str, Mapping[str, Mapping[int, int]]]
"""New offsets by group, by topic and by partition."""
_CLIENT = "lakelog"
_WIDTH = 15


def group_table(states: Mapping[str, str]) -> str:
    """Groups with their states, for --list --state."""
    width = _width(map(shown_line, states)) + 10
    rows = [("GROUP", "STATE"), *((shown_line(name), state) for name, state in states.items())]
    return "".join(f"{name:<{width}} {state:<20}\n" for name, state in rows)


def offsets_table(positions: Sequence[GroupPosition], unread: bool) -> str:
    """The positions of one group.

    Args:
        unread: whether to add the columns about unread records.
    """
    group, topic = _width(shown_line(each.group) for each in positions), _width(each.topic for each in positions)
    member, host = _width(each.member for each in positions), _width(f"/{each.host}" for each in positions)
    rows: list[tuple[object, ...]] = [
        ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", *_unread_columns(unread))
    ]
    for each in positions:
        offsets = (_shown(each.current_offset), each.log_end_offset, _shown(each.lag))
        counted = _unread_values(each) if unread else ()
        rows.append((shown_line(each.group), each.topic, each.partition, *offsets, *counted))
    members = [("CONSUMER-ID", "HOST", "CLIENT-ID")]
    members += [(each.member, f"/{each.host}", _CLIENT) if each.member else ("-", "-", "-") for each in positions]
    lines = []
    for row, (consumer, place, client) in zip(rows, members, strict=True):
        numbers = " ".join(f"{value:<15}" for value in row[3:])
        lines.append(
            f"\n{row[0]:<{group}} {row[1]:<{topic}} {row[2]:<10} {numbers} {consumer:<{member}} {place:<{host}} {client}"
        )
    return "".join(lines) + "\n"


def members_table(group: str, active: Mapping[str, Consumer], partitions: Mapping[str, int]) -> str:
    """The members of one group. For each topic there is one member, which reads all partitions of the topic."""
    group = shown_line(group)
    name = _width([group])
    member, host = _width(each.member for each in active.values()), _width(f"/{each.host}" for each in active.values())
    rows = [("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS")]
    rows += [(group, each.member, f"/{each.host}", _CLIENT, str(partitions[topic])) for topic, each in active.items()]
    lines = (f"{a:<{name}} {b:<{member}} {c:<{host}} {d:<15} {e:<15} \n" for a, b, c, d, e in rows)
    return "\n" + "".join(lines)


def states_table(group: str, state: str) -> str:
    """The state of one group."""
    group = shown_line(group)
    rows = (
        ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"),
        (group, "-", "-", state, "1" if state == "Stable" else "0"),
    )
    return "".join(f"\n{a:<{_width([group])}} {b:<25} {c:<20} {d:<20} {e}" for a, b, c, d, e in rows) + "\n"


def table_of_new_offsets(chosen: NewOffsets) -> str:
    """The offsets after a reset. The reset is executed, or is only planned."""
    group, topic = _width(map(shown_line, chosen)), _width(each for topics in chosen.values() for each in topics)
    rows: list[tuple[object, ...]] = [("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")] if chosen else []
    rows += _rows(chosen)
    return "".join(f"\n{shown_line(str(a)):<{group}} {b:<{topic}} {c:<10} {d}" for a, b, c, d in rows) + "\n"


def exported_offsets(chosen: NewOffsets) -> str:
    """The offsets after a reset as CSV. For a single group, the column of the group is omitted."""
    return "".join(_csv_line(row[1:] if len(chosen) == 1 else row) for row in _rows(chosen)) + "\n"


def _csv_line(row: Sequence[object]) -> str:
    """A row as CSV, with the line end "\\n". The writer quotes a line end in a field only if its own line end contains
    the character, so it writes its default line end."""
    text = io.StringIO()
    csv.writer(text).writerow(row)
    return text.getvalue().removesuffix("\r\n") + "\n"


def _rows(chosen: NewOffsets) -> list[tuple[str, str, int, int]]:
    return [
        (group, topic, number, offset)
        for group, topics in chosen.items()
        for topic, offsets in sorted(topics.items())
        for number, offset in sorted(offsets.items())
    ]


def _unread_columns(unread: bool) -> tuple[str, ...]:
    return ("RECORDS", "BYTES", "SECONDS") if unread else ()


def _unread_values(position: GroupPosition) -> tuple[str, ...]:
    seconds = "-" if position.seconds is None else f"{position.seconds:.1f}"
    return _shown(position.records), _shown(position.bytes), seconds


def _shown(value: int | None) -> str:
    return "-" if value is None else str(value)


def _width(texts: Iterable[str]) -> int:
    return max(_WIDTH, *(len(text) for text in texts), 0)
