"""Shows a topic's part of the report page: partitions with pictures, throughput, changes, dead letters, settings. All
functions are pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakelog.report.attention import database_dead_letters_note, dead_letters_table, warning_list
from lakelog.report.drawing import age, draw_batch_sizes, draw_partition, draw_rates
from lakelog.report.facts import PartitionFacts, SegmentFacts, SegmentFate, TopicFacts
from lakelog.report.layout import data_table, figure, moment, row_head
from lakelog.report.markup import Child, Markup, element, escaped, joined
from lakelog.report.next_steps import next_steps
from lakelog.report.throughput import batch_sizes, rates
from lakelog.report.topic_changes import Change
from storage_engine.config import TopicConfig, as_text
from storage_engine.quantities import counted, shown_duration, shown_number, shown_size
from storage_engine.topic.chain.committing_process import shown_process
from storage_engine.topic.chain.topic_state import DroppedFile, Writer
from storage_engine.topic.ingest_reports import IngestReport, shown_report

MOST_PICTURES = 16
"""At most this many partitions of a topic, the largest ones, have a picture and a table of segments."""
MOST_SEGMENTS = 40
"""The most rows in a table of segments. Half of them are the oldest segments, half the newest."""
MOST_CHANGES = 50
"""A topic's table has at most this many changes, the newest ones."""
OPEN_ROWS = 15
"""The number of changes that are visible before the reader unfolds the table."""


def show_topic(facts: TopicFacts, now_ms: int) -> Markup:
    """The section about a topic. Ages are computed at now_ms."""
    pictured = sorted(facts.partitions, key=lambda each: each.state.size, reverse=True)[:MOST_PICTURES]
    partitions_not_pictured = len(facts.partitions) - len(pictured)
    return element(
        "section",
        element("h2", facts.name),
        _summary(facts),
        warning_list(facts.warnings) if facts.warnings else None,
        partitions_table(facts.partitions, now_ms),
        element("p", f"Below are the {MOST_PICTURES} largest of {shown_number(len(facts.partitions))} partitions.")
        if partitions_not_pictured else None,
        *(show_partition(facts.name, facts.config, each, now_ms) for each in sorted(pictured, key=lambda each: each.number)),
        _throughput(facts),
        _changes(facts),
        element("h3", "Dead letters"),
        dead_letters_table(facts.dead_letters) if facts.dead_letters else None,
        _dead_letters_note(facts),
        database_dead_letters_note(facts.database_dead_letters),
        element("h3", "Settings and upkeep"),
        _settings_table(facts),
        _queries_table(facts),
        _dropped_table(facts, now_ms),
        id=f"topic-{facts.name}", aria_label=f"Topic {facts.name}",
    )  # fmt: skip


def _summary(facts: TopicFacts) -> Markup:
    state = facts.state
    facts_of_state: dict[str, Child] = {
        "topic id": element("code", state.topic_id),
        "state": joined(["version ", shown_number(state.version), ", ", moment(state.written_ms), ": ", state.change]),
        "cleanup.policy": as_text(facts.config.cleanup_policy),
        "writer": _writer(state.writer),
    }
    rows = facts_of_state | ingest_row(facts.ingest)
    return element(
        "dl", *(joined([element("dt", name), element("dd", value)]) for name, value in rows.items()), class_="facts"
    )


def ingest_row(report: IngestReport | None) -> dict[str, Child]:
    """The row about the ingest that feeds a topic; empty without a report."""
    if report is None:
        return {}
    return {"ingest": joined([shown_report(report), "; reported ", moment(report.updated_ms)])}


def _writer(writer: Writer) -> Markup:
    if writer.query is None:
        return escaped(f"no streaming query writes to the topic; leader epoch {writer.epoch}")
    where = f", leader epoch {writer.epoch}, on {writer.host}, process {writer.pid}, since "
    return joined(["query ", element("code", writer.query), where, moment(writer.since_ms)])


