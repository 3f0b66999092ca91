"""The page in a browser: wide and narrow, light and dark, opened from a file without a network.

Without a Chromium on PATH, npm installs one (scripts/install_chromium.py). Without npm, these tests are skipped, and a line
of the output says this. But `make test-browser` fails then.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lakelog.report.facts import RootFacts, collect_root
from lakelog.report.page import render
from tests.lakelog.report.chromium import Chromium, Page
from tests.lakelog.report.roots import DAY, HOUR, NOW, Root, partition, segments

pytestmark = pytest.mark.browser

TABLES = """[...document.querySelectorAll('table')].map(table => ({
    caption: table.caption.textContent,
    section: table.closest('section').id,
    rows: [...table.rows].map(row => [...row.cells].map(cell => cell.textContent)),
    heads: [...table.querySelectorAll('th')].every(cell => ['row', 'col'].includes(cell.scope)),
}))"""

PICTURES = """[...document.querySelectorAll('svg.picture')].map(picture => ({
    label: picture.getAttribute('aria-label'),
    role: picture.getAttribute('role'),
    shapes: [...picture.querySelectorAll('.block, .column')].map(shape => {
        const box = shape.getBoundingClientRect(), around = picture.getBoundingClientRect()
        const fill = getComputedStyle(shape).fill, pattern = /#([\\w-]+)/.exec(fill)
        return {
            width: box.width,
            height: box.height,
            inside: box.left >= around.left && box.right <= around.right + 1 && box.bottom <= around.bottom,
            filled: pattern ? document.getElementById(pattern[1]) !== null : fill.startsWith('rgb'),
            title: (shape.querySelector('title') ?? shape.parentNode.querySelector('title')).textContent,
        }
    }),
}))"""

CONTRASTS = """[...document.querySelectorAll('h1, h2, h3, p, td, th, caption, dt, dd, li, a, summary, .picture text')]
    .filter(each => each.textContent.trim() && each.checkVisibility())
    .map(each => {
        const style = getComputedStyle(each), colour = each.closest('svg') ? style.fill : style.color
        let around = each
        while (around && getComputedStyle(around).backgroundColor === 'rgba(0, 0, 0, 0)') around = around.parentElement
        return [colour, getComputedStyle(around ?? document.body).backgroundColor]
    }).map(pair => pair.join(' on ')).filter((pair, place, all) => all.indexOf(pair) === place)"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> RootFacts:
    """A root with something of everything."""
    root = Root(tmp_path_factory.mktemp("report") / "root")
    hours = [NOW - (60 - number) * 4 * HOUR for number in range(60)]
    many = segments(*range(1000, 61000, 1000), newest=hours)
    root.topic("clicks", partition(*many[:58]), partition(*segments(7)), partition(), retention_ms=str(6 * DAY))
    for batch, end in enumerate((58, 59, 60)):
        root.clock.advance(30_000)
        root.commit("clicks", partition(*many[:end]), partition(*segments(7 + batch)), query="q-1", batch=batch)
    latest = segments(10, 20, 30, 40)
    due, waiting = partition(*latest, first_dirty_offset=10), partition(*latest, first_dirty_offset=20)
    root.topic("latest", due, waiting.model_copy(update={"log_start_offset": 4}), cleanup_policy="compact")
    state = root.topic("torn", partition(*segments(10, 20, 30, newest=[NOW + DAY, -1, NOW])))
    root.file(state, 0, state.partitions[0].segments[0]).unlink()
    return collect_root(root.topics, (), NOW)


@pytest.fixture(scope="module")
def page(chromium: Chromium, facts: RootFacts, tmp_path_factory: pytest.TempPathFactory) -> Page:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(render(facts), "utf-8")
    return chromium.open(file.as_uri())


