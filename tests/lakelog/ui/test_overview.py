"""The overview page: sums, topics, and problems that need attention."""

from __future__ import annotations

import shutil

import pytest

from storage_engine.quantities import shown_moment, shown_number, shown_size
from storage_engine.topic.broker_settings import put_broker_settings
from tests.lakelog.metrics.roots import HOUR, MINUTE
from tests.lakelog.ui.browsing import PagesRoot

pytestmark = pytest.mark.posix("the files of the root are changed")


def test_the_overview_shows_what_the_states_say(root: PagesRoot) -> None:
    root.topic("orders", 3)
    root.append("orders", HOUR, MINUTE, partition=1)
    state = root.append("orders", 5 * HOUR, partition=2)
    root.topic("empty")
    root.group("orders", "billing", {0: 0, 1: 1, 2: 0})
    root.group("orders", "mail", {1: 2, 2: 1})

    page = root.browser().get("/")

    assert page.status == 200
    size = sum(part.size for part in state.partitions)
    newest = max(part.largest_timestamp for part in state.partitions)
    written, created = (f"{shown_moment(root.topics.state(name).written_ms)[:-5]}Z" for name in ("orders", "empty"))
    assert page.tables == {
        "Topics": [
            {
                "topic": "empty", "partitions": "1", "segments": "0", "records appended": "0", "in the log": "0 B",
                "groups": "0", "largest lag": "–", "newest record": "–", "last change": created,
            },
            {
                "topic": "orders", "partitions": "3", "segments": "2", "records appended": "3",
                "in the log": shown_size(size), "groups": "2", "largest lag": "2",
                "newest record": f"{shown_moment(newest)[:-5]}Z", "last change": written,
            },
        ]
    }  # fmt: skip
    assert page.facts == {
        "topics": "2", "partitions": "4", "segments": "2", "records appended": "3", "in the log": shown_size(size),
        "groups": "2", "asks for attention": "0",
    }  # fmt: skip
    assert "Nothing asks for attention." in page.words


def test_the_overview_says_what_asks_for_attention(root: PagesRoot) -> None:
    for name in ("damaged", "future", "groups", "lagging"):
        root.topic(name)
    root.append("future", -HOUR)
    root.damage("damaged")
    root.append("lagging", 3 * HOUR, 2 * HOUR)
    samples = [(age * HOUR, 0, 2) for age in (6, 5, 4)]
    root.group_with("lagging", "billing", {0: 0}, *samples)
    root.group("groups", "mail", {0: 0})
    (file,) = (root.folder / "meta/groups/groups").iterdir()
    file.write_bytes(b"{}")

    page = root.browser().get("/")

    found = page.words.partition("What asks for attention")[2].partition("The overview reads")[0]
    assert "not readable, damaged: meta/damaged/" in found
    assert "damaged, groups: meta/groups/groups/mail-" in found
    assert "STOP, lagging, group billing: lag 2; the last commit was 4 h ago" in found
    assert "time in the future, future: the newest record is 1 h in the future" in found
    assert {"/topics/damaged", "/group?topic=lagging&name=billing"} <= set(page.links)
    rows = {row["topic"]: row for row in page.tables["Topics"]}
    assert rows["damaged"]["partitions"] == "not readable"
    assert rows["lagging"]["largest lag"] == "2"


def test_a_group_has_not_stopped_if_its_unread_records_are_new(root: PagesRoot) -> None:
    root.topic("quiet")
    root.append("quiet", MINUTE)
    root.group_with("quiet", "billing", {0: 0}, *((age * HOUR, 0, 0) for age in (6, 5, 4)))
    assert "Nothing asks for attention." in root.browser().get("/").words


def test_a_group_has_stopped_if_the_last_of_many_partitions_has_an_old_unread_record(root: PagesRoot) -> None:
    root.topic("many", 12)
    for number in range(12):
        root.append("many", HOUR if number == 11 else MINUTE, partition=number)
    root.group_with("many", "billing", dict.fromkeys(range(12), 0), *((age * HOUR, 0, 0) for age in (6, 5, 4)))
    assert "STOP, many, group billing: lag 12" in root.browser().get("/").words


def test_a_group_has_not_stopped_if_new_records_of_many_partitions_are_unread(root: PagesRoot) -> None:
    root.topic("many", 12)
    for number in range(12):
        root.append("many", MINUTE, partition=number)
    root.group_with("many", "billing", dict.fromkeys(range(12), 0), *((age * HOUR, 0, 0) for age in (6, 5, 4)))
    assert "Nothing asks for attention." in root.browser().get("/").words