def partitions_table(partitions: Sequence[PartitionFacts], now_ms: int) -> Markup:
    """A table of partitions: offsets, segments, sizes and ages. Ages are computed at now_ms."""

    def rows() -> Iterator[Sequence[Child]]:
        for each in partitions:
            part = each.state
            dirty = None if part.first_dirty_offset is None else shown_number(part.first_dirty_offset)
            newest = part.largest_timestamp
            yield (
                row_head(str(each.number)), shown_number(part.log_start_offset), shown_number(part.high_watermark), dirty,
                shown_number(part.epoch_at(part.high_watermark)), shown_number(len(part.segments)), shown_size(part.size),
                moment(newest), age(now_ms - newest) if newest >= 0 else None,
            )  # fmt: skip

    return data_table(
        "Partitions",
        ("partition", "log start offset", "high watermark", "first dirty offset", "leader epoch", "segments", "size",
         "newest record", "age"),
        rows(),
        words=("newest record", "age"),
    )  # fmt: skip


def show_partition(topic: str, config: TopicConfig, each: PartitionFacts, now_ms: int) -> Markup:
    """The picture, the next steps and the segments of a partition. Ages are computed at now_ms."""
    number = each.number
    if not each.segments:
        offset = shown_number(each.state.high_watermark)
        picture = element("p", f"No segments: the next record will have offset {offset}.", class_="quiet")
        return element("article", element("h3", f"Partition {number}"), picture)
    caption = f"Segments of partition {number}: the times of their newest records, and their sizes in bytes"
    return element(
        "article",
        element("h3", f"Partition {number}"),
        figure(draw_partition(topic, each, config, now_ms), caption),
        element("ul", *(element("li", step) for step in next_steps(config, each))),
        _segments_table(topic, each),
    )  # fmt: skip


