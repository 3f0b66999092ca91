"""Renders values as one HTML page: the overview, then each topic with its pictures and tables. All functions are pure.

The page is complete: it contains its style and pictures, and loads nothing else, for example no font and no script. The
page's content security policy forbids the page to load anything. If a long table omits rows, a line below the table
states this. Each number that a picture shows is also in the text.
"""

from __future__ import annotations

from importlib.resources import files

from lakelog.report.drawing import pattern_definitions
from lakelog.report.facts import RootFacts
from lakelog.report.layout import moment
from lakelog.report.markup import Markup, element
from lakelog.report.overview import show_overview
from lakelog.report.topic_section import show_topic

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def render(facts: RootFacts, reload_seconds: int | None = None) -> str:
    """The page as HTML.

    Args:
        reload_seconds: a browser that shows the page loads it again after this time; None for never.
    """
    title = f"Lakelog: {facts.uri}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        None if reload_seconds is None else element("meta", http_equiv="refresh", content=reload_seconds),
        element("title", title),
        element("style", Markup(files("lakelog.report").joinpath("page.css").read_text("utf-8"))),
    )
    body = element(
        "body",
        pattern_definitions(),
        element(
            "header",
            element("h1", "Lakelog report"),
            element("p", element("code", facts.uri)),
            element("p", "As of ", moment(facts.now_ms), ". All times are UTC.", class_="quiet"),
        ),
        element("main", show_overview(facts), *(show_topic(topic, facts.now_ms) for topic in facts.topics)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"
