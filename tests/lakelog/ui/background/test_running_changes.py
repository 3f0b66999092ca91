"""Changes that take long: the page of a change, a form that is sent twice, and a server that ends meanwhile."""

from __future__ import annotations

import urllib.parse
import urllib.request

import pytest
import yaml

import lakelog
from lakelog.ui import plan_pages
from lakelog.ui.background.running_changes import MOST_ENDED, Change, Outcome, RunningChanges
from storage_engine.errors import ConflictError
from storage_engine.quantities import shown_moment
from storage_engine.topic.kafka import view
from tests.lakelog.metrics.roots import DAY, HOUR
from tests.lakelog.ui.background.gates import PATIENCE_SECONDS, Gate
from tests.lakelog.ui.browsing import Browser, PagesRoot, hidden_fields
from tests.lakelog.ui.processes import plan_page, serving

pytestmark = pytest.mark.posix("the files of the root are changed")
PLAN, SETTINGS = "/topics/orders/plan", "/topics/orders/settings"


@pytest.fixture
def due(root: PagesRoot) -> PagesRoot:
    return root.make_due()


def hurried(root: PagesRoot) -> Browser:
    """A browser whose forms do not wait for the outcome."""
    browser = root.browser(allow_changes=True)
    browser.site.patience_seconds = 0
    return browser


def plan_form(browser: Browser) -> dict[str, str]:
    """The fields of the form that applies the plan. The page waits until the plan is computed."""
    patience, browser.site.patience_seconds = browser.site.patience_seconds, PATIENCE_SECONDS
    fields = hidden_fields(browser.get(PLAN).text)
    browser.site.patience_seconds = patience
    return fields


def broken(*_: object) -> None:
    raise ValueError("the content of a record")


def ended(browser: Browser, address: str) -> None:
    """Wait until the change of a page has ended."""
    change = browser.site.changes.find(address.removeprefix("/changes/"))
    assert change is not None
    assert browser.site.changes.wait(change, PATIENCE_SECONDS)


def test_a_plan_is_applied_once_while_its_page_shows_that_it_runs(
    due: PagesRoot, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_pages, "apply_plan", gate.before(plan_pages.apply_plan))
    browser = hurried(due)
    fields = plan_form(browser)

    first, second = browser.post(PLAN, fields), browser.post(PLAN, fields)

    address = first.headers["location"]
    assert (first.status, second.status, second.headers["location"]) == (303, 303, address)
    page = browser.get(address)
    assert "Change: apply a plan" in page.words
    assert f"The server makes this change now. It began at {shown_moment(due.clock.now_ms())}." in page.words
    assert 'data-refresh-seconds="1"' in page.text
    assert "A change is running" not in page.words
    other = browser.get("/topics/quiet")
    assert "A change is running: topic orders: apply a plan" in other.words
    assert address in other.links
    assert due.topics.state("orders").version == 3

    gate.open()
    ended(browser, address)

    page = browser.get(address)
    assert "topic orders, partition 0: 2 segments deleted" in page.words
    assert "The server makes this change now." not in page.words
    assert 'data-refresh-seconds="0"' in page.text
    assert "2 segments deleted" in browser.post(PLAN, fields).words
    assert due.topics.state("orders").version == 4
    assert [line.partition(",")[0] for line in due.warnings] == ["topic orders"]
    assert "A change is running" not in browser.get("/topics/quiet").words


def test_a_setting_that_takes_long_is_altered_once(due: PagesRoot, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "settle_committed", gate.before(view.settle_committed))
    browser = hurried(due)
    first, second = (browser.send(SETTINGS, SETTINGS, key="segment.ms", value="3600000") for _ in range(2))
    other = browser.send(SETTINGS, SETTINGS, key="segment.ms", value="60000")
    address = first.headers["location"]
    assert second.headers["location"] == address
    assert (other.status, other.facts["found"]) == (409, "another change is running")
    assert "Change: set segment.ms to 3600000" in browser.get(address).words
    gate.open()
    ended(browser, address)
    page = browser.get(address)
    assert "topic orders: segment.ms was set to 3600000 on a page of this server" in page.words
    assert due.topics.state("orders").version == 4
    assert due.topics.state("orders").configs["segment.ms"] == "3600000"


def test_the_form_of_another_topic_is_another_change(
    due: PagesRoot, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "settle_committed", gate.before(view.settle_committed))
    browser = hurried(due)
    address = browser.send(SETTINGS, SETTINGS, key="segment.ms", value="3600000").headers["location"]
    quiet = "/topics/quiet/settings"
    refused = browser.send(quiet, quiet, key="segment.ms", value="3600000")
    assert (refused.status, refused.facts["found"]) == (409, "another change is running")
    gate.open()
    ended(browser, address)
    browser.site.patience_seconds = PATIENCE_SECONDS
    assert browser.send(quiet, quiet, key="segment.ms", value="3600000").status == 303
    assert due.topics.state("quiet").configs["segment.ms"] == "3600000"


def test_nobody_without_the_token_learns_what_is_running(due: PagesRoot, gate: Gate) -> None:
    site = due.site(allow_changes=True, token="t" * 32)
    site.changes.begin("delete the group g", "orders", "form", gate.before(Outcome))
    stranger = Browser(site)
    for page in (
        stranger.get("/login"), stranger.get("/static/nothing"), stranger.get("/", {"Host": "evil.example"}),
        stranger.get("/topics/orders"),
    ):  # fmt: skip
        assert "orders" not in page.words
        assert "delete the group" not in page.words


