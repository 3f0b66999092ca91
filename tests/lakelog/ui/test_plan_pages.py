"""The pages about cleaning, and the form that applies a plan."""

from __future__ import annotations

import os
import sys
import threading
import time
import urllib.parse
import urllib.request
from contextlib import suppress

import pytest

import lakelog
from lakelog.cli.output import write_error
from lakelog.inspection.planning import make_plan
from lakelog.ui import plan_pages, serving
from lakelog.ui.access.options import UiOptions
from lakelog.ui.background.running_changes import Outcome
from lakelog.ui.site import Site
from storage_engine.quantities import shown_size
from storage_engine.topic.broker_settings import SETTINGS_KEY, BrokerSettings, put_broker_settings
from storage_engine.topic.clean.cleaning_plan import Plan, step_summary
from tests.lakelog.metrics.roots import DAY, HOUR
from tests.lakelog.ui.background.gates import closed_gate
from tests.lakelog.ui.browsing import PagesRoot, hidden_fields
from tests.lakelog.ui.processes import pages, plan_page

pytestmark = pytest.mark.posix("the files of the root are changed")


@pytest.fixture
def due(root: PagesRoot) -> PagesRoot:
    return root.make_due(2)


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
    with closed_gate() as gate:
        other = browser.site.changes.begin("another", "quiet", "another form", gate.before(Outcome))
        assert browser.post("/topics/orders/plan", fields).facts["found"] == "another change is running"
    assert browser.site.changes.wait(other, 30)
    assert browser.post("/topics/orders/plan", fields).status == 200


def test_a_plan_uses_the_settings_that_are_stored_now(root: PagesRoot) -> None:
    root.topic("orders")
    root.append("orders", 3 * HOUR)
    root.append("orders", HOUR)
    put_broker_settings(root.storage, {"log.retention.hours": "2"})
    browser = root.browser(allow_changes=True)
    page = browser.get("/topics/orders/plan")
    assert page.facts["what would be done"].startswith("delete 1 segment")
    put_broker_settings(root.storage, {"log.retention.hours": "24"})
    answer = browser.post("/topics/orders/plan", hidden_fields(page.text))
    assert (answer.status, answer.facts["found"]) == (
        409, "retention.ms was 7200000 in the plan, and is now 86400000",
    )  # fmt: skip
    assert browser.get("/topics/orders/plan").facts["what would be done"] == "nothing"


def test_no_plan_is_made_and_nothing_is_changed_if_the_stored_settings_are_damaged(due: PagesRoot) -> None:
    put_broker_settings(due.storage, {"log.retention.hours": "9999"})
    browser = due.browser(allow_changes=True)
    fields = hidden_fields(browser.get("/topics/orders/plan").text)
    (due.folder / SETTINGS_KEY).write_bytes(b"{}")
    for path in ("/plans", "/topics/orders/plan", "/topics/orders/settings", "/settings"):
        page = browser.get(path)
        assert page.facts["place"].startswith(SETTINGS_KEY)
        assert "Segments that would change" not in page.tables
    assert browser.post("/topics/orders/plan", fields).status == 409
    change = {"key": "retention.ms", "value": "1", "form_token": fields["form_token"]}
    assert browser.post("/topics/orders/settings", change).status == 409
    assert "This page assumes Kafka's defaults." in browser.get("/topics/orders").words
    assert due.topics.state("orders").version == 3


def test_a_plan_that_is_being_applied_is_finished_when_the_server_ends(
    due: PagesRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    apply_plan = plan_pages.apply_plan

    def slow(site: Site, planned: Plan) -> Outcome:
        begun.set()
        time.sleep(2)  # longer than the server waits for a request
        return apply_plan(site, planned)

    def send(address: str) -> None:
        cookie, text = plan_page(f"{address}/topics/orders/plan")
        data = urllib.parse.urlencode(hidden_fields(text)).encode()
        headers = {"Cookie": cookie, "Origin": address}
        with suppress(OSError):  # the server closes the connection
            urllib.request.urlopen(urllib.request.Request(f"{address}/topics/orders/plan", data, headers)).close()

    monkeypatch.setattr(plan_pages, "apply_plan", slow)
    monkeypatch.setattr(serving, "_SHUTDOWN_SECONDS", 1)
    with pages(due, allow_changes=True) as address:
        sender = threading.Thread(target=send, args=(address,))
        sender.start()
        assert begun.wait(30)
    sender.join()
    assert due.topics.state("orders").partitions[0].log_start_offset == 4


def test_a_defect_while_nobody_reads_standard_error_does_not_hide_what_was_done(
    due: PagesRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(plan_pages, "compact_partitions", broken)
    site = Site(due.topics, BrokerSettings(), UiOptions(port=0), write_error, 0)
    planned = make_plan(due.topics, ["orders"], None)[0]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        outcome = plan_pages.apply_plan(site, planned)
    assert [line.partition(":")[0] for line in outcome.done] == ["topic orders, partition 0"]
    assert [text.split(": ")[2].split(".")[0] for text in outcome.problems] == ["the server has a defect"]
