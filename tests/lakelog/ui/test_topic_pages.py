"""The pages of a topic: partitions, settings, history."""

from __future__ import annotations

import os

import pytest

from storage_engine.quantities import shown_moment, shown_number, shown_size
from storage_engine.topic.chain.history_reader import HistoryReader
from tests.lakelog.metrics.roots import DAY, HOUR, MINUTE
from tests.lakelog.ui.browsing import PagesRoot

pytestmark = pytest.mark.posix("the files of the root are changed")


def test_the_page_of_a_topic_shows_its_partitions_and_segments(root: PagesRoot) -> None:
    root.topic("orders", 2, retention_ms=str(DAY))
    for age in (3 * DAY, 2 * HOUR, HOUR):
        state = root.append("orders", age, age)
    page = root.browser().get("/topics/orders")
    assert page.facts["topic id"] == state.topic_id
    assert page.facts["records appended"] == "6"
    assert page.facts["writer"] == "no streaming query writes to the topic; leader epoch 0"
    part = state.partitions[0]
    assert [list(row.values())[:3] for row in page.tables["Partitions"]] == [["0", "0", "6"], ["1", "0", "0"]]
    segments = page.tables["Segments of partition 0"]
    assert [row["base offset"] for row in segments] == [shown_number(each.base_offset) for each in part.segments]
    assert [row["size"] for row in segments] == [shown_size(each.size) for each in part.segments]
    assert segments[0]["state"] == "deleted next by time"
    assert 'role="img" aria-label="orders, partition 0: 3 segments' in page.text
    assert "Retention deletes 1 segment next" in page.words
    assert "No segments: the next record will have offset 0." in page.words
    assert "/topics/orders/records?partition=1" in page.links


def test_partitions_are_divided_into_pages(root: PagesRoot) -> None:
    root.topic("orders", 40)
    browser = root.browser()
    pages = [browser.get(f"/topics/orders?page={page}").tables["Partitions"] for page in (1, 2, 3)]
    assert [row["partition"] for page in pages for row in page] == [str(number) for number in range(40)]
    assert "/topics/orders?page=2" in browser.get("/topics/orders").links


def test_settings_show_value_source_and_default(root: PagesRoot) -> None:
    root.topic("orders", retention_ms="3600000")
    page = root.browser().get("/topics/orders/settings")
    (own,) = page.tables["The topic's own settings"]
    assert (own["key"], own["value"], own["from"], own["default"]) == ("retention.ms", "3600000", "topic", "604800000")
    others = {row["key"]: row for row in page.tables["Other settings"]}
    assert (others["cleanup.policy"]["value"], others["cleanup.policy"]["from"]) == ("delete", "default")
    assert '<form method="post"' not in page.text


def test_history_shows_who_changed_what(root: PagesRoot) -> None:
    root.topic("orders")
    root.take_over("orders", "query-1")
    root.append("orders", MINUTE)
    root.topics.alter("orders", 3, {"retention.ms": "5"})
    page = root.browser().get("/topics/orders/history")
    rows = page.tables["Changes, the newest first"]
    reader = HistoryReader(root.storage, root.topics.chain("orders"))
    expected = list(reader.changes(0, 3))[::-1]
    assert [row["version"] for row in rows] == ["3", "2", "1", "0"]
    assert [row["written"] for row in rows] == [f"{shown_moment(each.written_ms)[:-5]}Z" for each in expected]
    assert [row["records"] for row in rows] == ["–", "1", "–", "–"]
    assert rows[0]["change"] == "altered (retention.ms=5)"
    assert rows[0]["writer"] == f"{expected[0].writer.host} ({expected[0].writer.pid})"
    assert rows[3]["change"] == "created with 1 partitions"
    found = expected[0].committed_by
    assert found is not None
    assert rows[0]["committed by"] == f"{found.program}, {found.user} on {found.host} ({os.getpid()})"


def test_history_is_divided_into_pages(root: PagesRoot) -> None:
    root.topic("orders")
    for number in range(60):
        root.topics.alter("orders", None, {"retention.ms": str(number)})
    browser = root.browser()
    page, versions = browser.get("/topics/orders/history"), list[str]()
    while True:
        versions += [row["version"] for row in page.tables["Changes, the newest first"]]
        older = [link for link in page.links if "history?to=" in link]
        if versions[-1] == "0":
            break
        page = browser.get(older[-1])
    assert versions == [str(number) for number in range(60, -1, -1)]


def test_a_damaged_old_version_has_a_row_with_its_error(root: PagesRoot) -> None:
    root.topic("orders")
    for number in range(3):
        root.topics.alter("orders", None, {"retention.ms": str(number)})
    path = root.folder / "meta/orders/00000000000000000001.json"
    path.write_bytes(path.read_bytes().replace(b"altered", b"forged!"))
    rows = root.browser().get("/topics/orders/history").tables["Changes, the newest first"]
    assert [row["version"] for row in rows] == ["3", "2", "1", "0"]
    assert rows[2]["change"].startswith("not readable: meta/orders/00000000000000000001.json at position 0: expected ")
    assert rows[0]["change"] == "altered (retention.ms=2)"


@pytest.mark.parametrize("tab", ["", "/records", "/groups", "/dead-letters", "/plan", "/history", "/settings"])
@pytest.mark.parametrize("name", ["unknown", "not%20a%20name", "%3Cscript%3E", "..%2F..%2Fetc", "gone"])
def test_an_unknown_topic_is_not_found(root: PagesRoot, name: str, tab: str) -> None:
    root.topic("gone")
    root.topics.delete("gone")
    page = root.browser().get(f"/topics/{name}{tab}")
    assert page.status == 404
    assert "<script>" not in page.text


def test_an_unknown_page_is_not_found(root: PagesRoot) -> None:
    page = root.browser().get("/nothing")
    assert (page.status, page.facts["found"]) == (404, "there is no such page")
    assert root.browser().get("/static/..%2f..%2fpyproject.toml").status == 404
