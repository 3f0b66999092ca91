"""Plans that take long to compute: their pages, pages that ask again, errors, and a server that ends meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from lakelog.ui.background.topic_plans import KEPT_MS, MOST_KEPT, TopicPlans
from storage_engine.errors import StorageError
from storage_engine.quantities import shown_moment
from storage_engine.topic.clean import cleaning_plan
from tests.lakelog.ui.background.gates import PATIENCE_SECONDS, Gate
from tests.lakelog.ui.browsing import Answer, Browser, PagesRoot

pytestmark = pytest.mark.posix("a folder is the root")
PLAN = "/topics/orders/plan"


@pytest.fixture
def due(root: PagesRoot) -> PagesRoot:
    return root.make_due(3)


class Decisions:
    """Counts the partitions of which a plan is made. From the second partition of a topic with several on, each call waits
    at a gate."""

    def __init__(self, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
        self.numbers: list[int] = []
        self._gate = gate
        self._decide: Callable[..., Any] = cleaning_plan.partition_plan
        monkeypatch.setattr(cleaning_plan, "partition_plan", self._counted)

    def _counted(self, number: int, *arguments: Any) -> Any:
        self.numbers.append(number)
        if number == 1:
            self._gate.passed()
        return self._decide(number, *arguments)


def hurried(root: PagesRoot, **options: object) -> Browser:
    browser = root.browser(**options)
    browser.site.patience_seconds = 0
    return browser


def when_ended(browser: Browser) -> Answer:
    """The page of the plan after the running computation has ended."""
    site = browser.site
    assert all(each.ended_ms is not None for each in site.plans.ask(site.topics(), ["orders"], PATIENCE_SECONDS))
    return browser.get(PLAN)


def test_a_plan_that_takes_long_is_computed_once_and_shown_when_it_is_ready(
    due: PagesRoot, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = Decisions(gate, monkeypatch)
    browser = hurried(due, allow_changes=True)
    first = browser.get(PLAN)
    gate.wait_until_reached()
    again = browser.get(PLAN)
    for page in (first, again):
        assert (page.status, page.tables) == (200, {})
        begun = f"The server computes this plan now. It began at {shown_moment(due.clock.now_ms())}."
        assert begun in page.words
        assert 'data-refresh-seconds="1"' in page.text
        assert PLAN in page.links
    assert "1 of 3 partitions is decided." in again.words
    assert browser.get("/topics/quiet").status == 200

    gate.open()
    page = when_ended(browser)

    assert page.facts["what would be done"].startswith("delete 2 segments")
    assert 'data-refresh-seconds="0"' in page.text
    due.clock.advance(KEPT_MS - 1)
    assert browser.get(PLAN).facts == page.facts
    assert decisions.numbers == [0, 1, 2]

    due.clock.advance(1)
    gate.close()
    browser.get(PLAN)
    gate.open()
    newer = when_ended(browser)
    assert newer.facts == page.facts | {"decided for": shown_moment(due.clock.now_ms())}
    assert decisions.numbers == [0, 1, 2] * 2


def test_a_plan_that_is_ready_in_time_is_computed_for_each_page(
    due: PagesRoot, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.open()
    decisions = Decisions(gate, monkeypatch)
    browser = due.browser()
    for _ in range(2):
        assert browser.get(PLAN).facts["what would be done"].startswith("delete 2 segments")
    assert decisions.numbers == [0, 1, 2] * 2


def test_after_a_change_the_plan_is_computed_again(due: PagesRoot, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    Decisions(gate, monkeypatch)
    browser = hurried(due, allow_changes=True)
    browser.get(PLAN)
    gate.open()
    when_ended(browser)
    browser.site.patience_seconds = PATIENCE_SECONDS
    assert browser.send(PLAN, PLAN).status == 200
    assert browser.get(PLAN).facts["what would be done"] == "nothing"
    settings = "/topics/orders/settings"
    assert browser.send(settings, settings, key="retention.ms", value="1").status == 303
    assert browser.get(PLAN).facts["what would be done"].startswith("delete 1 segment")


def test_the_page_of_all_plans_shows_those_that_are_ready(
    due: PagesRoot, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    Decisions(gate, monkeypatch)
    browser = due.browser()
    assert browser.get("/topics/quiet").status == 200
    browser.site.plans.ask(due.topics, ["orders", "quiet"], 0)
    gate.wait_until_reached()
    (quiet,) = browser.site.plans.ask(due.topics, ["quiet"], PATIENCE_SECONDS)
    assert quiet.ended_ms is not None
    quiet.is_slow = True  # otherwise the next page begins a new computation
    browser.get("/")
    browser.site.patience_seconds = 0
    page = browser.get("/plans")
    assert [(row["topic"], row["what would be done"]) for row in page.tables["Cleaning that is due"]] == [
        ("orders", "being computed"), ("quiet", "nothing"),
    ]  # fmt: skip
    assert 'data-refresh-seconds="1"' in page.text
    gate.open()
    when_ended(browser)
    page = browser.get("/plans")
    (orders, _) = page.tables["Cleaning that is due"]
    assert orders["what would be done"].startswith("delete 2 segments")


def test_the_error_of_a_computation_that_took_long_is_shown_as_an_error(
    due: PagesRoot, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        gate.passed()
        raise StorageError("data/x", "cannot be read", "Check the disk.")

    monkeypatch.setattr(cleaning_plan, "plan_merges", fail)
    browser = hurried(due)
    assert "The server computes this plan now." in browser.get(PLAN).words
    gate.open()
    page = when_ended(browser)
    assert (page.status, page.facts) == (
        200, {"place": "data/x", "found": "cannot be read", "what to do": "Check the disk."}
    )  # fmt: skip
    assert "orders is not readable" in page.words


def test_a_computation_that_has_not_ended_is_never_begun_again(
    due: PagesRoot, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    Decisions(gate, monkeypatch)
    plans = TopicPlans(due.clock.now_ms)
    names = ["orders", *(f"missing {number}" for number in range(MOST_KEPT + 10))]
    first = [plans.ask(due.topics, names[begin : begin + 25], 0) for begin in range(0, len(names), 25)]
    again = [plans.ask(due.topics, ["orders"], 0)]
    assert again[0][0] is first[0][0]
    gate.open()
    assert all(each.ended_ms is not None for each in plans.ask(due.topics, ["orders"], PATIENCE_SECONDS))
    plans.stop()


def test_a_server_that_ends_stops_a_computation_before_its_next_partition(
    due: PagesRoot, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = Decisions(gate, monkeypatch)
    plans = TopicPlans(due.clock.now_ms)
    plans.ask(due.topics, ["orders"], 0)
    gate.wait_until_reached()
    (thread,) = [each for each in threading.enumerate() if each.name == "plan"]
    plans.stop(0)
    gate.open()
    thread.join(PATIENCE_SECONDS)
    (computation,) = plans.ask(due.topics, ["orders"], 0)
    assert (decisions.numbers, computation.ended_ms, thread.is_alive()) == ([0, 1], None, False)
