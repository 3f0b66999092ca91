"""The first page of a large root: it opens before all topics were read, and says what is missing."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from lakelog.ui.background.root_watcher import RootWatcher
from storage_engine.errors import ConfigError
from storage_engine.quantities import shown_moment, shown_size
from storage_engine.topic.topics import Topics
from tests.lakelog.metrics.roots import HOUR, MINUTE
from tests.lakelog.ui.background.gates import Gate, closed_gate
from tests.lakelog.ui.browsing import PATIENCE_SECONDS, Browser, PagesRoot
from tests.lakelog.ui.processes import pages

pytestmark = pytest.mark.posix("reads of files are delayed")


@pytest.fixture
def large(root: PagesRoot) -> PagesRoot:
    """Three topics. The topic `slow` is the last but one."""
    for name in ("early", "slow", "tail"):
        root.topic(name, 2)
        root.append(name, HOUR, HOUR)
        root.group(name, "billing", {0: 1})
    return root


@pytest.fixture
def gate(large: PagesRoot, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Every read of the topic `slow` waits for this gate."""
    with closed_gate() as gate:
        monkeypatch.setattr(large.storage, "read", gate.before(large.storage.read, "meta/slow/"))
        yield gate


def hurried(root: PagesRoot) -> Browser:
    """A browser whose pages do not wait for the figures. The first reading has begun."""
    site = root.site()
    site.patience_seconds = 0
    site.watcher.begin()
    return Browser(site)


def test_the_overview_shows_what_was_read_so_far_and_no_wrong_figure(large: PagesRoot, gate: Gate) -> None:
    browser = hurried(large)
    gate.wait_until_reached()

    page = browser.get("/")

    state = large.topics.state("early")
    size = shown_size(sum(part.size for part in state.partitions))
    newest = max(part.largest_timestamp for part in state.partitions)
    missing = dict.fromkeys(
        ("segments", "records appended", "in the log", "groups", "largest lag", "newest record", "last change"), "–"
    )
    assert page.tables["Topics"] == [
        {
            "topic": "early", "partitions": "2", "segments": "1", "records appended": "2", "in the log": size,
            "groups": "1", "largest lag": "1", "newest record": f"{shown_moment(newest)[:-5]}Z",
            "last change": f"{shown_moment(state.written_ms)[:-5]}Z",
        },
        {"topic": "slow", "partitions": "being read"} | missing,
        {"topic": "tail", "partitions": "being read"} | missing,
    ]  # fmt: skip
    assert page.facts == {
        "topics": "1 so far", "partitions": "2 so far", "segments": "1 so far", "records appended": "2 so far",
        "in the log": f"{size} so far", "groups": "1 so far", "asks for attention": "0 so far",
    }  # fmt: skip
    assert "2 topics are still being read. The sums do not contain these topics yet." in page.words
    assert "Nothing asks for attention so far." in page.words
    assert 'data-refresh-seconds="1"' in page.text

    gate.open()
    browser.site.patience_seconds = PATIENCE_SECONDS
    page = browser.get("/")

    assert (page.facts["topics"], page.facts["partitions"], page.facts["records appended"]) == ("3", "6", "6")
    assert [row["partitions"] for row in page.tables["Topics"]] == ["2", "2", "2"]
    assert "so far" not in page.words
    assert "still being read" not in page.words
    assert 'data-refresh-seconds="10"' in page.text


def test_a_topic_is_found_by_its_name_and_opened_before_it_was_read(large: PagesRoot, gate: Gate) -> None:
    browser = hurried(large)
    gate.wait_until_reached()
    assert [row["topic"] for row in browser.get("/?name=ai").tables["Topics"]] == ["tail"]
    assert [row["high watermark"] for row in browser.get("/topics/tail").tables["Partitions"]] == ["2", "0"]


def test_the_page_of_groups_says_that_groups_are_missing(large: PagesRoot, gate: Gate) -> None:
    browser = hurried(large)
    gate.wait_until_reached()
    page = browser.get("/groups")
    assert [row["topic"] for row in page.tables["Groups"]] == ["early"]
    assert "2 topics are still being read." in page.words
    gate.open()
    browser.site.patience_seconds = PATIENCE_SECONDS
    page = browser.get("/groups")
    assert [row["topic"] for row in page.tables["Groups"]] == ["early", "slow", "tail"]
    assert "still being read" not in page.words