def test_a_broken_standard_error_blocks_no_further_change() -> None:
    def broken(_: str) -> None:
        raise BrokenPipeError

    made = RunningChanges(lambda: 0, broken)
    change = made.begin("apply a plan", "t", "form", lambda: Outcome(["done"]))
    assert made.wait(change, PATIENCE_SECONDS)
    assert made.running is None
    assert change.outcome == Outcome(["done"])


def test_what_a_plan_has_done_is_shown_although_a_defect_ends_it(
    due: PagesRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_pages, "compact_partitions", broken)
    page = due.browser(allow_changes=True).send(PLAN, PLAN)
    assert "topic orders, partition 0: 2 segments deleted" in page.words
    assert "the server has a defect" in page.words
    assert "content of a record" not in page.text


def test_the_same_setting_can_be_altered_again_later(due: PagesRoot) -> None:
    browser = due.browser(allow_changes=True)
    for value in ("3600000", "60000", "3600000"):
        assert browser.send(SETTINGS, SETTINGS, key="segment.ms", value=value).status == 303
    assert due.topics.state("orders").configs["segment.ms"] == "3600000"


def test_a_change_that_is_refused_says_so_on_its_page(
    due: PagesRoot, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_pages, "apply_plan", gate.before(plan_pages.apply_plan))
    browser = hurried(due)
    fields = plan_form(browser)
    due.topics.alter("orders", None, {"retention.ms": str(10 * DAY)})
    address = browser.post(PLAN, fields).headers["location"]
    gate.open()
    ended(browser, address)
    page = browser.get(address)
    assert "Not done" in page.words
    assert "retention.ms was 86400000 in the plan, and is now 864000000" in page.facts["found"]
    assert due.warnings[0].startswith("topic orders: apply a plan: not done: ")
    assert due.topics.state("orders").partitions[0].log_start_offset == 0


def test_a_problem_of_a_change_is_shown_although_the_change_is_done(
    due: PagesRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "settle_committed", lambda _, __, warn: warn("log/ does not show the change yet"))
    page = due.browser(allow_changes=True).send(SETTINGS, SETTINGS, key="segment.ms", value="3600000")
    assert page.status == 200
    assert "log/ does not show the change yet" in page.words
    assert due.warnings == [
        "topic orders: segment.ms was set to 3600000 on a page of this server",
        "log/ does not show the change yet",
    ]


def test_a_defect_of_a_change_shows_no_contents(due: PagesRoot, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_pages, "apply_plan", gate.before(broken))
    browser = hurried(due)
    address = browser.post(PLAN, plan_form(browser)).headers["location"]
    gate.open()
    ended(browser, address)
    page = browser.get(address)
    assert page.facts["found"] == "the server has a defect"
    assert due.warnings[0].startswith(f"topic orders: apply a plan: a defect: ValueError in {__file__}, line ")
    assert "content of a record" not in page.text + "".join(due.warnings)


def test_an_unknown_change_is_not_found(due: PagesRoot) -> None:
    page = due.browser().get("/changes/0123456789abcdef")
    assert (page.status, page.facts["found"]) == (404, "this server does not know the change")


def test_old_outcomes_are_forgotten() -> None:
    made = RunningChanges(lambda: 0, lambda _: None)
    begun = list[Change]()
    for number in range(MOST_ENDED + 1):
        begun.append(made.begin("x", "t", f"form {number}", Outcome))
        assert made.wait(begun[-1], PATIENCE_SECONDS)
    assert made.find(begun[0].id) is None
    assert made.find(begun[1].id) is begun[1]


def test_no_change_begins_while_the_server_ends(gate: Gate) -> None:
    warnings = list[str]()
    made = RunningChanges(lambda: 0, warnings.append)
    change = made.begin("apply a plan", "t", "form", gate.before(Outcome))
    assert made.stop(0) is change
    assert warnings == ["waits at most 0 s for a change: topic t: apply a plan"]
    gate.open()
    assert made.wait(change, PATIENCE_SECONDS)
    assert made.stop(0) is None
    with pytest.raises(ConflictError, match="the server is ending"):
        made.begin("apply a plan", "t", "other form", Outcome)


def test_a_change_that_does_not_end_in_time_is_named_and_leaves_a_whole_root(root: PagesRoot) -> None:
    """The cleaner may read one byte each second, so the compaction takes minutes."""
    root.topic("latest", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    for _ in range(5):
        root.append("latest", HOUR, HOUR)
    conf = root.folder.parent / "slow.yaml"
    conf.write_text(yaml.safe_dump({"broker": {"log.cleaner.io.max.bytes.per.second": 1}}))
    options = ("--listen", "127.0.0.1:0", "--allow-changes", "--stop-timeout", "1", "--conf", str(conf))
    with serving(root.folder, *options) as (process, found):
        address = found.rstrip("/")
        cookie, text = plan_page(f"{address}/topics/latest/plan")
        data = urllib.parse.urlencode(hidden_fields(text)).encode()
        form = urllib.request.Request(f"{address}/topics/latest/plan", data, {"Cookie": cookie, "Origin": address})
        with urllib.request.urlopen(form) as answer:
            assert "The server makes this change now." in answer.read().decode()
        process.terminate()
        out, err = process.communicate(timeout=60)
    lines = [line for line in err.splitlines() if "latest" in line]
    assert (process.returncode, out) == (1, "")
    assert lines == [
        "lakelog: waits at most 1 s for a change: topic latest: apply a plan",
        (
            "lakelog: topic latest: apply a plan: was stopped, because it has not ended in 1 s. The finished commits of the"
            " change remain, and nothing is half done. Make a new plan for the rest."
        ),
    ]
    assert len(lakelog.open(root.folder).topic("latest").read().to_arrow()) == 10
