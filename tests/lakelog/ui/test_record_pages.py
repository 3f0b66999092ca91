"""The page with the records of a partition."""

from __future__ import annotations

import pytest

import lakelog
from lakelog.ui import record_pages
from storage_engine.quantities import shown_moment
from tests.lakelog.metrics.roots import NOW
from tests.lakelog.ui.browsing import Answer, PagesRoot
from tests.storage_engine.record_tables import Row

pytestmark = pytest.mark.posix("the files of the root are changed")
SECRET = b"secret-content"


def offsets(page: Answer, partition: int = 0) -> list[int]:
    rows = page.tables.get(f"Records of partition {partition}", [])
    return [int(row["offset"].replace(",", "")) for row in rows]


def filled(root: PagesRoot, count: int = 120) -> None:
    root.topic("orders", 2)
    rows = [
        Row(b"key-%d" % (number % 7), b"value %d" % number, timestamp=NOW + number, headers=(("n", b"%d" % number),))
        for number in range(count)
    ]
    root.append_rows("orders", *rows)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"short", "<code class=content>short</code>"),
        ("ä".encode() * 500, f"<code class=content>{'ä' * 100}</code> … (1.0 kB)"),
        (b"a" + "€".encode() * 500, f"<code class=content>a{'€' * 99}</code> … (1.5 kB)"),  # the cut is in a character
        (b"\xff" + b"a" * 9, "<code class=content>0xff616161616161616161</code> (10 B, not text)"),
        (
            bytes(range(128, 256)) * 10,
            f"<code class=content>0x{bytes(range(128, 178)).hex()}</code> … (1.3 kB, not text)",
        ),
        ("ä".encode()[:1], "<code class=content>0xc3</code> (1 B, not text)"),
    ],
)
def test_bytes_are_text_only_if_all_that_is_shown_is_text(data: bytes, shown: str) -> None:
    assert str(record_pages.content(data, 100)).replace('"', "") == shown


def test_a_page_shows_the_records_that_the_api_reads(root: PagesRoot) -> None:
    root.topic("orders")
    root.append_rows(
        "orders",
        Row(b"a", b"1", timestamp=NOW, headers=(("source", b"web"), ("empty", None))),
        Row(None, b"\xff\x00", timestamp=NOW + 1),
        Row(b"", None, timestamp=NOW + 2),
    )
    page = root.browser(show_values=True).get("/topics/orders/records")
    rows = lakelog.open(root.folder).topic("orders").read().to_arrow().to_pylist()
    assert [row["timestamp"] for row in page.tables["Records of partition 0"]] == [
        shown_moment(round(row["timestamp"].timestamp() * 1000)) for row in rows
    ]
    common = {"producer": "–", "type": "CreateTime", "leader epoch": "0"}
    assert page.tables["Records of partition 0"] == [
        {"offset": "0", "timestamp": shown_moment(NOW), "key": "a", "value": "1",
         "headers": "source = webempty = null"} | common,
        {"offset": "1", "timestamp": shown_moment(NOW + 1), "key": "null", "value": "0xff00 (2 B, not text)",
         "headers": "none"} | common,
        {"offset": "2", "timestamp": shown_moment(NOW + 2), "key": "empty", "value": "null", "headers": "none"} | common,
    ]  # fmt: skip


def test_contents_are_hidden_unless_the_server_may_show_them(root: PagesRoot) -> None:
    root.topic("orders")
    header = (("secret-name", SECRET),)
    root.append_rows("orders", Row(SECRET, SECRET * 2, timestamp=NOW, headers=header), Row(None, None, timestamp=NOW))
    browser = root.browser()
    page = browser.get("/topics/orders/records")
    first, second = page.tables["Records of partition 0"]
    assert (first["key"], first["value"], first["headers"]) == ("14 B", "28 B", "1 header, 25 B")
    assert (second["key"], second["value"], second["headers"]) == ("null", "null", "none")
    assert "secret" not in page.text
    for search in ("key=secret-content", "header=secret-name", "header=h&value=v"):
        refused = browser.get(f"/topics/orders/records?{search}")
        assert refused.status == 400
        assert refused.facts["what to do"] == "Start the server with --show-values, or use `lakelog read`."
        assert offsets(refused) == []


def test_without_a_place_the_newest_records_are_shown_and_links_lead_to_all_others(root: PagesRoot) -> None:
    filled(root)
    browser = root.browser()
    page = browser.get("/topics/orders/records")
    assert offsets(page) == list(range(70, 120))
    older = next(link for link in page.links if "offset=20&" in f"{link}&")
    assert offsets(browser.get(older)) == list(range(20, 70))
    assert offsets(browser.get("/topics/orders/records?offset=0&count=10")) == list(range(10))
    newer = next(link for link in browser.get("/topics/orders/records?offset=0&count=10").links if "offset=10" in link)
    assert offsets(browser.get(newer)) == list(range(10, 20))