@pytest.fixture
def tables(page: Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.ask(TABLES)
    return found


def test_the_page_is_opened_from_its_file_asks_for_nothing_and_complains_of_nothing(page: Page) -> None:
    page.show()
    assert page.ask("document.title").startswith("Lakelog: ")
    assert page.requests == [page.ask("location.href")]
    assert page.requests[0].startswith("file:///")
    assert page.complaints == []


def test_tables_in_the_browser_say_what_the_states_say(tables: list[dict[str, Any]], facts: RootFacts) -> None:
    assert all(table["heads"] for table in tables)
    for topic in facts.topics:
        own = {table["caption"]: table["rows"][1:] for table in tables if table["section"] == f"topic-{topic.name}"}
        assert [row[:4] for row in own["Partitions"]] == [
            [
                str(number), f"{part.log_start_offset:,}", f"{part.high_watermark:,}",
                "–" if part.first_dirty_offset is None else f"{part.first_dirty_offset:,}",
            ]
            for number, part in enumerate(topic.state.partitions)
        ]  # fmt: skip
        assert [row[5] for row in own["Partitions"]] == [str(len(part.segments)) for part in topic.state.partitions]
        for number, part in enumerate(topic.state.partitions):
            listed = [row[0] for row in own.get(f"Segments of partition {number}", [])]
            bases = [f"{segment.base_offset:,}" for segment in part.segments]
            assert listed == (bases if len(bases) <= 40 else bases[:20] + bases[-20:])
        changes = [[f"{each.version}", f"{each.records:,}"] for each in reversed(topic.history.changes)]
        assert [[row[0], row[3]] for row in own["Changes, the newest first"]] == changes


def test_every_partition_with_segments_has_a_picture_that_can_be_seen(page: Page, facts: RootFacts) -> None:
    page.show()
    pictures = page.ask(PICTURES)
    labels = [picture["label"] for picture in pictures]
    for topic in facts.topics:
        for number, part in enumerate(topic.state.partitions):
            told = f"{topic.name}, partition {number}: {len(part.segments)} segment"
            assert any(label.startswith(told) for label in labels) == bool(part.segments)
    assert [label for label in labels if "over time" in label] == [
        "clicks: records per second over time", "clicks: records of an append over time"
    ]  # fmt: skip
    for picture in pictures:
        assert picture["role"] == "img"
        assert picture["shapes"]
        for shape in picture["shapes"]:
            assert shape["width"] > 1
            assert shape["height"] > 1
            assert shape["inside"]
            assert shape["filled"]
            assert shape["title"]


def test_shapes_are_painted(page: Page, tmp_path: Path) -> None:
    page.show()
    page.photograph(tmp_path / "with.png")
    page.ask("document.querySelectorAll('.block').forEach(each => each.style.visibility = 'hidden')")
    page.photograph(tmp_path / "without.png")
    page.ask("document.querySelectorAll('.block').forEach(each => each.style.visibility = '')")
    page.photograph(tmp_path / "again.png")
    assert (tmp_path / "with.png").read_bytes() == (tmp_path / "again.png").read_bytes()
    assert (tmp_path / "with.png").read_bytes() != (tmp_path / "without.png").read_bytes()


@pytest.mark.parametrize("width", [320, 400, 800, 1600])
def test_nothing_is_wider_than_the_window(page: Page, width: int) -> None:
    page.show(width=width)
    page.ask("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.ask("document.documentElement.scrollWidth") <= width
    hidden = """[...document.querySelectorAll('table, .picture')].filter(each => {
        const frame = each.closest('.wide')
        return each.scrollWidth > frame.clientWidth && getComputedStyle(frame).overflowX !== 'auto'
    }).length"""
    assert page.ask(hidden) == 0


@pytest.mark.parametrize("dark", [False, True])
def test_every_word_can_be_read_in_light_and_dark(page: Page, dark: bool) -> None:
    page.show(dark=dark)
    assert (luminance(page.ask("getComputedStyle(document.body).backgroundColor")) < 0.1) == dark
    pairs = page.ask(CONTRASTS)
    assert len(pairs) > 3
    for pair in pairs:
        text, paper = (luminance(colour) for colour in pair.split(" on "))
        contrast = (max(text, paper) + 0.05) / (min(text, paper) + 0.05)
        assert contrast >= 4.5, f"{pair} has a contrast of {contrast:.1f}"


def luminance(colour: str) -> float:
    """WCAG's relative luminance of an opaque CSS colour."""
    channels = [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
