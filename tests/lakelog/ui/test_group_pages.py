"""The pages about groups: lag, status, and the lag over time."""

from __future__ import annotations

import re
from typing import Any

import pytest

import lakelog
from storage_engine.quantities import shown_moment
from storage_engine.topic.readers.membership import join
from tests.lakelog.metrics.roots import HOUR, MINUTE
from tests.lakelog.ui.browsing import PagesRoot

pytestmark = pytest.mark.posix("the files of the root are changed")


@pytest.fixture
def with_groups(root: PagesRoot) -> PagesRoot:
    root.topic("orders", 2)
    root.append("orders", *[3 * HOUR] * 10)
    root.append("orders", *[3 * HOUR] * 5, partition=1)
    root.group_with("orders", "billing", {0: 4, 1: 5}, (9 * MINUTE, 3, 15), (5 * MINUTE, 6, 15), (MINUTE, 9, 15))
    root.group_with("orders", "stalled", {0: 3}, (9 * MINUTE, 3, 15), (5 * MINUTE, 3, 15), (MINUTE, 3, 15))
    root.export("orders", {0: 10, 1: 5})
    root.topic("other")
    root.append("other", MINUTE)
    root.group("other", "billing", {0: 1})
    return root


def test_all_groups_are_listed_with_lag_and_status(with_groups: PagesRoot) -> None:
    rows = with_groups.browser().get("/groups").tables["Groups"]
    found = [{name: row[name] for name in ("group", "topic", "kind", "status", "lag", "updated")} for row in rows]
    assert found == [
        {"group": "billing", "topic": "orders", "kind": "group", "status": "OK", "lag": "6", "updated": "1 min ago"},
        {"group": "billing", "topic": "other", "kind": "group", "status": "OK", "lag": "0", "updated": "0.0 s ago"},
        {"group": "export tables/orders", "topic": "orders", "kind": "delta export", "status": "OK", "lag": "0",
         "updated": "0.0 s ago"},
        {"group": "stalled", "topic": "orders", "kind": "group", "status": "STALL", "lag": "12", "updated": "1 min ago"},
    ]  # fmt: skip
    assert {row["read by"] for row in rows} == {"nobody"}


def test_lag_and_positions_are_those_of_the_api(with_groups: PagesRoot) -> None:
    page = with_groups.browser().get("/group?topic=orders&name=billing")
    expected = [each for each in lakelog.open(with_groups.folder).topic("orders").groups() if each.group == "billing"]
    rows = page.tables["Positions"]
    assert [(row["partition"], row["position"], row["log end offset"], row["lag"]) for row in rows] == [
        (str(each.partition), str(each.current_offset), str(each.log_end_offset), str(each.lag)) for each in expected
    ]
    assert page.facts["lag"] == str(sum(each.lag or 0 for each in expected)) == "6"
    assert page.facts["status"] == "OK: reads, or has read everything"
    assert page.facts["cleaning"] == "does not wait for this group"
    assert "/topics/orders/records?partition=0&offset=4" in page.links


def test_the_lag_over_time_is_drawn_and_listed(with_groups: PagesRoot) -> None:
    page = with_groups.browser().get("/group?topic=orders&name=billing")
    now = with_groups.clock.now_ms()
    assert page.tables["The last commits, the newest first"] == [
        {"committed": f"{shown_moment(now - age)[:-5]}Z", "sum of the positions": position, "sum of the log ends": "15",
         "lag": lag}
        for age, position, lag in ((MINUTE, "9", "6"), (5 * MINUTE, "6", "9"), (9 * MINUTE, "3", "12"))
    ]  # fmt: skip
    assert len(re.findall('<circle cx="[0-9.]+" cy="[0-9.]+" r="4" class="mark">', page.text)) == 3
    assert 'aria-label="Lag of billing: 12 at first, 6 at the last of 3 commits"' in page.text


def test_an_active_member_is_named(root: PagesRoot) -> None:
    state = root.topic("orders")
    join(root.storage, state, "billing", "member-1", "host-1", root.clock.now_ms())
    page = root.browser().get("/group?topic=orders&name=billing")
    assert page.facts["read by"] == "member-1 on host-1"


def test_the_groups_of_a_topic_are_those_of_the_topic_only(with_groups: PagesRoot) -> None:
    browser = with_groups.browser()
    rows = browser.get("/topics/other/groups").tables["Groups"]
    assert [row["group"] for row in rows] == ["billing"]
    with_groups.topic("lonely")
    assert "No group reads this topic." in browser.get("/topics/lonely/groups").words


@pytest.mark.parametrize(
    ("query", "status", "place"),
    [
        ("", 400, "parameter topic"),
        ("?topic=orders", 400, "parameter name"),
        ("?topic=orders&name=unknown", 404, "topic orders"),
        ("?topic=unknown&name=billing", 404, "topic unknown"),
        ("?topic=..&name=billing", 404, "topic '..'"),
    ],
)
def test_an_unknown_group_is_not_found(with_groups: PagesRoot, query: str, status: int, place: str) -> None:
    page: Any = with_groups.browser().get(f"/group{query}")
    assert (page.status, page.facts["place"]) == (status, place)


def test_the_page_of_a_group_whose_file_is_damaged_shows_the_error(with_groups: PagesRoot) -> None:
    for file in (with_groups.folder / "meta/orders/groups").glob("billing-*"):
        file.write_bytes(file.read_bytes()[:-3])
    browser = with_groups.browser()
    page = browser.get("/group?topic=orders&name=billing")
    assert page.status == 200
    assert page.facts["place"].startswith("meta/orders/groups/billing-")
    assert "Not readable: meta/orders/groups/billing-" in browser.get("/groups").words
    assert "Not readable: meta/orders/groups/billing-" in browser.get("/topics/orders/groups").words