def test_a_root_whose_topics_are_not_listed_yet_does_not_look_empty(
    large: PagesRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closed_gate() as listing:
        monkeypatch.setattr(large.storage, "entries", listing.before(large.storage.entries, "meta"))
        browser = hurried(large)
        listing.wait_until_reached()
        page, groups, plans = (browser.get(path) for path in ("/", "/groups", "/plans"))
        for each in (page, groups, plans):
            assert "The topics are being listed." in each.words
        assert "There is no topic" not in page.words
        assert "No group reads a topic of this root that was read so far." in groups.words
        assert page.facts["topics"] == "0 so far"


def test_earlier_figures_are_shown_with_their_time_while_newer_ones_are_read(
    root: PagesRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.topic("slow")
    browser = root.browser()
    assert browser.get("/").facts["records appended"] == "0"
    before = shown_moment(root.clock.now_ms())
    root.append("slow", MINUTE)
    root.clock.advance(HOUR)
    browser.site.patience_seconds = 0
    with closed_gate() as gate:
        monkeypatch.setattr(root.storage, "read", gate.before(root.storage.read, "meta/slow/"))
        page = browser.get("/")
    assert f"These figures were read at {before}. Newer figures are being read." in page.words
    assert page.facts["records appended"] == "0"
    browser.site.patience_seconds = PATIENCE_SECONDS
    page = browser.get("/")
    assert page.facts["records appended"] == "1"
    assert "Newer figures" not in page.words


def test_a_deleted_topic_is_neither_counted_nor_planned(root: PagesRoot) -> None:
    for name in ("gone", "kept"):
        root.topic(name)
    root.topics.delete("gone")
    browser = root.browser()
    assert browser.get("/").facts["topics"] == "1"
    page = browser.get("/plans")
    assert [row["topic"] for row in page.tables["Cleaning that is due"]] == ["kept"]
    assert "Not readable" not in page.words


def test_the_server_answers_before_the_topics_were_read(large: PagesRoot, gate: Gate) -> None:
    with pages(large) as address:
        gate.wait_until_reached()
        with urllib.request.urlopen(f"{address}/") as answer:
            assert "2 topics are still being read." in answer.read().decode().replace("</strong>", "")
        gate.open()


def test_the_first_look_waits_for_no_compiled_kernels(root: PagesRoot) -> None:
    root.topic("orders")
    root.append("orders", HOUR)
    code = (
        "import sys; from lakelog.opening import open_topics; from lakelog.ui import serving; from lakelog.ui.access.options"
        " import UiOptions; from storage_engine.topic.broker_settings import BrokerSettings; topics = open_topics(sys.argv[1],"
        " None, print); site = serving.Site(topics, BrokerSettings(), UiOptions(), print, 60); print(len(site.look().topics),"
        " sorted({'numba', 'pyarrow', 'deltalake'} & sys.modules.keys()))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(root.folder)], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ended.stdout, ended.stderr) == ("1 []\n", "")


def test_pages_that_ask_during_a_reading_share_the_next_one(large: PagesRoot, gate: Gate) -> None:
    begun = list[int]()

    def topics() -> Topics:
        begun.append(1)
        return large.topics

    watcher = RootWatcher(topics)
    watcher.begin()
    gate.wait_until_reached()
    for _ in range(5):
        assert not watcher.look(0).is_newest
    gate.open()
    assert watcher.look(PATIENCE_SECONDS).names == ["early", "slow", "tail"]
    assert len(begun) <= 3


def test_a_reading_that_fails_is_shown_and_the_next_one_is_not_affected(large: PagesRoot) -> None:
    problems = [ConfigError("place", "problem")]

    def topics() -> Topics:
        if problems:
            raise problems.pop()
        return large.topics

    watcher = RootWatcher(topics)
    with pytest.raises(ConfigError, match="place: problem"):
        watcher.look(PATIENCE_SECONDS)
    assert watcher.look(PATIENCE_SECONDS).names == ["early", "slow", "tail"]