def test_a_change_is_shown_when_the_page_is_opened_again(root: PagesRoot) -> None:
    root.topic("orders")
    browser = root.browser()
    assert browser.get("/").facts["records appended"] == "0"
    root.append("orders", MINUTE, MINUTE)
    root.topic("new")
    page = browser.get("/")
    assert (page.facts["records appended"], page.facts["topics"]) == ("2", "2")


def test_damage_of_a_version_that_was_read_before_is_found_after_a_minute(root: PagesRoot) -> None:
    root.topic("orders")
    browser = root.browser()
    browser.get("/")
    root.damage("orders")
    assert browser.get("/topics/orders").facts["place"].startswith("meta/orders/")
    root.clock.advance(2 * MINUTE)
    assert browser.get("/").tables["Topics"][0]["partitions"] == "not readable"


def test_topics_are_divided_into_pages_and_found_by_a_part_of_the_name(root: PagesRoot) -> None:
    for number in range(205):
        root.topic(f"topic-{number:03}")
    browser = root.browser()
    first, last = browser.get("/"), browser.get("/?page=3")
    assert [row["topic"] for row in first.tables["Topics"]] == [f"topic-{number:03}" for number in range(100)]
    assert [row["topic"] for row in last.tables["Topics"]] == [f"topic-{number:03}" for number in range(200, 205)]
    assert "/?page=2" in first.links
    found = browser.get("/?name=PIC-01")
    assert [row["topic"] for row in found.tables["Topics"]] == [f"topic-{number:03}" for number in range(10, 20)]
    assert browser.get("/?page=99").tables == last.tables
    assert "No topic has “nothing” in its name." in browser.get("/?name=nothing").words


def test_an_overview_of_ten_thousand_partitions_is_small(root: PagesRoot) -> None:
    root.topic("large", 10_000)
    for number in range(120):
        root.topic(f"topic-{number:03}")
    browser = root.browser()
    page, topic = browser.get("/"), browser.get("/topics/large")
    assert page.facts["partitions"] == shown_number(10_120)
    assert len(page.text) < 60_000
    assert len(topic.text) < 60_000
    assert [row["partition"] for row in topic.tables["Partitions"]] == [str(number) for number in range(16)]
    last = browser.get("/topics/large?page=625")
    assert [row["partition"] for row in last.tables["Partitions"]] == [str(number) for number in range(9984, 10_000)]


@pytest.mark.parametrize("path", ["/?page=0", "/?page=-1", "/?page=x", "/groups?page=%00", "/plans?page=1e3"])
def test_a_wrong_page_is_refused_with_the_place_the_value_and_what_to_do(root: PagesRoot, path: str) -> None:
    root.topic("orders")
    page = root.browser().get(path)
    assert page.status == 400
    assert page.facts["place"] == "parameter page"
    assert page.facts["found"].startswith("expected a whole number from 1 to 1000000; found '")
    assert page.facts["what to do"] == "Correct the number, or leave it out."


def test_the_settings_show_the_root_and_the_server(root: PagesRoot) -> None:
    put_broker_settings(root.storage, {"log.retention.hours": "24"})
    page = root.browser(show_values=True, host_names=("logs.lan",), refresh_seconds=30).get("/settings")
    (row,) = (
        each
        for each in page.tables["Broker settings that differ from Kafka's defaults"]
        if each["stored in the root"] != "–"
    )
    assert (row["key"], row["stored in the root"]) == ("log.retention.hours", "24")
    assert page.facts == {
        "address": "127.0.0.1, port 8787", "further host names": "logs.lan", "token": "not required",
        "keys, values and headers": "shown (--show-values)", "changes": "not allowed", "refresh": "every 30 seconds",
    }  # fmt: skip


def test_a_root_that_has_become_an_empty_directory_does_not_look_healthy(root: PagesRoot) -> None:
    root.topic("orders")
    browser = root.browser()
    browser.get("/")
    shutil.rmtree(root.folder)
    root.folder.mkdir()
    page = browser.get("/")
    assert page.facts["found"] == "this path has no topics: the folder meta/ is missing or empty"
    assert page.facts["what to do"].startswith("Check whether the file system is mounted.")