@pytest.mark.parametrize("time", [str(NOW + 30), shown_moment(NOW + 30).replace(" ", "T"), shown_moment(NOW + 30)])
def test_records_are_found_by_time(root: PagesRoot, time: str) -> None:
    filled(root)
    page = root.browser().get(f"/topics/orders/records?count=5&time={time.replace(' ', '%20')}")
    assert offsets(page) == list(range(30, 35))
    assert offsets(root.browser().get(f"/topics/orders/records?time={NOW + 500}")) == []


def test_records_are_found_by_key_and_header(root: PagesRoot) -> None:
    filled(root)
    browser = root.browser(show_values=True)
    assert offsets(browser.get("/topics/orders/records?key=key-3")) == list(range(3, 120, 7))
    assert offsets(browser.get("/topics/orders/records?key=key-3&offset=60")) == list(range(66, 120, 7))
    assert offsets(browser.get("/topics/orders/records?header=n&value=77")) == [77]
    assert offsets(browser.get("/topics/orders/records?header=n&value=77&key=key-1")) == []
    assert offsets(browser.get("/topics/orders/records?header=n&count=4")) == [0, 1, 2, 3]
    assert offsets(browser.get("/topics/orders/records?header=m")) == []
    assert offsets(browser.get("/topics/orders/records?key=key-3&partition=1"), 1) == []


def test_a_search_ends_after_some_bytes_and_says_where(root: PagesRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    root.topic("orders")
    for number in range(4):
        root.append_rows("orders", Row(b"k", b"%d" % number, timestamp=NOW))
    root.append_rows("orders", Row(b"wanted", b"v", timestamp=NOW))
    monkeypatch.setattr(record_pages, "MOST_SEARCHED_BYTES", 0)
    browser = root.browser(show_values=True)
    page, found = browser.get("/topics/orders/records?key=wanted"), list[int]()
    for _ in range(8):
        found += offsets(page)
        more = [link for link in page.links if "key=wanted" in link and "offset=0" not in link]
        if not more:
            break
        page = browser.get(more[-1])
    assert found == [4]
    assert "Searched offsets" in page.words


def test_the_producer_of_a_transaction_is_shown(root: PagesRoot) -> None:
    log = lakelog.open(root.folder, create=True)
    log.create_topic("orders")
    log.topic("orders").append([{"value": "plain"}])
    with log.transaction() as transaction:
        transaction.append("orders", [{"value": "1"}, {"value": "2"}])
    rows = root.browser().get("/topics/orders/records").tables["Records of partition 0"]
    assert [row["offset"] for row in rows] == ["0", "1", "2"]
    assert rows[0]["producer"] == "–"
    assert rows[1]["producer"] == rows[2]["producer"] != "–"


def test_records_of_an_open_transaction_are_shown_only_on_request(root: PagesRoot) -> None:
    log = lakelog.open(root.folder, create=True)
    log.create_topic("orders")
    with log.transaction() as transaction:
        transaction.append("orders", [{"value": "1"}])
        browser = root.browser()
        assert offsets(browser.get("/topics/orders/records")) == []
        assert offsets(browser.get("/topics/orders/records?uncommitted=1")) == [0]


@pytest.mark.parametrize(
    ("query", "place", "found"),
    [
        ("partition=-1", "parameter partition", "expected a whole number from 0 to"),
        ("partition=x%1b[31m", "parameter partition", "found 'x\\x1b[31m'"),
        ("offset=121", "topic orders, partition 0", "expected an offset from 0 to 120, found 121"),
        ("offset=1.5", "parameter offset", "found '1.5'"),
        ("offset=99999999999999999999", "parameter offset", "expected a whole number"),
        ("time=yesterday", "parameter time", "expected a time; found 'yesterday'"),
        ("time=9999-99-99", "parameter time", "expected a time"),
        ("time=1e400", "parameter time", "expected a time"),
        ("offset=1&time=2026-01-01", "parameter time", "an offset is given, too"),
        ("count=0", "parameter count", "from 1 to 200"),
        ("count=100000", "parameter count", "from 1 to 200"),
        ("value=x", "parameter value", "no header is given"),
    ],
)
def test_a_wrong_parameter_is_refused(root: PagesRoot, query: str, place: str, found: str) -> None:
    filled(root)
    page = root.browser(show_values=True).get(f"/topics/orders/records?{query}")
    assert page.status == 400
    assert page.facts["place"] == place
    assert found in page.facts["found"]
    assert page.facts["what to do"]


def test_an_unknown_partition_is_not_found(root: PagesRoot) -> None:
    filled(root)
    page = root.browser().get("/topics/orders/records?partition=2")
    assert page.status == 404
    assert page.facts["found"] == "has partitions 0 to 1, but no partition 2"


def test_records_before_damage_are_shown_with_the_error(root: PagesRoot) -> None:
    root.topic("orders")
    for number in range(3):
        root.append_rows("orders", Row(b"k", b"%d" % number, timestamp=NOW))
    last = max(root.segment_file("orders").parent.glob("*.log"))
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    page = root.browser().get("/topics/orders/records?offset=0")
    assert page.status == 200
    assert offsets(page) == [0, 1]
    assert "Not readable: data/" in page.words
