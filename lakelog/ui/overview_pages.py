"""Pages about the root: the overview, and the settings of the root and of the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakelog.optional import optional
from lakelog.report.layout import data_table, moment, row_head
from lakelog.report.markup import Child, Markup, element, joined
from lakelog.ui.parameters import Parameters
from lakelog.ui.rendering import Look, Paging, link, link_head, paging, show
from lakelog.ui.root_look import Attention, RootLook, TopicRow
from lakelog.ui.site import Site
from storage_engine.config import BROKER_KEYS, BrokerConfig, as_text
from storage_engine.quantities import counted, shown_number, shown_size
from storage_engine.topic.broker_settings import read_broker_settings

with optional("starlette", "lakelog[ui]", "The command `lakelog ui`"):
    from starlette.requests import Request
    from starlette.responses import Response

TOPICS_OF_A_PAGE = 100
MOST_ATTENTION = 50
"""At most this many findings are listed; further findings are only counted."""
LAST_PAGE = 1_000_000


def overview(site: Site, request: Request) -> Response:
    """The page `/`: sums, what asks for attention, and the topics.

    Raises:
        ConfigError: a parameter is wrong.
        NoRootError, StorageError: the root cannot be listed, or is an empty directory.
    """
    given = Parameters(request.query_params.multi_items())
    page = given.whole("page", 1, 1, LAST_PAGE)
    part = given.text("name") or ""
    look = site.look()
    names = [name for name in look.names if part.lower() in name.lower()]
    shown = paging(len(names), page, TOPICS_OF_A_PAGE)
    found = list(look.attention())
    values = {
        "seen": look,
        "tiles": _tiles(look, found),
        "attention": [_finding(each) for each in found[:MOST_ATTENTION]],
        "more_attention": max(0, len(found) - MOST_ATTENTION),
        "table": _topics_table(look, names[shown.first : shown.end]) if names else None,
        "paging": shown,
        "name": part,
        "all": len(look.names),
    }
    shown_as = Look("Overview", tab="overview", is_live=True, is_unfinished=not look.is_complete)
    return show(site, request, "overview", shown_as, values)


def _tiles(look: RootLook, found: Sequence[Attention]) -> dict[str, str]:
    """The sums. If topics are missing in the sums, each sum says so."""
    totals = [topic.totals for topic in look.topics]
    sums = {
        "topics": shown_number(len(look.names) - len(look.unread)),
        "partitions": shown_number(sum(each.partitions for each in totals)),
        "segments": shown_number(sum(each.segments for each in totals)),
        "records appended": shown_number(sum(each.appended for each in totals)),
        "in the log": shown_size(sum(each.bytes for each in totals)),
        "groups": shown_number(len({each.consumer.name for topic in look.topics for each in topic.consumers})),
        "asks for attention": shown_number(len(found)),
    }
    return sums if look.is_complete else {name: f"{value} so far" for name, value in sums.items()}


def _finding(each: Attention) -> Markup:
    if not each.topic:
        return joined([element("strong", each.kind), ": ", each.text])
    target = (
        link(f"{each.topic}, group {each.group}", "group", topic=each.topic, name=each.group)
        if each.group else link(each.topic, "topics", each.topic)
    )  # fmt: skip
    return joined([element("strong", each.kind), ", ", target, ": ", each.text])


def _topics_table(look: RootLook, names: Sequence[str]) -> Markup:
    rows = {topic.name: topic for topic in look.topics}
    return data_table(
        "Topics",
        ("topic", "partitions", "segments", "records appended", "in the log", "groups", "largest lag", "newest record",
         "last change"),
        (_topic_row(rows[name]) if name in rows
         else _row_without_figures(name, "not readable" if name in look.unreadable else "being read") for name in names),
        words=("newest record", "last change"),
    )  # fmt: skip


def _row_without_figures(name: str, why: str) -> Sequence[Child]:
    return (link_head(name, "topics", name), element("strong", why), *[None] * 7)


def _topic_row(topic: TopicRow) -> Sequence[Child]:
    totals, lag = topic.totals, topic.largest_lag
    return (
        link_head(topic.name, "topics", topic.name), shown_number(totals.partitions), shown_number(totals.segments),
        shown_number(totals.appended), shown_size(totals.bytes), shown_number(len(topic.consumers)),
        None if lag is None else shown_number(lag.lag), moment(totals.newest_ms), moment(topic.state.written_ms),
    )  # fmt: skip


def settings(site: Site, request: Request) -> Response:
    """The page `/settings`: the broker settings of the root, and the options of this server.

    Raises:
        CorruptionError: the stored settings are damaged.
    """
    topics = site.exact_topics()
    kept, in_force = read_broker_settings(topics.storage) or {}, topics.broker

    def rows() -> Iterator[Sequence[Child]]:
        for key in BROKER_KEYS:
            value, default = in_force.value_of(key), BrokerConfig().value_of(key)
            if key in kept or value != default:
                yield row_head(key), kept.get(key), as_text(value), as_text(default)

    options = site.options
    values = {
        "table": data_table(
            "Broker settings that differ from Kafka's defaults", ("key", "stored in the root", "in this server", "default"),
            rows(), words=("stored in the root", "in this server", "default"),
        ),
        "server": {
            "address": f"{options.host}, port {options.port}{', with TLS' if options.tls is not None else ''}",
            "further host names": ", ".join(options.host_names) or "none",
            "token": "required" if options.token is not None else "not required",
            "keys, values and headers": "shown (--show-values)" if options.show_values else "hidden",
            "changes": "allowed (--allow-changes)" if options.allow_changes else "not allowed",
            "refresh": f"every {counted(options.refresh_seconds, 'second')}",
        },
    }  # fmt: skip
    return show(site, request, "settings", Look("Settings", tab="settings"), values)


def page_of(request: Request, total: int, size: int) -> Paging:
    """The part of a list that the parameter `page` names.

    Raises:
        ConfigError: the parameter is wrong.
    """
    return paging(total, Parameters(request.query_params.multi_items()).whole("page", 1, 1, LAST_PAGE), size)
