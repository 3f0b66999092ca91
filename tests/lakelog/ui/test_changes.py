"""The forms that alter a setting and delete a group."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from storage_engine.topic.readers.membership import join
from tests.lakelog.ui.browsing import PagesRoot, hidden_fields

pytestmark = pytest.mark.posix("the files of the root are changed")
SETTINGS = "/topics/orders/settings"
GROUP = "/group?topic=orders&name=billing"


@pytest.fixture
def orders(root: PagesRoot) -> PagesRoot:
    root.topic("orders")
    root.append("orders", 1, 2)
    root.group("orders", "billing", {0: 1})
    return root


def test_a_setting_is_altered_and_shown(orders: PagesRoot) -> None:
    browser = orders.browser(allow_changes=True)
    answer = browser.send(SETTINGS, SETTINGS, key="retention.ms", value="3600000")
    assert (answer.status, answer.headers["location"]) == (303, "/topics/orders/settings?done=1&key=retention.ms")
    page = browser.get(answer.headers["location"])
    assert "The setting retention.ms was altered." in page.words
    assert [(row["key"], row["value"]) for row in page.tables["The topic's own settings"]] == [
        ("retention.ms", "3600000")
    ]
    assert orders.topics.state("orders").configs == {"retention.ms": "3600000"}
    assert orders.warnings == ["topic orders: retention.ms was set to 3600000 on a page of this server"]


def test_a_setting_is_set_back_to_its_default(orders: PagesRoot) -> None:
    orders.topics.alter("orders", None, {"retention.ms": "5", "segment.ms": "6"})
    answer = orders.browser(allow_changes=True).send(SETTINGS, SETTINGS, key="retention.ms", default="1")
    assert answer.status == 303
    assert orders.topics.state("orders").configs == {"segment.ms": "6"}


@pytest.mark.parametrize(
    ("fields", "place", "found"),
    [
        ({"key": "retention.ms", "value": "soon"}, "field value, key retention.ms", "found 'soon'"),
        ({"key": "retention.ms", "value": ""}, "field value", "found none"),
        ({"key": "no.such.key", "value": "1"}, "field key", "no.such.key"),
        ({"key": "min.compaction.lag.ms", "value": "9999999999999999"}, "topic orders", "max.compaction.lag.ms"),
        ({"value": "1"}, "field key", "found none"),
    ],
)
def test_a_wrong_value_changes_nothing(orders: PagesRoot, fields: dict[str, str], place: str, found: str) -> None:
    orders.topics.alter("orders", None, {"max.compaction.lag.ms": "86400000"})
    version = orders.topics.state("orders").version
    answer = orders.browser(allow_changes=True).send(SETTINGS, SETTINGS, **fields)
    assert answer.status == 400
    assert place in answer.facts["place"]
    assert found in answer.facts["place"] + answer.facts["found"]
    assert orders.topics.state("orders").version == version


def test_a_group_is_deleted_after_its_name_was_entered(orders: PagesRoot) -> None:
    orders.group("orders", "mail", {0: 2})
    browser = orders.browser(allow_changes=True)
    answer = browser.send(GROUP, "/group/delete", confirmed="billing")
    assert (answer.status, answer.headers["location"]) == (303, "/topics/orders/groups")
    assert [row["group"] for row in browser.get("/topics/orders/groups").tables["Groups"]] == ["mail"]
    assert orders.warnings == ["topic orders: group billing was deleted on a page of this server"]


@pytest.mark.parametrize(
    ("name", "entered"),
    [
        ("a\t b \u202ecod\x1b[2J", r"a b \u202ecod\x1b[2J"), ("two\nlines", r"two\x0alines"), ("100%41 + é&", "100%41 + é&"),
    ],
)  # fmt: skip
def test_a_group_with_any_name_is_deleted(orders: PagesRoot, name: str, entered: str) -> None:
    orders.group("orders", name, {0: 2})
    browser = orders.browser(allow_changes=True)
    page = f"/group?{urlencode({'topic': 'orders', 'name': name})}"
    assert (f"in this form: {entered}" in browser.get(page).words) == (name != entered)
    assert browser.send(page, "/group/delete", confirmed=entered).status == 303
    assert [row["group"] for row in browser.get("/topics/orders/groups").tables["Groups"]] == ["billing"]


@pytest.mark.parametrize("entered", ["", "Billing", "mail"])
def test_a_group_is_kept_if_another_name_was_entered(orders: PagesRoot, entered: str) -> None:
    browser = orders.browser(allow_changes=True)
    answer = browser.send(GROUP, "/group/delete", confirmed=entered)
    assert (answer.status, answer.facts["place"]) == (400, "field confirmed")
    assert len(browser.get("/topics/orders/groups").tables["Groups"]) == 1


def test_a_group_with_an_active_member_is_kept(orders: PagesRoot) -> None:
    browser = orders.browser(allow_changes=True)
    page = browser.get(GROUP)
    join(orders.storage, orders.topics.state("orders"), "billing", "m", "h", orders.clock.now_ms())
    answer = browser.post("/group/delete", hidden_fields(page.text) | {"confirmed": "billing"})
    assert (answer.status, answer.facts["found"]) == (409, "has an active member")
    assert "Stop this member first." in browser.get(GROUP).words


@pytest.mark.parametrize("path", ["/group/delete", SETTINGS, "/topics/orders/plan"])
def test_without_the_option_no_form_changes_anything(orders: PagesRoot, path: str) -> None:
    browser = orders.browser()
    for page in ("/", "/topics/orders", SETTINGS, GROUP, "/topics/orders/plan"):
        assert '<form method="post"' not in browser.get(page).text
    session = browser.site.sessions.begin(is_logged_in=False)
    browser.cookies["lakelog_ui_8787"] = session.cookie
    fields = {"form_token": browser.site.sessions.form_token(session), "key": "retention.ms", "value": "1",
              "topic": "orders", "name": "billing", "confirmed": "billing"}  # fmt: skip
    assert browser.post(path, fields).status in (404, 405)
    assert orders.topics.state("orders").configs == {}
    assert len(browser.get("/topics/orders/groups").tables["Groups"]) == 1
