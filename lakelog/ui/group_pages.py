"""Pages about groups: all groups with lag and status, and one group with its lag over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakelog.metrics.consumer_status import ConsumerStatus
from lakelog.optional import optional
from lakelog.report.layout import data_table, figure, moment, row_head
from lakelog.report.markup import Child, Markup, element
from lakelog.terminal.text import shown_line
from lakelog.ui.lag_picture import draw_lag, draw_trend
from lakelog.ui.overview_pages import page_of
from lakelog.ui.parameters import Parameters
from lakelog.ui.rendering import Look, link, link_head, show
from lakelog.ui.root_look import MOST_PROBES, ConsumerRow, Probes, consumer_rows
from lakelog.ui.site import Site
from storage_engine.errors import UnknownConsumerError
from storage_engine.quantities import shown_duration, shown_number
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.readers.consumer_files import ACTIVE_MS, Consumer, Consumers, read_consumers

with optional("starlette", "lakelog[ui]", "The command `lakelog ui`"):
    from starlette.requests import Request
    from starlette.responses import Response

GROUPS_OF_A_PAGE = 100
PARTITIONS_OF_A_PAGE = 100
MEANINGS = {
    ConsumerStatus.OK: "reads, or has read everything",
    ConsumerStatus.WARN: "reads, but the lag grows",
    ConsumerStatus.STOP: "has not committed for a long time, and has unread records",
    ConsumerStatus.STALL: "commits the same position again and again",
    ConsumerStatus.REWIND: "has gone back to an earlier position",
}


def groups(site: Site, request: Request) -> Response:
    """The page `/groups`: all groups of all topics.

    Raises:
        ConfigError: a parameter is wrong.
        StorageError: the root cannot be listed.
    """
    look = site.look()
    rows = [each for topic in look.topics for each in topic.consumers]
    rows.sort(key=lambda each: (each.consumer.name, each.topic))
    shown = page_of(request, len(rows), GROUPS_OF_A_PAGE)
    values = {
        "table": groups_table(rows[shown.first : shown.end], look.now_ms, with_topics=True) if rows else None,
        "errors": [*look.unreadable.values(), *(error for topic in look.topics for error in topic.damaged)][:50],
        "meanings": MEANINGS, "paging": shown, "topic": "", "seen": look,
    }  # fmt: skip
    shown_as = Look("Groups", tab="groups", is_live=True, is_unfinished=not look.is_complete)
    return show(site, request, "groups", shown_as, values)


def groups_of_topic(site: Site, request: Request, topic: str) -> Response:
    """The page `/topics/TOPIC/groups`.

    Raises:
        UnknownTopicError: there is no such topic.
        CorruptionError: the state of the topic is damaged.
    """
    topics = site.topics()
    state = topics.state(topic)
    consumers, now_ms = read_consumers(topics.storage, state), site.now_ms()
    rows = sorted(
        consumer_rows(topics, state, consumers, now_ms, Probes(MOST_PROBES)), key=lambda each: each.consumer.name
    )
    shown = page_of(request, len(rows), GROUPS_OF_A_PAGE)
    values = {
        "table": groups_table(rows[shown.first : shown.end], now_ms, with_topics=False) if rows else None,
        "errors": list(consumers.damaged)[:50], "meanings": MEANINGS, "paging": shown, "topic": topic,
        "seen": None,
    }  # fmt: skip
    return show(site, request, "groups", Look(f"Groups of {topic}", topic, "groups", is_live=True), values)


def groups_table(rows: Sequence[ConsumerRow], now_ms: int, *, with_topics: bool) -> Markup:
    """A row for each group of each topic.

    Args:
        now_ms: the time for ages, in milliseconds since 1970.
        with_topics: whether the table has a column with the topic.
    """

    def cells(each: ConsumerRow) -> Iterator[Child]:
        consumer = each.consumer
        yield link_head(consumer.name, "group", topic=each.topic, name=consumer.name)
        if with_topics:
            yield link(each.topic, "topics", each.topic)
        yield consumer.kind
        yield element("strong", str(each.status)) if each.status is not ConsumerStatus.OK else str(each.status)
        yield shown_number(each.lag)
        yield draw_trend(consumer.name, consumer.samples)
        yield f"{shown_duration(max(0, now_ms - consumer.updated_ms) / 1000)} ago"
        yield _member(consumer, now_ms)

    columns = (
        "group",
        *(["topic"] if with_topics else []),
        "kind",
        "status",
        "lag",
        "last commits",
        "updated",
        "read by",
    )
    words = {*columns} - {"lag"}
    return data_table("Groups", columns, (tuple(cells(each)) for each in rows), words=tuple(words))


def _member(consumer: Consumer, now_ms: int) -> str:
    return f"{consumer.member} on {consumer.host}" if consumer.is_active(now_ms) else "nobody"


def as_entered(name: str) -> str:
    """The name of a group in the form in which a user can read and enter it."""
    return " ".join(shown_line(name).split())


def group(site: Site, request: Request) -> Response:
    """The page `/group?topic=TOPIC&name=GROUP`: one group of one topic.

    Raises:
        ConfigError: a parameter is missing or wrong.
        UnknownTopicError, UnknownConsumerError: there is no such topic or group.
        CorruptionError: the state of the topic is damaged.
    """
    given = Parameters(request.query_params.multi_items())
    topic = given.required("topic", "Choose a group on the page Groups.")
    name = given.required("name", "Choose a group on the page Groups.")
    topics = site.topics()
    state = topics.state(topic)
    consumer = find_consumer(read_consumers(topics.storage, state), topic, name)
    now_ms = site.now_ms()
    (row,) = consumer_rows(topics, state, Consumers((consumer,)), now_ms, Probes(MOST_PROBES))
    shown = page_of(request, len(state.partitions), PARTITIONS_OF_A_PAGE)
    facts: dict[str, Child] = {
        "topic": link(topic, "topics", topic),
        "kind": consumer.kind,
        "status": f"{row.status}: {MEANINGS[row.status]}",
        "lag": shown_number(row.lag),
        "read by": _member(consumer, now_ms),
        "updated": moment(consumer.updated_ms),
        "registered": moment(consumer.registered_ms),
        "cleaning": "waits for this group, within limits" if consumer.holds_back else "does not wait for this group",
    }
    values = {
        "name": name, "entered_name": as_entered(name), "facts": facts,
        "picture": figure(draw_lag(name, consumer.samples), f"Lag of {name} at its last {len(consumer.samples)} commits")
        if consumer.samples else None,
        "samples": _samples_table(consumer) if consumer.samples else None,
        "positions": _positions_table(consumer, state, range(shown.first, shown.end)),
        "paging": shown, "is_active": consumer.is_active(now_ms), "active_minutes": ACTIVE_MS // 60_000,
    }  # fmt: skip
    can_change = site.options.allow_changes
    look = Look(f"Group {name}", topic, "groups", is_live=not can_change, has_form=can_change)
    return show(site, request, "group", look, values)


def find_consumer(consumers: Consumers, topic: str, name: str) -> Consumer:
    """A consumer by its name.

    Raises:
        CorruptionError: there is no such consumer, and a file of a consumer is damaged.
        UnknownConsumerError: there is no such consumer.
    """
    found = next((each for each in consumers.known if each.name == name), None)
    if found is None:
        for error in consumers.damaged:
            raise error
        raise UnknownConsumerError(f"topic {topic}", f"has no group {name!r}", "The page Groups lists all groups.")
    return found


def _samples_table(consumer: Consumer) -> Markup:
    rows = (
        (
            element("th", moment(each.ms), scope="row"), shown_number(each.position), shown_number(each.end),
            shown_number(max(0, each.end - each.position)),
        )
        for each in reversed(consumer.samples)
    )  # fmt: skip
    columns = ("committed", "sum of the positions", "sum of the log ends", "lag")
    return data_table("The last commits, the newest first", columns, rows)


def _positions_table(consumer: Consumer, state: TopicState, numbers: range) -> Markup:
    def rows() -> Iterator[Sequence[Child]]:
        for number in numbers:
            part, position = state.partitions[number], consumer.positions.get(number)
            first = max(part.log_start_offset, position or 0)
            yield (
                row_head(str(number)), None if position is None else shown_number(position),
                shown_number(part.high_watermark),
                shown_number(max(0, part.high_watermark - (part.log_start_offset if position is None else position))),
                link("records", "topics", state.topic, "records", partition=number, offset=min(first, part.high_watermark)),
            )  # fmt: skip

    columns = ("partition", "position", "log end offset", "lag", "next records")
    return data_table("Positions", columns, rows(), words=("next records",))
