"""Shows the first part of the page: figures, warnings and topics of the root, and the legend of the pictures. All
functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakelog.report.attention import dead_letters_table, warning_list
from lakelog.report.drawing import draw_swatch
from lakelog.report.facts import RootFacts, SegmentFate
from lakelog.report.layout import data_table, moment, row_head
from lakelog.report.markup import Child, Markup, element
from storage_engine.config import as_text
from storage_engine.quantities import shown_number, shown_size

_MEANINGS = {
    SegmentFate.KEPT: "kept whole: the topic is not compacted",
    SegmentFate.CLEAN: "clean: compacted before",
    SegmentFate.DIRTY: "dirty: not compacted yet, and not due",
    SegmentFate.CLEANED_NEXT: "dirty, and compaction is due",
    SegmentFate.ACTIVE: "active: the newest segment, which grows",
    SegmentFate.DELETED_NEXT: "retention deletes it next",
}


def show_overview(facts: RootFacts) -> Markup:
    """The section about the whole root."""
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
            "Deleted topics whose files are not deleted yet",
            ("topic", "segments"),
            ((row_head(name), shown_number(segments)) for name, segments in facts.deleted),
        ) if facts.deleted else None,
        dead_letters_table(facts.of_no_topic, "Dead letters whose topic is unknown")
        if facts.of_no_topic else None,
        legend() if topics else None,
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


def legend() -> Markup:
    """What the patterns and lines of the pictures mean."""
    fates = (element("li", draw_swatch(fate), meaning) for fate, meaning in _MEANINGS.items())
    return element(
        "section",
        element("h3", "How to read the pictures"),
        element("ul", *fates, class_="legend"),
        element(
            "p",
            "In a partition's picture, offsets increase from left to right. In the upper part, a mark shows the time of"
            " the newest record of a segment; a hollow mark shows the last modification of a segment without timestamps;"
            " a triangle shows a time in the future. In the lower part, the height of a column shows the bytes of a"
            " segment. Narrow neighbouring segments of one kind are drawn as one shape, with the sum of their bytes."
            " Dashed lines show the present time, the time retention.ms ago, and the log start offset. Move the pointer"
            " to a shape to see its figures. The tables have the figures, too.",
            class_="quiet",
        ),
    )
