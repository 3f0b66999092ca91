"""Writes findings as a monitoring plugin prints them. All functions are pure.

    LAKELOG WARNING: 1 warning; 2 topics | topics=2;;;0 ...
    WARNING: topic orders, group billing: ...

The first line has the worst status, and the performance data after a `|`. Each further line is one finding. If a name
contains a `|`, the `|` is printed as an escape, because a plain `|` would begin performance data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from lakelog.metrics.figures import RootFigures, lag_seconds
from lakelog.metrics.judging import CheckFinding, PluginStatus
from lakelog.metrics.rules import Limit, Rules
from storage_engine.quantities import counted
from storage_engine.topic.readers.consumer_files import EXPORT_KINDS

_NO_LIMIT = Limit()


def worst(findings: Sequence[CheckFinding]) -> PluginStatus:
    """The exit status."""
    return max((each.status for each in findings), default=PluginStatus.OK)


def plugin_lines(root: RootFigures, rules: Rules, findings: Sequence[CheckFinding]) -> list[str]:
    """The lines of a monitoring plugin."""
    statuses = Counter(each.status for each in findings)
    counts = [f"{statuses[PluginStatus.CRITICAL]} critical"] if statuses[PluginStatus.CRITICAL] else []
    counts += [counted(statuses[PluginStatus.WARNING], "warning")] if statuses[PluginStatus.WARNING] else []
    summary = ", ".join(counts) or ("nothing is wrong" if not findings else "the root cannot be read")
    number = len(root.topics) + len(root.unreadable)
    first = f"LAKELOG {worst(findings).name}: {summary}; {counted(number, 'topic')}"
    data = " ".join(_performance(root, rules))
    lines = [_text(f"{each.status.name}: {each.place}: {each.text}") for each in findings]
    return [f"{first} | {data}", *lines]


def unknown_line(problem: object) -> str:
    """The only line if the check could not be made."""
    return _text(f"LAKELOG {PluginStatus.UNKNOWN.name}: {' '.join(str(problem).split())}")


def _performance(root: RootFigures, rules: Rules) -> Iterator[str]:
    yield _datum("topics", len(root.topics) + len(root.unreadable))
    yield _datum("unreadable topics", len(root.unreadable), limit=Limit(critical=0))
    if root.free_bytes is not None and root.capacity_bytes:
        percent = round(100 * root.free_bytes / root.capacity_bytes, 1)
        yield _datum("free", percent, "%", rules.disk_free_percent, below=True)
        yield _datum("free bytes", root.free_bytes, "B", rules.disk_free_bytes, below=True)
    for topic in root.topics:
        own = rules.of_topic(topic.name)
        most = max((part.segments for part in topic.partitions), default=0)
        yield _datum(f"{topic.name} segments", most, limit=own.partition_segments)
        yield _datum(f"{topic.name} bytes", sum(part.bytes for part in topic.partitions), "B")
        yield _datum(f"{topic.name} commits", topic.version + 1, "c")
        for consumer in topic.consumers:
            if consumer.name in rules.ignore_consumers:
                continue
            is_export = consumer.kind in EXPORT_KINDS
            records = own.export_lag_records if is_export else own.lag_records
            yield _datum(f"{topic.name} {consumer.name} lag", consumer.unread, limit=records)
            if (age := lag_seconds(root, consumer.unread, consumer.oldest_unread_ms)) is not None:
                seconds = own.export_lag_seconds if is_export else own.lag_seconds
                yield _datum(f"{topic.name} {consumer.name} lag seconds", age, "s", seconds)


def _datum(label: str, value: float, unit: str = "", limit: Limit = _NO_LIMIT, *, below: bool = False) -> str:
    """One value: 'label'=value[unit];[warning];[critical];[least]. `N` is the range from 0 to N, `N:` from N on."""
    warning, critical = (
        "" if each is None else f"{each:.15g}{':' if below else ''}" for each in (limit.warning, limit.critical)
    )
    shown = _text(label).replace("=", "\\x3d").replace("'", "''")
    return f"'{shown}'={value:.15g}{unit};{warning};{critical};0"


def _text(text: str) -> str:
    """Text in which no character has a meaning for the program that reads the output."""
    return text.replace("|", "\\x7c")
