"""Values to one HTML page: the overview, then each topic with its pictures and tables. Pure.

The page is whole in itself: its style and pictures are in it, it asks for no font, script or address, and its policy
forbids that it could. What a table leaves out for its length is said below it; no figure stands only in a picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files

from storage_engine.cleaner.selection import Bound, CleaningPlan, Reason
from storage_engine.config import TopicConfig
from storage_engine.log.retention import RetentionPlan, Rule
from storage_engine.quantities import counted, shown_duration, shown_moment, shown_number, shown_size
from storage_engine.report.dead_letters import DeadLetters, Kind
from storage_engine.report.drawing import (
    age,
    draw_batch_sizes,
    draw_partition,
    draw_rates,
    draw_swatch,
    pattern_definitions,
)
from storage_engine.report.facts import Fate, PartitionFacts, RootFacts, SegmentFacts, TopicFacts, Warned
from storage_engine.report.history import Change
from storage_engine.report.markup import Child, Markup, element, escaped, joined
from storage_engine.report.throughput import batch_sizes, rates
from storage_engine.topic.state import DroppedFile, Writer

MOST_PICTURES = 16
"""How many partitions of a topic have a picture and a table of segments: the largest."""
MOST_SEGMENTS = 40
"""How many rows a table of segments has: half of them the oldest, half the newest."""
MOST_CHANGES = 50
"""How many changes a topic's table has, the newest."""
MOST_WARNINGS = 50
OPEN_ROWS = 15
"""How many changes are shown without being asked for."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_MEANINGS = {
    Fate.KEPT: "kept whole: the topic is not compacted",
    Fate.CLEAN: "clean: compacted before",
    Fate.DIRTY: "dirty: not compacted yet, and not due",
    Fate.CLEANED_NEXT: "dirty, and compaction is due",
    Fate.ACTIVE: "active: the newest, which grows",
    Fate.DELETED_NEXT: "retention deletes it next",
}


def render(facts: RootFacts) -> str:
    """The page as HTML."""
    title = f"Lakelog: {facts.uri}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(files("storage_engine.report").joinpath("page.css").read_text("utf-8"))),
    )
    body = element(
        "body",
        pattern_definitions(),
        element(
            "header",
            element("h1", "Lakelog report"),
            element("p", element("code", facts.uri)),
            element("p", "As of ", _time(facts.now_ms), ". All times are UTC.", class_="quiet"),
        ),
        element("main", _overview(facts), *(_topic(topic, facts.now_ms) for topic in facts.topics)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


# --- The overview ---------------------------------------------------------------------------------------------------


def _overview(facts: RootFacts) -> Markup:
    topics = facts.topics
    tiles = {
        "topics": shown_number(len(topics) + len(facts.unreadable)),
        "partitions": shown_number(sum(len(topic.partitions) for topic in topics)),
        "segments": shown_number(sum(topic.segments for topic in topics)),
        "records appended": shown_number(sum(topic.appended for topic in topics)),
        "in the log": shown_size(sum(topic.size for topic in topics)),
        "dead letters": shown_number(facts.dead),
        "stale rows": shown_number(sum(each.count for topic in topics for each in topic.stale_rows)),
        "warnings": shown_number(len(facts.warnings)),
    }
    return element(
        "section",
        element("dl", *(element("div", element("dt", name), element("dd", value)) for name, value in tiles.items()),
                class_="tiles"),
        _warnings(facts.warnings),
        _topics_table(facts) if topics or facts.unreadable else element("p", "There is no topic under this root."),
        _table(
            "Deleted topics whose files wait for their deletion",
            ("topic", "segments"),
            ((_row_head(name), shown_number(segments)) for name, segments in facts.deleted),
        ) if facts.deleted else None,
        _dead_letters_table(facts.of_no_topic, "Dead letters of which nobody knows the topic")
        if facts.of_no_topic else None,
        _legend() if topics else None,
        id="overview", aria_label="Overview",
    )  # fmt: skip


def _warnings(warnings: Sequence[Warned]) -> Markup:
    if not warnings:
        return element("p", "No warnings: every topic could be read, and nothing asks for attention.")
    shown = [
        element("li", element("strong", str(each.finding)), ", ", element("code", each.place), ": ", each.text)
        for each in warnings[:MOST_WARNINGS]
    ]
    if len(warnings) > MOST_WARNINGS:
        shown.append(element("li", f"and {shown_number(len(warnings) - MOST_WARNINGS)} more"))
    return element("div", element("h3", "⚠ Warnings"), element("ul", *shown), class_="warned")


def _topics_table(facts: RootFacts) -> Markup:
    def rows() -> Iterator[Sequence[Child]]:
        for topic in facts.topics:
            newest = max((part.largest_timestamp for part in topic.state.partitions), default=-1)
            yield (
                _row_head(topic.name, f"topic-{topic.name}"), _policy(topic.config), shown_number(len(topic.partitions)),
                shown_number(topic.segments), shown_number(topic.appended), shown_size(topic.size),
                shown_number(topic.dead), _time(newest), _time(topic.state.written_ms),
            )  # fmt: skip
        for name in facts.unreadable:
            yield (_row_head(name), element("strong", "not readable"), *[None] * 7)

    return _table(
        "Topics",
        ("topic", "cleanup.policy", "partitions", "segments", "records appended", "in the log", "dead letters",
         "newest record", "last change"),
        rows(),
        words=("cleanup.policy", "newest record", "last change"),
    )  # fmt: skip


def _legend() -> Markup:
    fates = (element("li", draw_swatch(fate), meaning) for fate, meaning in _MEANINGS.items())
    return element(
        "section",
        element("h3", "How to read the pictures"),
        element("ul", *fates, class_="legend"),
        element(
            "p",
            "A partition's picture has its offsets from left to right. Above, a mark shows when the newest record of a"
            " segment is from; a hollow mark, when a segment without timestamps was last changed; a triangle, a time in"
            " the future. Below, a column is as high as the segment has bytes. Narrow neighbours of one kind are drawn"
            " as one, as high as their bytes together. Dashed lines are now, retention.ms ago, and the log start offset."
            " Rest the pointer on a shape for its figures; the tables have them, too.",
            class_="quiet",
        ),
    )


def _policy(config: TopicConfig) -> str:
    return ",".join(word for word, on in (("compact", config.compact), ("delete", config.delete)) if on)


# --- A topic --------------------------------------------------------------------------------------------------------


def _topic(facts: TopicFacts, now_ms: int) -> Markup:
    pictured = sorted(facts.partitions, key=lambda each: each.state.size, reverse=True)[:MOST_PICTURES]
    left_out = len(facts.partitions) - len(pictured)
    return element(
        "section",
        element("h2", facts.name),
        _summary(facts),
        _warnings(facts.warnings) if facts.warnings else None,
        _partitions_table(facts, now_ms),
        element("p", f"Below are the {MOST_PICTURES} largest partitions of {shown_number(len(facts.partitions))}.")
        if left_out else None,
        *(_partition(facts, each, now_ms) for each in sorted(pictured, key=lambda each: each.number)),
        _throughput(facts),
        _changes(facts),
        element("h3", "Dead letters"),
        _dead_letters_table(facts.dead_letters) if facts.dead_letters else None,
        _dead_letters_note(facts),
        element("h3", "Settings and upkeep"),
        _settings_table(facts),
        _queries_table(facts),
        _dropped_table(facts, now_ms),
        id=f"topic-{facts.name}", aria_label=f"Topic {facts.name}",
    )  # fmt: skip


def _summary(facts: TopicFacts) -> Markup:
    state = facts.state
    rows: dict[str, Child] = {
        "topic id": element("code", state.topic_id),
        "state": joined(["version ", shown_number(state.version), ", ", _time(state.written_ms), ": ", state.change]),
        "cleanup.policy": _policy(facts.config),
        "writer": _writer(state.writer),
    }
    return element(
        "dl", *(joined([element("dt", name), element("dd", value)]) for name, value in rows.items()), class_="facts"
    )


def _writer(writer: Writer) -> Markup:
    if writer.query is None:
        return escaped(f"no streaming query, leader epoch {writer.epoch}")
    where = f", leader epoch {writer.epoch}, on {writer.host}, process {writer.pid}, since "
    return joined(["query ", element("code", writer.query), where, _time(writer.since_ms)])


def _partitions_table(facts: TopicFacts, now_ms: int) -> Markup:
    def rows() -> Iterator[Sequence[Child]]:
        for each in facts.partitions:
            part = each.state
            dirty = None if part.first_dirty_offset is None else shown_number(part.first_dirty_offset)
            newest = part.largest_timestamp
            yield (
                _row_head(str(each.number)), shown_number(part.log_start_offset), shown_number(part.high_watermark), dirty,
                shown_number(part.epoch_at(part.high_watermark)), shown_number(len(part.segments)), shown_size(part.size),
                _time(newest), age(now_ms - newest) if newest >= 0 else None,
            )  # fmt: skip

    return _table(
        "Partitions",
        ("partition", "log start offset", "high watermark", "first dirty offset", "leader epoch", "segments", "size",
         "newest record", "age"),
        rows(),
        words=("newest record", "age"),
    )  # fmt: skip


def _partition(facts: TopicFacts, each: PartitionFacts, now_ms: int) -> Markup:
    number = each.number
    if not each.segments:
        offset = shown_number(each.state.high_watermark)
        picture = element("p", f"No segments: the next record will have offset {offset}.", class_="quiet")
        return element("article", element("h3", f"Partition {number}"), picture)
    caption = f"Segments of partition {number}: when their newest record is from, and how many bytes they have"
    return element(
        "article",
        element("h3", f"Partition {number}"),
        _figure(draw_partition(facts.name, each, facts.config, now_ms), caption),
        element("ul", *(element("li", step) for step in _next_steps(facts.config, each))),
        _segments_table(facts.name, each),
    )  # fmt: skip


def _next_steps(config: TopicConfig, facts: PartitionFacts) -> Iterator[str]:
    """What maintenance would do to a partition now, and why."""
    yield f"Retention {_retention(facts.retention, config)}"
    if config.compact and facts.compaction is None:
        yield "Compaction could not be decided, see the warnings."
    elif facts.compaction is not None:
        yield f"Compaction {_compaction(facts.compaction, config)}"
    if facts.merges:
        merged = [segment for run in facts.merges for segment in run]
        size = shown_size(sum(segment.size for segment in merged))
        yield f"Merging makes {counted(len(facts.merges), 'segment')} of {shown_number(len(merged))} next, {size}."


def _retention(plan: RetentionPlan, config: TopicConfig) -> str:
    if not plan.deletions:
        limits = []
        if config.delete and config.retention_ms >= 0:
            limits.append(f"retention.ms is {shown_duration(config.retention_ms / 1000)}")
        if config.delete and config.retention_bytes >= 0:
            limits.append(f"retention.bytes is {shown_size(config.retention_bytes)}")
        text = f"has nothing to delete: {', '.join(limits) or 'it has no limit here'}."
    else:
        rules = [(rule, sum(each.rule is rule for each in plan.deletions)) for rule in Rule]
        taken = ", ".join(f"{shown_number(number)} by {rule}" for rule, number in rules if number)
        text = (
            f"deletes {counted(len(plan.deletions), 'segment')} next, {shown_size(plan.bytes)}: {taken}. The log then starts"
            f" at offset {shown_number(plan.log_start_offset)}."
        )
    if plan.blocked is not None:
        ahead = shown_duration(plan.blocked.ahead_ms / 1000)
        text += f" A time {ahead} in the future holds back {len(plan.blocked.overdue)} more."
    if plan.held is not None:
        text += f" {plan.held}."
    return text


def _compaction(plan: CleaningPlan, config: TopicConfig) -> str:
    ratio = f"{plan.dirty_ratio:.3f} of its bytes are dirty, min.cleanable.dirty.ratio is {config.min_cleanable_dirty_ratio:g}"
    waits = {
        Bound.ACTIVE_SEGMENT: "the active segment is never compacted",
        Bound.OPEN_TRANSACTION: "there a transaction is open",
        Bound.MIN_COMPACTION_LAG: f"min.compaction.lag.ms is {shown_duration(config.min_compaction_lag_ms / 1000)}",
    }[plan.bound]
    rest = f"From offset {shown_number(plan.first_uncleanable_offset)} on it has to wait: {waits}."
    if plan.reason is Reason.MAX_COMPACTION_LAG:
        why = (
            f"a dirty record is older than max.compaction.lag.ms, {shown_duration(config.max_compaction_lag_ms / 1000)}"
        )
    elif plan.reason is Reason.EXPIRED_HORIZONS:
        why = "it has tombstones or markers left that have outlived their delete horizon"
    else:
        why = ratio
    if plan.reason is not None:
        return f"goes through {counted(len(plan.segments), 'segment')} next, because {why}. {rest}"
    if not plan.dirty_bytes:
        return f"has nothing to clean. {rest}"
    return f"is not due: {why}. {rest}"


def _segments_table(topic: str, facts: PartitionFacts) -> Markup:
    shown: Sequence[SegmentFacts] = facts.segments
    left_out = len(shown) - MOST_SEGMENTS
    if left_out > 0:
        shown = (*shown[: MOST_SEGMENTS // 2], *shown[-MOST_SEGMENTS // 2 :])

    def rows() -> Iterator[Sequence[Child]]:
        for each in shown:
            segment = each.segment
            yield (
                _row_head(shown_number(segment.base_offset)), shown_number(segment.end_offset), shown_size(segment.size),
                _time(segment.largest_timestamp), age(each.age_ms), _fate(each), element("code", segment.name),
            )  # fmt: skip

    table = _table(
        f"Segments of partition {facts.number}",
        ("base offset", "end offset", "size", "newest record", "age", "state", "file"),
        rows(),
        words=("newest record", "age", "state", "file"),
    )
    note = (
        element(
            "p",
            f"{counted(left_out, 'segment')} between the oldest and the newest {MOST_SEGMENTS // 2} are left out;"
            f" `lakelog topics describe {topic}` shows all.",
        )
        if left_out > 0 else None
    )  # fmt: skip
    return element("details", element("summary", f"{counted(len(facts.segments), 'segment')} as a table"), table, note)


def _fate(each: SegmentFacts) -> str:
    text = str(each.fate)
    if each.deletion:
        text += f" by {each.deletion.rule}"
    return f"{text}, active" if each.active and each.fate is not Fate.ACTIVE else text


def _throughput(facts: TopicFacts) -> Markup:
    changes = facts.history.changes
    rated = rates(changes)
    heading = element("h3", "Throughput")
    if sum(each.appends for each in rated) < 2:
        text = f"One append of {shown_number(rated[0].records)} records is" if rated else "No append is"
        return joined([heading, element("p", f"{text} in the history: nothing to draw.", class_="quiet")])
    sizes = batch_sizes(changes)
    step = shown_duration((rated[0].end_ms - rated[0].start_ms) / 1000)
    span = joined([_time(rated[0].start_ms), " to ", _time(rated[-1].end_ms)])
    pictures = (
        (draw_rates(facts.name, rated), f"Records per second, in intervals of {step}"),
        (draw_batch_sizes(facts.name, sizes), "Records of an append: of the largest, where several are near"),
    )
    return joined(
        [
            heading,
            *(_figure(picture, caption, joined([", ", span])) for picture, caption in pictures),
        ]
    )


def _changes(facts: TopicFacts) -> Markup:
    changes = facts.history.changes
    shown = list(reversed(changes))[:MOST_CHANGES]

    def rows() -> Iterator[Sequence[Child]]:
        for each in shown:
            yield (
                _row_head(shown_number(each.version)), _time(each.written_ms), each.what, shown_number(each.records), _rate(each),
                f"{'+' if each.bytes > 0 else ''}{shown_size(each.bytes)}",
                f"{'+' if each.segments > 0 else ''}{shown_number(each.segments)}",
                _committer(each),
            )  # fmt: skip

    notes = [f"The newest {MOST_CHANGES} of {shown_number(len(changes))} changes."] if len(changes) > len(shown) else []
    notes += [facts.history.older] if facts.history.older else []
    table = _table(
        "Changes, the newest first",
        ("version", "written", "change", "records", "records/s", "bytes", "segments", "writer"),
        rows(),
        words=("written", "writer"),
        prose=("change",),
    )
    folded = element("details", element("summary", f"The newest {shown_number(len(shown))} changes as a table"), table)
    note = element("p", " ".join(notes), class_="quiet") if notes else None
    return joined([element("h3", "Changes"), folded if len(shown) > OPEN_ROWS else table, note])


def _committer(change: Change) -> str:
    """Epoch, and micro-batch of a query by the beginning of its id, which stands whole in the words of the change."""
    batches = (f", batch {shown_number(batch)} of {query[:8]}…" for query, batch in change.batches.items())
    return f"epoch {change.writer.epoch}{''.join(batches)}"


def _rate(change: Change) -> str | None:
    """Records per second since the version before."""
    if not change.records or not change.elapsed_ms or change.elapsed_ms < 0:
        return None
    return f"{change.records * 1000 / change.elapsed_ms:,.1f}"


def _dead_letters_table(letters: Sequence[DeadLetters], title: str = "Dead letters by reason") -> Markup:
    def rows() -> Iterator[Sequence[Child]]:
        for each in letters:
            ingest = each.kind is Kind.INGEST
            origin, place = ("query", "batch") if ingest else ("partition", "offset")
            yield (
                _row_head(", ".join(filter(None, (each.reason, each.outcome)))), str(each.kind),
                joined([f"{origin} ", element("code", each.origin)]),
                shown_number(each.count), f"{place} {shown_number(each.first)}", f"{place} {shown_number(each.last)}",
            )  # fmt: skip

    return _table(
        title,
        ("reason", "on the way by", "from", "dead letters", "first", "last"),
        rows(),
        words=("on the way by", "from"),
    )


def _dead_letters_note(facts: TopicFacts) -> Markup | None:
    if not facts.all_dead_letters:
        return element("p", "Not all could be counted, see the warnings.")
    return None if facts.dead_letters else element("p", "There are none.", class_="quiet")


def _queries_table(facts: TopicFacts) -> Markup | None:
    queries = facts.state.queries
    if not queries:
        return None
    rows = (
        (_row_head(query), shown_number(batch.batch_id) if batch.batch_id >= 0 else "none")
        for query, batch in queries.items()
    )
    return _table("Streaming queries", ("query", "last batch"), rows)


def _settings_table(facts: TopicFacts) -> Markup:
    if not facts.state.configs:
        return element("p", "The topic has no settings of its own.", class_="quiet")
    rows = ((_row_head(key), element("code", value)) for key, value in facts.state.configs.items())
    return _table("Settings of its own", ("key", "value"), rows, prose=("value",))


def _dropped_table(facts: TopicFacts, now_ms: int) -> Markup | None:
    dropped: dict[int, list[DroppedFile]] = {}
    for each in facts.state.dropped:
        dropped.setdefault(each.partition, []).append(each)
    if not dropped:
        return None
    delay_ms = facts.config.file_delete_delay_ms
    rows = (
        (
            _row_head(str(number)), shown_number(len(files_)), _time(min(each.dropped_ms for each in files_)),
            shown_number(sum(now_ms - each.dropped_ms >= delay_ms for each in files_)),
        )
        for number, files_ in sorted(dropped.items())
    )  # fmt: skip
    return _table(
        f"Dropped segments whose files wait: they go {shown_duration(delay_ms / 1000)} later, when maintenance runs",
        ("partition", "segments", "oldest dropped", "due"),
        rows,
        words=("oldest dropped",),
    )


# --- Pieces ---------------------------------------------------------------------------------------------------------


def _table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Child]],
    words: Sequence[str] = (),
    prose: Sequence[str] = (),
) -> Markup:
    """A table whose first column names the rows.

    Args:
        rows: cells in the order of the columns, a `_row_head` first; None for nothing to tell.
        words, prose: columns of a word or two, and of many, which wrap. The first column has words; those that are not
            named have numbers and are set to the right.
    """
    classes = [None, *("prose" if name in prose else None if name in words else "number" for name in columns[1:])]
    head = (element("th", name, scope="col", class_=class_) for name, class_ in zip(columns, classes, strict=True))
    body = (
        element(
            "tr",
            row[0],
            *(
                element("td", "–" if cell is None else cell, class_=class_)
                for cell, class_ in zip(row[1:], classes[1:], strict=True)
            ),
        )
        for row in rows
    )
    table = element(
        "table", element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body)
    )
    return element("div", table, class_="wide", tabindex=0, role="region", aria_label=caption)


def _figure(picture: Markup, caption: str, note: Child = None) -> Markup:
    """A picture, which a narrow window scrolls, and what it shows."""
    return element(
        "figure",
        element("div", picture, class_="wide", tabindex=0, role="region", aria_label=caption),
        element("figcaption", caption, note),
    )


def _row_head(text: str, target: str | None = None) -> Markup:
    return element("th", element("a", text, href=f"#{target}") if target else text, scope="row")


def _time(ms: int) -> Child:
    """A time to the second for people, exactly for machines; nothing where there is none."""
    if ms < 0:
        return None
    exact = shown_moment(ms)
    if not exact.endswith("Z"):  # no calendar reaches there
        return f"{exact} ms"
    return element("time", f"{exact[:-5]}Z", datetime=exact.replace(" ", "T"))
