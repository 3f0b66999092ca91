"""`lakelog ui` on a root in an object store: its pages, a change, and how many requests a page makes one after another."""

from __future__ import annotations

import urllib.parse
import urllib.request
from collections.abc import Iterator

import pytest

from lakelog.ui.access.options import UiOptions
from lakelog.ui.site import Site
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.append.topic_writer import take_over
from storage_engine.topic.broker_settings import BrokerSettings
from storage_engine.topic.ingest_reports import IngestReport, put_report
from storage_engine.topic.readers.consumer_files import GROUP_KIND, put_positions
from storage_engine.topic.topics import Topics
from tests.lakelog.metrics.roots import DAY, HOUR
from tests.lakelog.report.html_tables import tables
from tests.lakelog.ui.browsing import PATIENCE_SECONDS, PORT, Browser, hidden_fields
from tests.lakelog.ui.processes import plan_page, serving
from tests.roots.stored_roots import stored_root
from tests.servers.faulty_proxy import FaultyProxy, longest_chain
from tests.servers.object_server import ObjectServer
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import environment, new_bucket

__all__ = ["stored_root"]

PATHS = (
    "", "groups", "dead-letters", "plans", "settings", "group?topic=orders&name=billing",
    *(f"topics/orders{tab}" for tab in ("", "/records", "/groups", "/dead-letters", "/plan", "/history", "/settings")),
)  # fmt: skip
PARTITIONS = 16
"""As many as the page of a topic shows."""


def topics_at(root: str) -> Topics:
    return Topics(open_storage(root), BrokerConfig(), SystemClock())


def append(topics: Topics, name: str, partition: int, *ages_ms: int) -> None:
    chain, now_ms = topics.chain(name), topics.clock.now_ms()
    rows = to_table([Row(b"key-%d" % number, bytes(900), timestamp=now_ms - age) for number, age in enumerate(ages_ms)])
    append_records(topics.storage, chain, topics.config(chain.newest()), topics.clock, rows, partition)


def text_of(address: str) -> str:
    with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as answer:
        text: str = answer.read().decode()
        return text


def test_the_command_serves_the_pages_of_a_root_in_a_store(stored_root: str) -> None:
    topics = topics_at(stored_root)
    topics.create("orders", 2, {"retention.ms": str(DAY), "segment.bytes": "1024"})
    for age in (3 * DAY, 2 * DAY, HOUR):
        append(topics, "orders", 1, age, age)
    query = take_over(topics.chain("orders"), "q").writer.query or ""
    report = IngestReport(query=query, updated_ms=topics.clock.now_ms(), is_running=True, lag_records=1_200)
    put_report(topics.storage, report)
    put_positions(topics.storage, topics.state("orders"), "billing", GROUP_KIND, {1: 4}, topics.clock.now_ms())
    with serving(stored_root, "--listen", "127.0.0.1:0", "--allow-changes", "--show-values") as (process, address):
        plan = f"{address}topics/orders/plan"
        cookie, form = plan_page(plan)
        for path in PATHS:
            assert "readable" not in text_of(f"{address}{path}"), path
        (row,) = tables(text_of(address))["Topics"]
        assert (row["topic"], row["partitions"], row["records appended"], row["largest lag"]) == (
            "orders",
            "2",
            "6",
            "2",
        )
        page = text_of(f"{address}topics/orders")
        assert [each["high watermark"] for each in tables(page)["Partitions"]] == ["0", "6"]
        assert "1,200 records behind its source" in page
        records = tables(text_of(f"{address}topics/orders/records?partition=1&offset=4"))["Records of partition 1"]
        assert [(each["offset"], each["key"]) for each in records] == [("4", "key-0"), ("5", "key-1")]
        data = urllib.parse.urlencode(hidden_fields(form)).encode()
        with urllib.request.urlopen(
            urllib.request.Request(plan, data, {"Cookie": cookie, "Origin": address.rstrip("/")}),
            timeout=PATIENCE_SECONDS,
        ) as answer:
            assert answer.status == 200
        process.terminate()
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (0, "")
    assert "lakelog: topic orders, partition 1: 4 segments deleted, " in err
    assert topics.state("orders").partitions[1].log_start_offset == 4


@pytest.fixture
def slow_s3(s3: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, FaultyProxy]]:
    """A root on S3, and the proxy before it."""
    with FaultyProxy(s3) as proxy:
        bucket = new_bucket(s3)
        for name, value in environment(proxy.server, bucket).items():
            monkeypatch.setenv(name, value)
        yield f"{proxy.server.uri_of(bucket)}/root", proxy


def test_a_page_does_not_ask_for_one_partition_or_topic_after_another(slow_s3: tuple[str, FaultyProxy]) -> None:
    root, proxy = slow_s3
    topics = topics_at(root)
    topics.create("orders", 2 * PARTITIONS, {})
    append(topics, "orders", 0, HOUR)
    for number in range(PARTITIONS):
        topics.create(f"small-{number:02d}", 1, {})
    browser = Browser(Site(topics, BrokerSettings(), UiOptions(port=PORT), print, PATIENCE_SECONDS))
    proxy.latency_seconds = 0.03
    for path, part, least in (
        ("/topics/orders", "prefix=root%2Fdata%2F", PARTITIONS),
        ("/", "%2Fgroups%2F", PARTITIONS),
        ("/dead-letters", "prefix=root%2Ftables%2F", 2 * PARTITIONS),
    ):
        proxy.forget()
        assert browser.get(path).status == 200
        found = [each for each in proxy.forget() if part in each.path]
        assert len(found) >= least, path
        assert longest_chain(found) <= least // 2, path
