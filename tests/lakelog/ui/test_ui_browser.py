"""Opens the pages in a browser. On a narrow screen, each page must fit, in both colour schemes. The keyboard must reach
the content. A browser must be able to send a form. An open page must show new data.

Without a Chromium on PATH, npm installs one (scripts/install_chromium.py). Without npm, these tests are skipped, and a line
of the output says this. But `make test-browser` fails then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from storage_engine.clock import SystemClock
from tests.lakelog.metrics.roots import DAY, HOUR
from tests.lakelog.report.chromium import Chromium, Page
from tests.lakelog.ui.browsing import TOKEN, PagesRoot
from tests.lakelog.ui.processes import PATIENCE_SECONDS, pages
from tests.storage_engine.record_tables import Row

pytestmark = [pytest.mark.browser, pytest.mark.posix("writes tables in a folder")]
PATHS = [
    "/", "/groups", "/group?topic=orders&name=billing", "/dead-letters", "/plans", "/settings", "/topics/orders",
    "/topics/orders/records", "/topics/orders/records?offset=0&count=1", "/topics/orders/groups",
    "/topics/orders/dead-letters", "/topics/orders/plan", "/topics/orders/history", "/topics/orders/settings",
    "/topics/hurt",
]  # fmt: skip
LONG = "a-very-long-name-without-any-break-" * 5


@pytest.fixture
def filled(root: PagesRoot) -> PagesRoot:
    """A root with something of everything, and with long names and values."""
    root.clock.advance(SystemClock().now_ms() - root.clock.now_ms())
    now = root.clock.now_ms()
    root.topic("orders", 3, retention_ms=str(DAY))
    for age in (3 * DAY, 2 * DAY, HOUR):
        root.append("orders", age, age)
    root.append_rows("orders", Row(LONG.encode(), LONG.encode() * 40, timestamp=now, headers=((LONG, LONG.encode()),)))
    root.topic(LONG)
    root.topic("hurt")
    root.damage("hurt")
    root.group_with("orders", "billing", {0: 1}, *((age * HOUR, 1, 7) for age in (3, 2, 1)))
    root.group("orders", LONG, {0: 2})
    at = datetime.fromtimestamp(now / 1000, UTC)
    letter = {"reason": "undecodable", "detail": LONG, "partition": 0, "offset": 1, "timestamp": at, "outcome": None}
    root.dead_letters("export", "orders", [letter])
    return root


def wait_for(page: Page, expression: str, wanted: Callable[[object], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not wanted(found := page.ask(expression)):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_each_page_fits_and_complains_of_nothing(filled: PagesRoot, chromium: Chromium) -> None:
    with pages(filled, show_values=True, allow_changes=True) as address:
        for path in PATHS:
            page = chromium.open(f"{address}{path}")
            for dark in (False, True):
                page.show(width=400, dark=dark)
                page.ask("document.querySelectorAll('details').forEach(each => each.open = true)")
                assert page.ask("document.documentElement.scrollWidth") <= 400, path
                columns = (
                    "document.querySelector('main table thead th:nth-child(2)')?.getBoundingClientRect().right ?? 0"
                )
                assert page.ask(columns) <= 400, f"{path}: a long name in the first column hides the other columns"
            assert page.complaints == [], path
            assert all(each.startswith((f"{address}/", "data:")) for each in page.requests), page.requests
            assert page.ask("[...document.querySelectorAll('table')].every(each => each.caption?.textContent)"), path
            assert page.ask(
                "[...document.querySelectorAll('th')].every(each => ['row', 'col'].includes(each.scope))"
            ), path
            fields = "input:not([type=hidden], [hidden]), select"
            assert page.ask(f"[...document.querySelectorAll('{fields}')].every(each => each.labels.length === 1)"), path


def test_the_first_key_leads_to_the_content(filled: PagesRoot, chromium: Chromium) -> None:
    with pages(filled) as address:
        page = chromium.open(f"{address}/topics/orders")
        press(page, "Tab", 9)
        assert page.ask("document.activeElement.textContent") == "Skip to the content"
        assert page.ask("document.activeElement.getBoundingClientRect().left") >= 0
        assert page.ask("getComputedStyle(document.activeElement).outlineStyle") != "none"
        press(page, "Enter", 13)
        wait_for(page, "document.activeElement.id", lambda found: found == "main")
        press(page, "Tab", 9)
        assert page.ask("document.getElementById('main').contains(document.activeElement)")


def press(page: Page, key: str, code: int) -> None:
    """Press a key. The text is that of Enter."""
    down = {"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code}
    page.browser.call("Input.dispatchKeyEvent", down | ({"text": "\r"} if key == "Enter" else {}), session=page.session)
    page.browser.call("Input.dispatchKeyEvent", down | {"type": "keyUp"}, session=page.session)


def test_a_page_stays_current_and_keeps_what_the_user_does(filled: PagesRoot, chromium: Chromium) -> None:
    with pages(filled, refresh_seconds=1) as address:
        page = chromium.open(f"{address}/topics/orders")
        page.ask("document.querySelector('details').open = true")
        appended = "document.querySelector('.facts dd:nth-of-type(4)').textContent"
        assert page.ask(appended) == "7"
        filled.append("orders", 1)
        wait_for(page, appended, lambda found: found == "8")
        assert page.ask("document.querySelector('main').textContent.includes('8')")
        assert page.complaints == []


def test_a_form_is_sent_by_a_browser(filled: PagesRoot, chromium: Chromium) -> None:
    with pages(filled, allow_changes=True, token=TOKEN) as address:
        page = chromium.open(f"{address}/topics/orders/settings")
        assert page.ask("document.title").startswith("Log in")
        page.ask(f"document.getElementById('token').value = '{TOKEN}'")
        page.ask("document.querySelector('main form').requestSubmit()")
        wait_for(page, "document.title", lambda found: str(found).startswith("Settings of orders"))
        page.ask("document.getElementById('key').value = 'segment.ms'")
        page.ask("document.getElementById('value').value = '3600000'")
        page.ask("document.querySelector('main form').requestSubmit()")
        wait_for(
            page, "document.body?.textContent", lambda found: "was altered" in str(found) or "was set to" in str(found)
        )
        assert filled.topics.state("orders").configs["segment.ms"] == "3600000"
        assert page.complaints == []
        fetched = "fetch('/topics/orders/plan').then(answer => answer.text()).then(text => window.plan = text)"
        page.ask(fetched)
        wait_for(page, f"{fetched}, window.plan ?? ''", lambda found: "Apply this plan" in str(found))
