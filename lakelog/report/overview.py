"""Shows the first part of the page: figures, warnings and topics of the root, and how to read the pictures. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakelog.report.attention import dead_letters_table, warning_list
from lakelog.report.drawing import draw_swatch
from lakelog.report.facts import Fate, RootFacts
from lakelog.report.layout import data_table, moment, row_head
from lakelog.report.markup import Child, Markup, element
from storage_engine.config import as_text
from storage_engine.quantities import shown_number, shown_size

_MEANINGS = {
    Fate.KEPT: "kept whole: the topic is not compacted",
    Fate.CLEAN: "clean: compacted before",
    Fate.DIRTY: "dirty: not compacted yet, and not due",
    Fate.CLEANED_NEXT: "dirty, and compaction is due",
    Fate.ACTIVE: "active: the newest, which grows",
    Fate.DELETED_NEXT: "retention deletes it next",
}


def show_overview(facts: RootFacts) -> Markup:
    """The section on the root as a whole."""
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
        warning_list(facts.warnings),
        _topics_table(facts) if topics or facts.unreadable else element("p", "There is no topic under this root."),
        data_table(
            "Deleted topics whose files wait for their deletion",
            ("topic", "segments"),
            ((row_head(name), shown_number(segments)) for name, segments in facts.deleted),
        ) if facts.deleted else None,
        dead_letters_table(facts.of_no_topic, "Dead letters of which nobody knows the topic")
        if facts.of_no_topic else None,
        _legend() if topics else None,
        id="overview", aria_label="Overview",
    )  # fmt: skip


def _topics_table(facts: RootFacts) -> Markup:
    def rows() -> Iterator[Sequence[Child]]:
        for topic in facts.topics:
            newest = max((part.largest_timestamp for part in topic.state.partitions), default=-1)
            yield (
                row_head(topic.name, f"topic-{topic.name}"), as_text(topic.config.cleanup_policy),
                shown_number(len(topic.partitions)), shown_number(topic.segments), shown_number(topic.appended),
                shown_size(topic.size), shown_number(topic.dead), moment(newest), moment(topic.state.written_ms),
            )  # fmt: skip
        for name in facts.unreadable:
            yield (row_head(name), element("strong", "not readable"), *[None] * 7)

    return data_table(
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
