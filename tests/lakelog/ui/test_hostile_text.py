"""Text from files, requests and records never changes a page, a terminal or the direction of text."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest

from storage_engine.topic.chain import state_chain
from storage_engine.topic.chain.committing_process import CommittingProcess
from storage_engine.topic.chain.topic_state import CommittedBatch, TopicState, Writer
from storage_engine.topic.readers.membership import join
from tests.lakelog.metrics.roots import HOUR, NOW
from tests.lakelog.ui.browsing import Answer, PagesRoot
from tests.storage_engine.record_tables import Row

pytestmark = pytest.mark.posix("the files of the root are changed")
HOSTILE = [
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "'onmouseover='alert(1)", "javascript:alert(1)",
    "\x1b[31mred\x1b]0;title\x07", "right\u202eto\u2066left", "</title></main></body><h1>forged", "{{ 7 * 7 }}{% raw %}",
    "\x00\x7f\x85\u2028", "&lt;b&gt;&#x202e;", "\ud800 alone".encode("utf-8", "replace").decode(),
]  # fmt: skip
ACTED_UPON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def check(page: Answer) -> None:
    """The page has the structure of its template, and no character that something acts upon."""
    assert page.status < 500
    assert not ACTED_UPON.search(page.text)
    assert page.text.count("<script") == 1
    assert page.text.count("<h1>") == 1
    assert page.text.count("</main>") == 1
    assert "<img" not in page.text
    assert "<b>" not in page.text
    assert "49" not in re.sub(r"\d{3,}|[\d.:,-]{4,}", "", page.words).split()
    tags = re.findall(r"<[a-z][^<>]*>", page.text)
    assert not [tag for tag in tags if re.search(r"\son[a-z]+\s*=", re.sub(r'"[^"]*"', '""', tag))]
    assert not [link for link in page.links if not re.match(r"/(?!/)|#main$", link)]


@pytest.mark.parametrize("text", HOSTILE)
def test_names_of_groups_members_and_exports(root: PagesRoot, text: str) -> None:
    state = root.topic("orders")
    root.append("orders", 3 * HOUR)
    join(root.storage, state, text, text, text, root.clock.now_ms())
    root.group_with("orders", f"stalled {text}", {0: 0}, *((age * HOUR, 0, 1) for age in (3, 2, 1)))
    root.export("orders", {0: 0}, text or "x")
    browser = root.browser(allow_changes=True)
    for path in ("/", "/groups", "/topics/orders/groups", f"/group?topic=orders&name={quote(text)}"):
        check(browser.get(path))
    page = browser.get("/groups")
    for link in page.links:
        check(browser.get(link))


@pytest.mark.parametrize("text", HOSTILE)
def test_keys_values_and_headers(root: PagesRoot, text: str) -> None:
    root.topic("orders")
    data = text.encode()
    root.append_rows("orders", Row(data, data * 2, timestamp=NOW, headers=((text, data), ("n", None))))
    root.append_rows("orders", Row(data[:-1] + b"\xff", data * 100, timestamp=NOW))
    for browser in (root.browser(), root.browser(show_values=True)):
        for path in ("records", "records?offset=0&count=1", "records?offset=1&count=1"):
            check(browser.get(f"/topics/orders/{path}"))
    found = root.browser(show_values=True).get(f"/topics/orders/records?key={quote(text)}&header={quote(text)}")
    check(found)
    assert len(found.tables["Records of partition 0"]) == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_settings_changes_and_writers_in_a_state(root: PagesRoot, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root.topic("orders")

    def change(state: TopicState) -> TopicState:
        writer = Writer(epoch=1, query=text, host=text, pid=1, since_ms=NOW, source=text, reads=text)
        queries = {text: CommittedBatch(batch_id=1, offsets_hash="0" * 8)}
        return state.model_copy(update={"configs": {text: text}, "writer": writer, "queries": queries})

    process = CommittingProcess(program=text, user=text, host=text, pid=1)
    monkeypatch.setattr(state_chain, "this_process", lambda: process)
    root.topics.chain("orders").commit(change, f"altered by {text}")
    browser = root.browser(allow_changes=True)
    for path in (
        "/",
        "/topics/orders",
        "/topics/orders/settings",
        "/topics/orders/history",
        "/topics/orders/plan",
        "/plans",
    ):
        check(browser.get(path))


@pytest.mark.parametrize("text", HOSTILE)
def test_dead_letters(root: PagesRoot, text: str) -> None:
    root.topic("orders")
    rows = {"reason": text, "detail": text, "partition": 0, "offset": 1, "outcome": text}
    root.dead_letters("export", "orders", [rows, rows | {"outcome": None}])
    root.dead_letters("ingest", "orders", [{"reason": text, "detail": text, "query_id": text, "batch_id": 1}])
    for path in ("/dead-letters", "/topics/orders/dead-letters"):
        page = root.browser().get(path)
        check(page)
        assert page.status == 200


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "path",
    ["/?name={}", "/?page={}", "/topics/{}", "/{}", "/group?topic={}&name={}", "/group?topic=orders&name={}", "/login?next={}",
     "/topics/orders/records?offset={}", "/topics/orders/records?time={}", "/topics/orders/records?value={}",
     "/topics/orders/history?to={}", "/topics/orders/settings?done=1&key={}", "/static/{}"],
)  # fmt: skip
def test_requests(root: PagesRoot, path: str, text: str) -> None:
    root.topic("orders")
    for browser in (
        root.browser(show_values=True, allow_changes=True),
        root.browser(token="a long token of this server"),
    ):
        answer = browser.get(path.replace("{}", quote(text, safe="")))
        if answer.status != 303:
            check(answer)
        assert not ACTED_UPON.search(answer.headers.get("location", ""))


@pytest.mark.parametrize("text", HOSTILE)
def test_forms(root: PagesRoot, text: str) -> None:
    root.topic("orders")
    browser = root.browser(allow_changes=True)
    page = "/topics/orders/settings"
    for fields in ({"key": text, "value": text}, {"key": "retention.ms", "value": text}):
        check(browser.send(page, page, **fields))
    root.group("orders", "billing", {0: 0})
    for fields in ({"confirmed": text}, {"name": text}, {"topic": text}):
        check(browser.send("/group?topic=orders&name=billing", "/group/delete", **fields))
    check(browser.post("/login", {"form_token": text, "token": text}))
    assert root.topics.state("orders").configs == {}


@pytest.mark.parametrize("text", HOSTILE)
def test_headers_of_a_request(root: PagesRoot, text: str) -> None:
    root.topic("orders")
    header = text.encode("ascii", "ignore").decode().translate(dict.fromkeys(range(32))) or "x"
    browser = root.browser(allow_changes=True)
    check(browser.get("/", {"Host": header}))
    check(browser.post("/topics/orders/settings", {}, {"Origin": header}))
    assert browser.get("/", {"Cookie": f"lakelog_ui_8787={header}"}).status == 200
