"""The pages about cleaning, and the form that applies a plan."""

from __future__ import annotations

import pytest

import lakelog
from lakelog.inspection.planning import make_plan
from storage_engine.quantities import shown_size
from storage_engine.topic.clean.cleaning_plan import step_summary
from tests.lakelog.metrics.roots import DAY, HOUR
from tests.lakelog.ui.browsing import PagesRoot, hidden_fields

pytestmark = pytest.mark.posix("the files of the root are changed")


@pytest.fixture
def due(root: PagesRoot) -> PagesRoot:
    """A root with a topic of which retention deletes two segments, and a topic with nothing to do."""
    root.topic("orders", 2, retention_ms=str(DAY))
    for age in (3 * DAY, 2 * DAY, HOUR):
        root.append("orders", age, age)
    root.topic("quiet")
    return root


def test_the_plan_on_the_page_is_the_plan_of_the_engine(due: PagesRoot) -> None:
    page = due.browser().get("/topics/orders/plan")
    planned = make_plan(due.topics, ["orders"], None)[0].topics[0]
    part = planned.partitions[0]
    assert page.facts["what would be done"] == step_summary(part.steps)
    assert page.tables["Partitions that would change"] == [
        {
            "partition": "0", "log start offset": "0 → 4", "segments": "3 → 1",
            "bytes": f"{shown_size(part.bytes_before)} → {shown_size(part.bytes_after)}",
            "what would be done": step_summary(part.steps),
        }
    ]  # fmt: skip
    assert [list(row.values()) for row in page.tables["Segments that would change"]] == [
        [f"0, offset {step.base_offset}", shown_size(step.bytes), "delete", "time", found, "retention.ms 1 d"]
        for step, found in zip(part.steps, ("3 d old", "2 d old"), strict=True)
    ]
    assert "This server does not change the root." in page.words
    assert '<form method="post"' not in page.text


def test_all_plans_are_listed_and_nothing_is_changed(due: PagesRoot) -> None:
    version = due.topics.state("orders").version
    rows = due.browser().get("/plans").tables["Cleaning that is due"]
    assert [(row["topic"], row["what would be done"][:17]) for row in rows] == [
        ("orders", "delete 2 segments"), ("quiet", "nothing"),
    ]  # fmt: skip
    assert due.topics.state("orders").version == version


def test_a_plan_that_was_shown_is_applied(due: PagesRoot) -> None:
    browser = due.browser(allow_changes=True)
    page = browser.send("/topics/orders/plan", "/topics/orders/plan")
    assert page.status == 200
    assert "topic orders, partition 0: 2 segments deleted" in page.words
    assert due.topics.state("orders").partitions[0].log_start_offset == 4
    assert lakelog.open(due.folder).topic("orders").read().to_arrow()["offset"].to_pylist() == [4, 5]
    assert any("2 segments deleted" in line for line in due.warnings)
    assert "There is nothing to do." in browser.get("/topics/orders/plan").words


def test_a_compaction_and_a_merge_are_applied(root: PagesRoot) -> None:
    root.topic("latest", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    for _ in range(5):
        root.append("latest", HOUR, HOUR)
    browser = root.browser(allow_changes=True)
    page = browser.send("/topics/latest/plan", "/topics/latest/plan")
    assert "compacted 4 segments" in page.words
    assert len(lakelog.open(root.folder).topic("latest").read().to_arrow()) < 10


def test_a_plan_is_refused_if_the_log_has_changed(due: PagesRoot) -> None:
    browser = due.browser(allow_changes=True)
    page = browser.get("/topics/orders/plan")
    due.topics.alter("orders", None, {"retention.ms": str(10 * DAY)})
    fields = hidden_fields(page.text)
    answer = browser.post("/topics/orders/plan", fields)
    assert answer.status == 409
    assert "retention.ms was 86400000 in the plan, and is now 864000000" in answer.words
    assert due.topics.state("orders").partitions[0].log_start_offset == 0


def test_a_plan_of_another_topic_or_of_another_server_is_refused(due: PagesRoot) -> None:
    browser = due.browser(allow_changes=True)
    fields = hidden_fields(browser.get("/topics/orders/plan").text)
    for path, changed in (("/topics/quiet/plan", {}), ("/topics/orders/plan", {"plan": "0" * 64})):
        answer = browser.post(path, fields | changed)
        assert answer.status == 409
        assert answer.facts["found"] == "the server no longer has this plan"
    assert browser.post("/topics/orders/plan", {"form_token": fields["form_token"]}).status == 400
    assert due.topics.state("orders").partitions[0].log_start_offset == 0


def test_two_plans_are_not_applied_at_the_same_time(due: PagesRoot) -> None:
    browser = due.browser(allow_changes=True)
    fields = hidden_fields(browser.get("/topics/orders/plan").text)
    with browser.site.changing:
        assert browser.post("/topics/orders/plan", fields).facts["found"] == "another change is running"
    assert browser.post("/topics/orders/plan", fields).status == 200
