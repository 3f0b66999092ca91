"""The pages about dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from storage_engine.quantities import shown_moment
from storage_engine.topic.readers.consumer_files import DATABASE_EXPORT_KIND
from tests.lakelog.metrics.roots import NOW
from tests.lakelog.ui.browsing import PagesRoot

pytestmark = pytest.mark.posix("writes tables in a folder")
AT = datetime.fromtimestamp(NOW / 1000, UTC)


def exported(partition: int, offset: int, outcome: str | None = None) -> Mapping[str, object]:
    return {
        "reason": "undecodable", "detail": "missing at amount", "topic": "orders", "partition": partition,
        "offset": offset, "timestamp": AT, "key": b"secret", "value": b"secret", "outcome": outcome,
    }  # fmt: skip


@pytest.fixture
def with_letters(root: PagesRoot) -> PagesRoot:
    root.topic("orders", 2)
    root.topic("clean")
    root.dead_letters(
        "export", "orders", [exported(0, 5), exported(0, 12_000), exported(1, 7), exported(1, 8, "replayed")]
    )
    rows = [
        {"reason": "no_key", "detail": None, "query_id": "q-1", "batch_id": batch, "value": b"secret"}
        for batch in (3, 4)
    ]
    root.dead_letters("ingest", "orders", rows)
    return root


def test_dead_letters_are_counted_by_topic_and_reason(with_letters: PagesRoot) -> None:
    page = with_letters.browser().get("/dead-letters")
    assert page.status == 200
    assert page.tables["Dead letters by topic and reason"] == [
        {"topic": "orders", "reason": reason, "job": job, "from": origin, "first": first, "last": last,
         "dead letters": count}
        for reason, job, origin, first, last, count in (
            ("no_key", "ingest", "query q-1", "batch 3", "batch 4", "2"),
            ("undecodable", "export", "partition 0", "offset 5", "offset 12,000", "2"),
            ("undecodable", "export", "partition 1", "offset 7", "offset 7", "1"),
            ("undecodable, replayed", "export", "partition 1", "offset 8", "offset 8", "1"),
        )
    ]  # fmt: skip
    assert "secret" not in page.text


def test_the_page_of_a_topic_lists_dead_letters_and_says_how_to_replay_them(with_letters: PagesRoot) -> None:
    page = with_letters.browser(show_values=True).get("/topics/orders/dead-letters")
    assert page.tables["The newest dead letters of the export, at most 100"] == [
        {"place": f"offset {place}", "from": f"partition {partition}", "reason": "undecodable", "outcome": outcome,
         "timestamp": shown_moment(NOW), "detail": "missing at amount"}
        for place, partition, outcome in (("12,000", 0, "open"), ("8", 1, "replayed"), ("7", 1, "open"), ("5", 0, "open"))
    ]  # fmt: skip
    assert [row["place"] for row in page.tables["The newest dead letters of the ingest, at most 100"]] == [
        "batch 4", "batch 3"
    ]  # fmt: skip
    command = f"./spark-submit.sh export --conf SETTINGS.yaml --root {with_letters.folder} --replay"
    assert command in page.words
    assert "3 records did not become rows" in page.words
    assert "/topics/orders/records?partition=0&offset=12000" in page.links
    assert "secret" not in page.text


def test_a_topic_without_dead_letters_has_none(with_letters: PagesRoot) -> None:
    assert "There are none." in with_letters.browser().get("/topics/clean/dead-letters").words


def test_the_page_of_a_topic_names_the_dead_letters_in_databases(with_letters: PagesRoot) -> None:
    for name in ("clean", "orders"):
        with_letters.export(name, {0: 0}, "jdbc:mariadb://db:3306/shop sales", kind=DATABASE_EXPORT_KIND)
    browser = with_letters.browser()
    for name in ("clean", "orders"):
        words = browser.get(f"/topics/{name}/dead-letters").words
        assert "into these tables of databases:jdbc:mariadb://db:3306/shop sales_dead_letters" in words
    assert "There are none in Delta tables." in browser.get("/topics/clean/dead-letters").words


def test_dead_letters_that_have_an_outcome_need_no_replay(root: PagesRoot) -> None:
    root.topic("orders")
    root.dead_letters("export", "orders", [exported(0, 5, "gone")])
    page = root.browser().get("/topics/orders/dead-letters")
    assert "No dead letter is open, so there is nothing to replay." in page.words
    assert "--replay" not in page.words


def test_dead_letters_of_no_topic_are_shown(root: PagesRoot) -> None:
    root.topic("orders")
    rows = [{"reason": "unknown_topic", "query_id": "q", "batch_id": 9}]
    write_deltalake(root.folder / "tables/dead_letters/unknown_topic", pa.Table.from_pylist(rows))
    page = root.browser().get("/dead-letters")
    (row,) = page.tables["Dead letters whose topic is unknown"]
    assert (row["reason"], row["dead letters"], row["last"]) == ("unknown_topic", "1", "batch 9")


def test_a_damaged_table_is_an_error_on_its_page_only(with_letters: PagesRoot) -> None:
    for file in (with_letters.folder / "tables/dead_letters/export/orders/_delta_log").iterdir():
        file.write_bytes(b"{broken")
    browser = with_letters.browser()
    for path in ("/dead-letters", "/topics/orders/dead-letters"):
        page = browser.get(path)
        assert page.status == 200
        assert "Not readable: " in page.words
        assert "expected a Delta table with reason, partition, offset" in page.words
        assert "no_key" in page.words
    assert browser.get("/topics/orders").status == 200