def _segments_table(topic: str, facts: PartitionFacts) -> Markup:
    shown: Sequence[SegmentFacts] = facts.segments
    segments_not_listed = len(shown) - MOST_SEGMENTS
    if segments_not_listed > 0:
        shown = (*shown[: MOST_SEGMENTS // 2], *shown[-MOST_SEGMENTS // 2 :])

    def rows() -> Iterator[Sequence[Child]]:
        for each in shown:
            segment = each.segment
            yield (
                row_head(shown_number(segment.base_offset)), shown_number(segment.end_offset), shown_size(segment.size),
                moment(segment.largest_timestamp), age(each.age_ms), _fate(each), element("code", segment.name),
            )  # fmt: skip

    table = data_table(
        f"Segments of partition {facts.number}",
        ("base offset", "end offset", "size", "newest record", "age", "state", "file"),
        rows(),
        words=("newest record", "age", "state", "file"),
    )
    note = (
        element(
            "p",
            f"{counted(segments_not_listed, 'segment')} between the oldest and the newest {MOST_SEGMENTS // 2} are not listed;"
            f" `lakelog topics describe {topic}` shows all.",
        )
        if segments_not_listed > 0 else None
    )  # fmt: skip
    return element("details", element("summary", f"{counted(len(facts.segments), 'segment')} as a table"), table, note)


def _fate(each: SegmentFacts) -> str:
    text = str(each.fate)
    if each.deletion:
        text += f" by {each.deletion.rule}"
    return f"{text}, active" if each.active and each.fate is not SegmentFate.ACTIVE else text


def _throughput(facts: TopicFacts) -> Markup:
    changes = facts.history.changes
    rated = rates(changes)
    heading = element("h3", "Throughput")
    if sum(each.appends for each in rated) < 2:
        text = f"one append, of {shown_number(rated[0].records)} records" if rated else "no append"
        return joined([heading, element("p", f"The history has {text}, so there is no picture.", class_="quiet")])
    sizes = batch_sizes(changes)
    step = shown_duration((rated[0].end_ms - rated[0].start_ms) / 1000)
    span = joined([moment(rated[0].start_ms), " to ", moment(rated[-1].end_ms)])
    pictures = (
        (draw_rates(facts.name, rated), f"Records per second, in intervals of {step}"),
        (
            draw_batch_sizes(facts.name, sizes),
            "Records per append; if appends are close together, only the largest is shown",
        ),
    )
    return joined(
        [
            heading,
            *(figure(picture, caption, joined([", ", span])) for picture, caption in pictures),
        ]
    )


def _changes(facts: TopicFacts) -> Markup:
    changes = facts.history.changes
    shown = list(reversed(changes))[:MOST_CHANGES]

    def rows() -> Iterator[Sequence[Child]]:
        for each in shown:
            yield (
                row_head(shown_number(each.version)), moment(each.written_ms), each.what, shown_number(each.records), _rate(each),
                f"{'+' if each.bytes > 0 else ''}{shown_size(each.bytes)}",
                f"{'+' if each.segments > 0 else ''}{shown_number(each.segments)}",
                _writer_of(each), shown_process(each.committed_by),
            )  # fmt: skip

    notes = [f"The newest {MOST_CHANGES} of {shown_number(len(changes))} changes."] if len(changes) > len(shown) else []
    notes += [facts.history.older] if facts.history.older else []
    table = data_table(
        "Changes, the newest first",
        ("version", "written", "change", "records", "records/s", "bytes", "segments", "writer", "committed by"),
        rows(),
        words=("written", "writer", "committed by"),
        prose=("change",),
    )
    folded = element("details", element("summary", f"The newest {shown_number(len(shown))} changes as a table"), table)
    note = element("p", " ".join(notes), class_="quiet") if notes else None
    return joined([element("h3", "Changes"), folded if len(shown) > OPEN_ROWS else table, note])


def _writer_of(change: Change) -> str:
    """The epoch and the micro-batch, with the beginning of the query's id. The text of the change has the whole id."""
    batches = (f", batch {shown_number(batch)} of {query[:8]}…" for query, batch in change.batches.items())
    return f"epoch {change.writer.epoch}{''.join(batches)}"


def _rate(change: Change) -> str | None:
    """Records per second since the previous version."""
    if not change.records or not change.elapsed_ms or change.elapsed_ms < 0:
        return None
    return f"{change.records * 1000 / change.elapsed_ms:,.1f}"


def _dead_letters_note(facts: TopicFacts) -> Markup | None:
    if not facts.all_dead_letters:
        return element("p", "Some dead letters could not be counted; see the warnings.")
    if facts.dead_letters:
        return None
    none = "There are none in Delta tables." if facts.database_dead_letters else "There are none."
    return element("p", none, class_="quiet")


def _queries_table(facts: TopicFacts) -> Markup | None:
    queries = facts.state.queries
    if not queries:
        return None
    rows = (
        (row_head(query), shown_number(batch.batch_id) if batch.batch_id >= 0 else "none")
        for query, batch in queries.items()
    )
    return data_table("Streaming queries", ("query", "last batch"), rows)


def _settings_table(facts: TopicFacts) -> Markup:
    if not facts.state.configs:
        return element("p", "The topic has no settings of its own.", class_="quiet")
    rows = ((row_head(key), element("code", value)) for key, value in facts.state.configs.items())
    return data_table("The topic's own settings", ("key", "value"), rows, prose=("value",))


def _dropped_table(facts: TopicFacts, now_ms: int) -> Markup | None:
    dropped: dict[int, list[DroppedFile]] = {}
    for each in facts.state.dropped:
        dropped.setdefault(each.partition, []).append(each)
    if not dropped:
        return None
    delay_ms = facts.config.file_delete_delay_ms
    rows = (
        (
            row_head(str(number)), shown_number(len(files_)), moment(min(each.dropped_ms for each in files_)),
            shown_number(sum(now_ms - each.dropped_ms >= delay_ms for each in files_)),
        )
        for number, files_ in sorted(dropped.items())
    )  # fmt: skip
    return data_table(
        f"Dropped segments. Maintenance deletes the files of a segment {shown_duration(delay_ms / 1000)} after the drop",
        ("partition", "segments", "oldest dropped", "due"),
        rows,
        words=("oldest dropped",),
    )
