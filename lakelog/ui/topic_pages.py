"""Pages about a topic: partitions, settings, history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakelog.inspection.change_texts import change_text
from lakelog.optional import optional
from lakelog.report.attention import warning_list
from lakelog.report.drawing import pattern_definitions
from lakelog.report.facts import PartitionFacts, ReportWarning, WarningKind, collect_partitions
from lakelog.report.layout import data_table, moment, row_head
from lakelog.report.markup import Child, Markup, element, escaped, joined
from lakelog.report.overview import legend
from lakelog.report.topic_section import ingest_row, partitions_table, show_partition
from lakelog.ui.overview_pages import page_of
from lakelog.ui.parameters import Parameters
from lakelog.ui.rendering import Look, address, show
from lakelog.ui.root_look import totals_of
from lakelog.ui.site import Site
from storage_engine.config import LONG_MAX, TOPIC_KEYS, TopicConfig, as_text
from storage_engine.errors import LogError
from storage_engine.quantities import shown_number, shown_size
from storage_engine.storage.small_requests import results_of
from storage_engine.topic.chain.committing_process import shown_process
from storage_engine.topic.chain.history_file import VersionChange
from storage_engine.topic.chain.history_reader import HistoryReader
from storage_engine.topic.chain.topic_state import TopicState, Writer
from storage_engine.topic.ingest_reports import read_report
from storage_engine.topic.readers.consumer_files import read_consumers

with optional("starlette", "lakelog[ui]", "The command `lakelog ui`"):
    from starlette.requests import Request
    from starlette.responses import Response

PARTITIONS_OF_A_PAGE = 16
CHANGES_OF_A_PAGE = 25
CHANGES_OF_A_READER = 5


def topic(site: Site, request: Request, name: str) -> Response:
    """The page `/topics/TOPIC`: a part of its partitions, with pictures, next steps and warnings.

    Raises:
        ConfigError: a parameter is wrong.
        UnknownTopicError: there is no such topic.
        CorruptionError: the state of the topic is damaged.
    """
    topics = site.topics()
    state, now_ms = topics.state(name), site.now_ms()
    shown = page_of(request, len(state.partitions), PARTITIONS_OF_A_PAGE)
    numbers = range(shown.first, shown.end)
    consumers = read_consumers(topics.storage, state)
    warnings = [ReportWarning(WarningKind.UNREADABLE, name, str(error)) for error in consumers.damaged]
    ingest = read_report(topics.storage, state.writer.query)
    if ingest.error is not None:
        warnings.append(ReportWarning(WarningKind.UNREADABLE, name, str(ingest.error)))
    if (problem := site.settings_error()) is not None:
        text = f"{problem} This page assumes Kafka's defaults."
        warnings.append(ReportWarning(WarningKind.UNREADABLE, "broker settings", text))
    config, parts = TopicConfig(), tuple[PartitionFacts, ...]()
    try:
        config = topics.config(state)
        parts, found = collect_partitions(topics, state, consumers, numbers, now_ms)
        warnings += found
    except LogError as error:
        warnings.append(ReportWarning(WarningKind.UNREADABLE, name, str(error)))
    pictures = joined([show_partition(name, config, each, now_ms) for each in parts])
    values = {
        "name": name, "paging": shown,
        "facts": _summary(state, config) | ingest_row(ingest.report),
        "warnings": warning_list(warnings) if warnings else None,
        "table": partitions_table(parts, now_ms),
        "records": [(number, address("topics", name, "records", partition=number)) for number in numbers],
        "pictures": pictures, "legend": legend(), "patterns": pattern_definitions(),
    }  # fmt: skip
    return show(site, request, "topic", Look(name, name, "partitions", is_live=True), values)


def _summary(state: TopicState, config: TopicConfig) -> dict[str, Child]:
    totals = totals_of(state)
    return {
        "topic id": element("code", state.topic_id),
        "partitions": shown_number(totals.partitions),
        "segments": shown_number(totals.segments),
        "records appended": shown_number(totals.appended),
        "in the log": shown_size(totals.bytes),
        "newest record": moment(totals.newest_ms),
        "state": joined(["version ", shown_number(state.version), ", ", moment(state.written_ms), ": ", state.change]),
        "cleanup.policy": as_text(config.cleanup_policy),
        "writer": _writer(state.writer),
    }


def _writer(writer: Writer) -> Markup:
    if writer.query is None:
        return escaped(f"no streaming query writes to the topic; leader epoch {writer.epoch}")
    where = f", leader epoch {writer.epoch}, on {writer.host}, process {writer.pid}, since "
    return joined(["query ", element("code", writer.query), where, moment(writer.since_ms)])


def settings(site: Site, request: Request, name: str) -> Response:
    """The page `/topics/TOPIC/settings`: the value and the source of each setting, and a form to alter one.

    Raises:
        ConfigError: a parameter is wrong.
        UnknownTopicError: there is no such topic.
        CorruptionError: the state of the topic is damaged.
    """
    given = Parameters(request.query_params.multi_items())
    topics = site.exact_topics()
    state = topics.state(name)
    own, rest = list[Sequence[Child]](), list[Sequence[Child]]()
    for key, declared in TOPIC_KEYS.items():
        default = as_text(getattr(TopicConfig(), declared.name))
        of_root = as_text(getattr(topics.broker.topic_defaults, declared.name))
        value, source = (
            (state.configs[key], "topic") if key in state.configs
            else (of_root, "root" if of_root != default else "default")
        )  # fmt: skip
        cells = (row_head(key), element("code", value), source, element("code", default), declared.doc)
        (own if source == "topic" else rest).append(cells)
    unknown = ((row_head(key), element("code", text), "topic", None, None) for key, text in state.configs.items()
               if key not in TOPIC_KEYS)  # fmt: skip
    columns, words, prose = ("key", "value", "from", "default", "meaning"), ("value", "from", "default"), ("meaning",)
    values = {
        "name": name,
        "own": data_table("The topic's own settings", columns, [*own, *unknown], words=words, prose=prose),
        "rest": data_table("Other settings", columns, rest, words=words, prose=prose),
        "keys": list(TOPIC_KEYS), "chosen": given.text("key") or "", "is_done": given.text("done") == "1",
        "has_own": bool(state.configs),
    }  # fmt: skip
    look = Look(f"Settings of {name}", name, "settings", has_form=site.options.allow_changes)
    return show(site, request, "topic_settings", look, values)


def history(site: Site, request: Request, name: str) -> Response:
    """The page `/topics/TOPIC/history`: who changed what, and when; the newest version first.

    A version that cannot be read has a row with its error.

    Raises:
        ConfigError: a parameter is wrong.
        UnknownTopicError: there is no such topic.
        CorruptionError: the state of the topic is damaged.
    """
    given = Parameters(request.query_params.multi_items())
    topics = site.topics()
    newest = topics.state(name).version
    last = min(newest, given.whole("to", newest, 0, LONG_MAX))
    first = max(0, last - CHANGES_OF_A_PAGE + 1)

    def rows_of(versions: range) -> list[Sequence[Child]]:
        reader = HistoryReader(topics.storage, topics.chain(name))
        return [row for version in versions for row in _history_rows(reader, version)]

    parts = [range(start, min(start + CHANGES_OF_A_READER, last + 1))
             for start in range(first, last + 1, CHANGES_OF_A_READER)]  # fmt: skip
    rows = [row for found in results_of(topics.storage, rows_of, parts) for row in found]
    values = {
        "name": name, "newest": newest, "first": first, "last": last,
        "older": first - 1 if first else None,
        "newer": min(newest, last + CHANGES_OF_A_PAGE) if last < newest else None,
        "table": data_table(
            "Changes, the newest first",
            ("version", "written", "committed by", "epoch", "writer", "change", "partitions", "records", "bytes",
             "segments"),
            reversed(rows), words=("written", "committed by", "writer"), prose=("change",),
        ) if rows else None,
    }  # fmt: skip
    look = Look(f"History of {name}", name, "history", is_live=last == newest)
    return show(site, request, "history", look, values)


def _history_rows(reader: HistoryReader, version: int) -> Iterator[Sequence[Child]]:
    try:
        change = reader.change(version)
    except LogError as error:
        text = element("strong", "not readable: ") + escaped(str(error))
        yield (row_head(shown_number(version)), *[None] * 4, Markup(text), *[None] * 4)
    else:
        if change is not None:
            yield _change_row(change)


def _change_row(change: VersionChange) -> Sequence[Child]:
    writer, parts = change.writer, change.partitions
    return (
        row_head(shown_number(change.version)), moment(change.written_ms), shown_process(change.committed_by),
        shown_number(writer.epoch), None if writer.query is None else f"{writer.host} ({writer.pid})",
        joined(_lines(change_text(change))), _signed(len(parts)), _signed(sum(part.records for part in parts)),
        shown_size(sum(part.bytes for part in parts)) if any(part.bytes for part in parts) else None,
        _signed(sum(part.segments for part in parts)),
    )  # fmt: skip


def _lines(text: str) -> Iterator[Child]:
    for number, line in enumerate(text.split("\n")):
        if number:
            yield element("br")
        yield line


def _signed(number: int) -> str | None:
    return shown_number(number) if number else None
